"""Predictions of y when the noise itself is uncertain: a Gaussian mixture over the noise process.

    p(y) = integral of N(y; mean_f, var_f + exp(g)) N(g; mean_g, var_g) dg     (001 eq. 17)

Mean and variance are closed forms; density, quantiles, intervals and samples are those of the mixture itself, not of
the Gaussian with its moments.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtr, ndtri

from sparsegp.errors import InputError
from sparsegp.estimators.predicting.predictions import Array, GaussianPredictions

NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
LOG_WEIGHTS = np.log(_NODE_WEIGHTS / _NODE_WEIGHTS.sum())
CHUNK_ROWS = 4096
ROOT_STEPS = 100
ROOT_TOLERANCE = 1e-13


@dataclass(frozen=True)
class NoiseMixture:
    """Moments of f and of g = log noise variance at each row; y given (f, g) is N(f, exp(g))."""

    f_mean: Array
    f_var: Array
    g_mean: Array
    g_var: Array

    @property
    def noise_var(self) -> Array:
        """E exp(g): the aleatoric variance."""
        mean: Array = np.exp(self.g_mean + 0.5 * self.g_var)
        return mean

    def parts(self, index: slice) -> tuple[Array, Array]:
        """Variances [rows, nodes] of the parts of the mixture and their log weights, by Gauss-Hermite quadrature."""
        g = self.g_mean[index, None] + np.sqrt(self.g_var[index, None]) * NODES
        return self.f_var[index, None] + np.exp(g), LOG_WEIGHTS

    def log_density(self, y: Array) -> Array:
        density = np.empty_like(self.f_mean)
        for index in _chunks(len(y)):
            var, log_weight = self.parts(index)
            square = (y[index] - self.f_mean[index])[:, None] ** 2 / var
            density[index] = logsumexp(log_weight - 0.5 * (np.log(2 * np.pi * var) + square), axis=1)
        return density

    def cdf(self, y: Array) -> Array:
        """P(Y <= y) of each row."""
        out = np.empty_like(self.f_mean)
        for index in _chunks(len(y)):
            var, log_weight = self.parts(index)
            out[index] = ndtr((y[index] - self.f_mean[index])[:, None] / np.sqrt(var)) @ np.exp(log_weight)
        return out

    def quantiles(self, levels: Array) -> Array:
        """One column for each level. The mixture is symmetric about f_mean: only distances are searched."""
        out = np.empty((len(self.f_mean), len(levels)))
        for index in _chunks(len(self.f_mean)):
            var, log_weight = self.parts(index)
            for k, level in enumerate(levels):
                distance = _distance(np.sqrt(var), np.exp(log_weight), max(level, 1.0 - level))
                out[index, k] = self.f_mean[index] + np.sign(level - 0.5) * distance
        return out


def _chunks(n_rows: int) -> list[slice]:
    return [slice(start, start + CHUNK_ROWS) for start in range(0, n_rows, CHUNK_ROWS)]


def _distance(std: Array, weight: Array, level: float) -> Array:
    """t >= 0 with sum_j w_j Phi(t/s_j) = level >= 1/2, row by row: Newton steps kept inside a shrinking bracket."""
    z = float(ndtri(level))
    low, high = z * std.min(axis=1), z * std.max(axis=1)
    t: Array = z * np.sqrt(std**2 @ weight).clip(std.min(axis=1), std.max(axis=1))
    for _ in range(ROOT_STEPS):
        scaled = t[:, None] / std
        # in the upper tail 1 - Phi keeps its digits where Phi does not
        excess = (1.0 - level) - ndtr(-scaled) @ weight
        low, high = np.where(excess < 0.0, t, low), np.where(excess > 0.0, t, high)
        slope = (np.exp(-0.5 * scaled**2) / std) @ weight / np.sqrt(2.0 * np.pi)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = t - excess / slope
        inside = (newton >= low) & (newton <= high)
        moved = np.where(inside, newton, 0.5 * (low + high))
        done = np.abs(moved - t) <= ROOT_TOLERANCE * high
        t = moved
        if done.all():
            break
    return t


class MixturePredictions(GaussianPredictions):
    """Mixin: what `GaussianPredictions` offers, from the mixture; an estimator gives the moments of f and g."""

    @abstractmethod
    def _mixture(self, X: Any, blocks: ArrayLike | None) -> NoiseMixture:
        """Moments of f and g at each row, in the user's units."""

    @abstractmethod
    def _latent_joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array]:
        """Mean and covariance of f at all rows, in the user's units."""

    def _marginals(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, Any]:
        mixture = self._mixture(X, blocks)
        return mixture.f_mean, mixture.f_var, mixture.noise_var

    def _joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, Any]:
        return *self._latent_joint(X, blocks), self._mixture(X, blocks).noise_var

    def predict_quantiles(self, X: Any, q: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Quantiles of y: one column for each level in q."""
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise InputError(f"Quantile levels must lie strictly between 0 and 1; got {q!r}.")
        return self._mixture(X, blocks).quantiles(levels)

    def log_density(self, X: Any, y: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Log density of each target under the mixture; minus its mean is the NLPD."""
        mixture = self._mixture(X, blocks)
        target = np.asarray(y, dtype=np.float64).ravel()
        if target.shape != mixture.f_mean.shape:
            raise InputError(f"y must have one target for each of the {len(mixture.f_mean)} rows; got {len(target)}.")
        return mixture.log_density(target)

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = None,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Array:
        """Samples of y (or f) at the rows of X: f jointly, the noise row by row with its own draw of g."""
        rng = np.random.default_rng(random_state)
        draws = super().sample_y(X, n_samples, rng, latent=True, blocks=blocks)
        if latent:
            return draws
        mixture = self._mixture(X, blocks)
        g = mixture.g_mean[:, None] + np.sqrt(mixture.g_var)[:, None] * rng.standard_normal(draws.shape)
        noisy: Array = draws + np.exp(0.5 * g) * rng.standard_normal(draws.shape)
        return noisy
