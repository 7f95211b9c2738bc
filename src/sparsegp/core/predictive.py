"""Forecasts as values: the distribution of y at some rows, in the user's units, and everything that is asked of one.

The noise of a `Gaussian` is known, that of a `NoiseMixture` is itself uncertain. Both answer the questions of
`Predictive` row by row; `Joint` adds how f varies together at all rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, ndtr, ndtri

from sparsegp.checked import checked_coverage, checked_levels, checked_targets
from sparsegp.errors import InputError, NegativeVarianceError

Array = NDArray[np.float64]
Generator = np.random.Generator

NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
LOG_WEIGHTS = np.log(_NODE_WEIGHTS / _NODE_WEIGHTS.sum())
CHUNK_ROWS = 4096
PAIR_ROWS = CHUNK_ROWS // 16
ROOT_STEPS = 100
ROOT_TOLERANCE = 1e-13
TRACE_TOLERANCE = 2e-15
"""Eigenvalues of a covariance as negative as this, of its trace, are zeros."""


class Predictive(Protocol):
    """The distribution of y at each of some rows, in the units of the data.

    Every answer has one entry, or one line, for each row.
    """

    @property
    def mean(self) -> Array:
        """Mean of y, which is that of f."""

    @property
    def var(self) -> Array:
        """Variance of y: that of f plus that of the noise."""

    @property
    def std(self) -> Array:
        """Standard deviation of y."""

    @property
    def f_std(self) -> Array:
        """Standard deviation of f: the epistemic part, which more data would remove."""

    @property
    def noise_std(self) -> Array:
        """Root of the expected noise variance: the aleatoric part."""

    @property
    def noise_var(self) -> float | Array:
        """Expected variance of y given f: one number for all rows, or one for each."""

    @property
    def latent(self) -> "Predictive":
        """The forecast of the noise-free function f."""

    def interval(self, coverage: float) -> tuple[Array, Array]:
        """The central interval that holds y with a given probability.

        Parameters
        ----------
        coverage : float
            The probability, strictly between 0 and 1.

        Returns
        -------
        lower : ndarray of shape (n_rows,)
            Lower ends.
        upper : ndarray of shape (n_rows,)
            Upper ends.
        """

    def quantiles(self, q: ArrayLike) -> Array:
        """Values that y stays below with given probabilities.

        Parameters
        ----------
        q : float or sequence of float
            The probabilities, strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n_rows, n_levels)
            One column for each level.
        """

    def log_density(self, y: ArrayLike) -> Array:
        """Log density of each target.

        Parameters
        ----------
        y : array of shape (n_rows,)
            The targets.

        Returns
        -------
        ndarray of shape (n_rows,)
            The log densities.
        """

    def cdf(self, y: ArrayLike) -> Array:
        """Probability that y is not above each target.

        Parameters
        ----------
        y : array of shape (n_rows,)
            The targets.

        Returns
        -------
        ndarray of shape (n_rows,)
            The probabilities.
        """

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each target: E|Y - y| - E|Y - Y'|/2. Lower is better.

        Parameters
        ----------
        y : array of shape (n_rows,)
            The targets.

        Returns
        -------
        ndarray of shape (n_rows,)
            The scores, in units of y.
        """

    def sample(self, n: int, rng: Generator) -> Array:
        """Draws of y, independent from row to row.

        Parameters
        ----------
        n : int
            Number of draws.
        rng : numpy Generator
            Source of randomness.

        Returns
        -------
        ndarray of shape (n_rows, n)
            One column for each draw.
        """

    def noise_sample(self, shape: tuple[int, int], rng: Generator) -> float | Array:
        """Draws of y - f [rows, n]."""

    def parts(self, rows: slice) -> "Parts":
        """The distribution at some of the rows as a mixture of Gaussians."""


@dataclass(frozen=True, eq=False)
class Gaussian:
    """y ~ N(mean, f_var + noise_var): f is Gaussian, and the noise has a known variance, 0 for a forecast of f itself.

    Nystrom's variances may be negative. The mean can be had then, and everything that needs a spread is refused.
    """

    mean: Array
    f_var: Array
    noise_var: float = 0.0

    @property
    def latent(self) -> "Gaussian":
        return replace(self, noise_var=0.0)

    @property
    def var(self) -> Array:
        return self.f_var + self.noise_var

    @property
    def std(self) -> Array:
        return root(self.var)

    @property
    def f_std(self) -> Array:
        return root(self.f_var)

    @property
    def noise_std(self) -> Array:
        return np.full_like(self.mean, math.sqrt(self.noise_var))

    def interval(self, coverage: float) -> tuple[Array, Array]:
        return _ends(self, coverage)

    def quantiles(self, q: ArrayLike) -> Array:
        quantiles: Array = self.mean[:, None] + self.std[:, None] * ndtri(checked_levels(q))
        return quantiles

    def log_density(self, y: ArrayLike) -> Array:
        std = self.std
        density: Array = -0.5 * (np.log(2 * np.pi) + ((checked_targets(y, self.mean) - self.mean) / std) ** 2) - np.log(
            std
        )
        return density

    def cdf(self, y: ArrayLike) -> Array:
        below: Array = ndtr((checked_targets(y, self.mean) - self.mean) / self.std)
        return below

    def crps(self, y: ArrayLike) -> Array:
        std = self.std
        # Y - Y' is N(0, 2 std^2)
        return mean_size(checked_targets(y, self.mean) - self.mean, std) - std / math.sqrt(math.pi)

    def sample(self, n: int, rng: Generator) -> Array:
        draws: Array = self.mean[:, None] + self.std[:, None] * rng.standard_normal((len(self.mean), n))
        return draws

    def parts(self, rows: slice) -> "Parts":
        """A single one."""
        return Parts(self.mean[rows], self.std[rows, None] ** 2, np.zeros(1))

    def noise_sample(self, shape: tuple[int, int], rng: Generator) -> float | Array:
        """Draws of y - f; without noise nothing is drawn."""
        return math.sqrt(self.noise_var) * rng.standard_normal(shape) if self.noise_var > 0.0 else 0.0


@dataclass(frozen=True, eq=False)
class Parts:
    """sum_j w_j N(centre + offset_j, var_j) at each of some rows; without offsets all parts are at the centre.

    `centre` is [rows], `var` and `offset` are [rows, parts], `log_weight` is [parts].
    """

    centre: Array
    var: Array
    log_weight: Array
    offset: Array | None = None

    @property
    def location(self) -> Array:
        """Means of the parts, or the one of all."""
        location: Array = self.centre[:, None]
        return location if self.offset is None else location + self.offset

    @property
    def weight(self) -> Array:
        """Weights of the parts."""
        return np.exp(self.log_weight)

    def _gap(self, y: Array) -> Array:
        """y - (centre + offset_j)."""
        gap = (y - self.centre)[:, None]
        return gap if self.offset is None else gap - self.offset

    def log_density(self, y: Array) -> Array:
        square = self._gap(y) ** 2 / self.var
        density: Array = logsumexp(self.log_weight - 0.5 * (np.log(2 * np.pi * self.var) + square), axis=1)
        return density

    def cdf(self, y: Array) -> Array:
        below: Array = ndtr(self._gap(y) / np.sqrt(self.var)) @ np.exp(self.log_weight)
        return below

    def crps(self, y: Array) -> Array:
        """y - Y has the parts N(gap_j, var_j), and Y - Y' the parts N(offset_i - offset_j, var_i + var_j)."""
        weight, pair_std = np.exp(self.log_weight), np.sqrt(self.var[:, :, None] + self.var[:, None, :])
        distance = mean_size(self._gap(y), np.sqrt(self.var)) @ weight
        if self.offset is None:
            # E|N(0, s^2)|/2 = s/sqrt(2 pi)
            half = pair_std @ weight @ weight / math.sqrt(2.0 * math.pi)
        else:
            half = 0.5 * mean_size(self.offset[:, :, None] - self.offset[:, None, :], pair_std) @ weight @ weight
        crps: Array = distance - half
        return crps

    def quantiles(self, levels: Array) -> Array:
        """Only the upper half is searched: below the median it is the upper half of the mirrored mixture."""
        std, weight = np.sqrt(self.var), np.exp(self.log_weight)
        offset = np.zeros((1, 1)) if self.offset is None else self.offset
        out = np.empty((len(self.centre), len(levels)))
        for k, level in enumerate(levels):
            side = 1.0 if level >= 0.5 else -1.0
            out[:, k] = self.centre + side * _upper_quantile(side * offset, std, weight, max(level, 1.0 - level))
        return out


class GaussianMixture(ABC):
    """What is asked of any forecast with a Gaussian mixture a row, in chunks of rows that keep memory bounded."""

    mean: Array

    @abstractmethod
    def parts(self, rows: slice) -> Parts:
        """The mixture at some of the rows."""

    def interval(self, coverage: float) -> tuple[Array, Array]:
        return _ends(self, coverage)

    def quantiles(self, q: ArrayLike) -> Array:
        levels = checked_levels(q)
        return by_chunks(lambda rows: self.parts(rows).quantiles(levels), np.empty((len(self.mean), len(levels))))

    def log_density(self, y: ArrayLike) -> Array:
        target = checked_targets(y, self.mean)
        return by_chunks(lambda rows: self.parts(rows).log_density(target[rows]), np.empty_like(self.mean))

    def cdf(self, y: ArrayLike) -> Array:
        target = checked_targets(y, self.mean)
        return by_chunks(lambda rows: self.parts(rows).cdf(target[rows]), np.empty_like(self.mean))

    def crps(self, y: ArrayLike) -> Array:
        target = checked_targets(y, self.mean)
        return by_chunks(lambda rows: self.parts(rows).crps(target[rows]), np.empty_like(self.mean), PAIR_ROWS)


@dataclass(frozen=True, eq=False)
class NoiseMixture(GaussianMixture):
    """y given (f, g) is N(f, exp(g)), with Gaussian f and log noise variance g.

        p(y) = integral of N(y; mean, f_var + exp(g)) N(g; g_mean, g_var) dg     (001 eq. 17)

    Mean and variance are closed forms. Density, distribution, quantiles and samples are those of the mixture itself,
    not of the Gaussian with its moments.
    """

    mean: Array
    f_var: Array
    g_mean: Array
    g_var: Array

    @property
    def latent(self) -> Gaussian:
        return Gaussian(self.mean, self.f_var)

    @property
    def noise_var(self) -> Array:
        """E exp(g)."""
        mean: Array = np.exp(self.g_mean + 0.5 * self.g_var)
        return mean

    @property
    def var(self) -> Array:
        return self.f_var + self.noise_var

    @property
    def std(self) -> Array:
        return np.sqrt(self.var)

    @property
    def f_std(self) -> Array:
        return np.sqrt(self.f_var)

    @property
    def noise_std(self) -> Array:
        return np.sqrt(self.noise_var)

    def parts(self, rows: slice) -> Parts:
        """One part for each node of a Gauss-Hermite rule over g; a single one where g is known."""
        if not self.g_var.any():
            return Parts(self.mean[rows], self.var[rows, None], np.zeros(1))
        g = self.g_mean[rows, None] + np.sqrt(self.g_var[rows, None]) * NODES
        return Parts(self.mean[rows], self.f_var[rows, None] + np.exp(g), LOG_WEIGHTS)

    def sample(self, n: int, rng: Generator) -> Array:
        draws = self.latent.sample(n, rng)
        return draws + self.noise_sample((len(self.mean), n), rng)

    def noise_sample(self, shape: tuple[int, int], rng: Generator) -> Array:
        """Draws of y - f, each with its own draw of g."""
        g = self.g_mean[:, None] + np.sqrt(self.g_var)[:, None] * rng.standard_normal(shape)
        noise: Array = np.exp(0.5 * g) * rng.standard_normal(shape)
        return noise


@dataclass(frozen=True, eq=False)
class Joint:
    """f at all rows together, and the forecast of each of them; the noise is independent from row to row."""

    rows: Predictive
    f_cov: Array

    @classmethod
    def of(cls, rows: "Gaussian | NoiseMixture", f_cov: Array) -> "Joint":
        """With a covariance as it was computed. It becomes one, with the variances of the rows on its diagonal."""
        require_numbers(rows.mean, rows.var)
        if not np.isfinite(f_cov).all():
            raise InputError(
                "The joint covariance of these rows cannot be computed in double precision: some are nearly equal to "
                "rows of the fit with hardly any noise. Ask for return_std, or for fewer of these rows at once."
            )
        return cls(rows, as_covariance(f_cov, rows.f_var))

    @property
    def latent(self) -> "Joint":
        return Joint(self.rows.latent, self.f_cov)

    @property
    def mean(self) -> Array:
        return self.rows.mean

    @property
    def cov(self) -> Array:
        """Covariance of y at all rows."""
        cov: Array = self.f_cov + self.rows.noise_var * np.eye(len(self.f_cov))
        return cov

    def sample(self, n: int, rng: Generator) -> Array:
        """Draws of y at all rows together [rows, n]."""
        values, vectors = np.linalg.eigh(self.f_cov)
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        draws: Array = self.mean[:, None] + root @ rng.standard_normal((len(self.mean), n))
        return draws + self.rows.noise_sample((len(self.mean), n), rng)


def as_covariance(matrix: Array, var: Array) -> Array:
    """The positive semi-definite matrix with the diagonal `var` that has the correlations of `matrix`.

    Differences of nearly equal numbers leave errors the size of the prior's last digits, and variances may be smaller
    than that. What is negative then is lifted to zero; the variances are those of the rows one by one, which are safe.
    """
    matrix = 0.5 * (matrix + matrix.T)
    tolerance = TRACE_TOLERANCE * max(float(np.trace(matrix)), 0.0)
    lifted = matrix + _lift(matrix, tolerance) * np.eye(len(matrix))
    own = lifted.diagonal()
    # Never stretched, which would stretch what rounding left too: what a diagonal lacks is added to it alone.
    scale = np.sqrt(np.divide(var, own, out=np.zeros_like(var), where=own > 0.0).clip(max=1.0))
    cov: Array = np.outer(scale, scale) * lifted
    cov[np.diag_indices_from(cov)] = var
    return cov


def _lift(matrix: Array, tolerance: float) -> float:
    """What the diagonal needs so that no direction has a negative variance: nothing, if that is only rounding."""
    if matrix.diagonal().min(initial=np.inf) > 0.0:
        try:
            np.linalg.cholesky(matrix + tolerance * np.eye(len(matrix)))
        except np.linalg.LinAlgError:
            pass
        else:
            return 0.0
    return max(tolerance - float(np.linalg.eigvalsh(matrix).min(initial=0.0)), 0.0)


def _upper_quantile(offset: Array, std: Array, weight: Array, level: float) -> Array:
    """t with sum_j w_j Phi((t - offset_j)/s_j) = level >= 1/2, row by row: Newton steps kept in a shrinking bracket."""
    z = float(ndtri(level))
    ends = offset + z * std
    low, high = ends.min(axis=1), ends.max(axis=1)
    t = _moment_guess(offset, std, weight, z).clip(low, high)
    for _ in range(ROOT_STEPS):
        scaled = (t[:, None] - offset) / std
        # in the upper tail 1 - Phi keeps its digits where Phi does not
        excess = (1.0 - level) - ndtr(-scaled) @ weight
        low, high = np.where(excess < 0.0, t, low), np.where(excess > 0.0, t, high)
        slope = (np.exp(-0.5 * scaled**2) / std) @ weight / np.sqrt(2.0 * np.pi)
        # between parts far apart there is hardly any slope: the step leaves the bracket, which is halved instead
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            newton = t - excess / slope
        inside = (newton >= low) & (newton <= high)
        moved = np.where(inside, newton, 0.5 * (low + high))
        done = np.abs(moved - t) <= ROOT_TOLERANCE * np.maximum(np.abs(low), np.abs(high))
        t = moved
        if done.all():
            break
    return t


def _moment_guess(offset: Array, std: Array, weight: Array, z: float) -> Array:
    """The quantile of the Gaussian with the moments of the mixture."""
    middle = (offset + np.zeros_like(std)) @ weight
    guess: Array = middle + z * np.sqrt((std**2 + (offset - middle[:, None]) ** 2) @ weight)
    return guess


def mean_size(mean: Array, std: Array) -> Array:
    """E|N(mean, std^2)| = mean (2 Phi(z) - 1) + 2 std phi(z) with z = mean/std."""
    z = mean / std
    size: Array = mean * (2.0 * ndtr(z) - 1.0) + 2.0 * std * (np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi))
    return size


def by_chunks(answer: Callable[[slice], Array], out: Array, rows_at_once: int = CHUNK_ROWS) -> Array:
    for start in range(0, len(out), rows_at_once):
        rows = slice(start, start + rows_at_once)
        out[rows] = answer(rows)
    return out


def _ends(forecast: Gaussian | GaussianMixture, coverage: float) -> tuple[Array, Array]:
    ends = forecast.quantiles(checked_coverage(coverage))
    return ends[:, 0], ends[:, 1]


def require_numbers(mean: Array, var: Array | None = None) -> None:
    """No answer is NaN or infinite: whoever asked learns why instead."""
    usable = np.isfinite(mean) if var is None else np.isfinite(mean) & np.isfinite(var)
    if not usable.all():
        row = int(np.flatnonzero(~usable)[0])
        spread = "" if var is None else f", variance {var[row]:g}"
        raise InputError(
            f"The prediction of row {row} is not a finite number (mean {mean[row]:g}{spread}): its "
            "inputs are too far from the rows of the fit, or the model file was altered. Look at this row of X."
        )


def root(var: Array) -> Array:
    """Standard deviations of variances that are variances."""
    if (var >= 0).all():
        return np.sqrt(var)
    raise NegativeVarianceError(
        f"{int((var < 0).sum())} of {len(var)} predictive variances are negative (lowest {var.min():.3g}): the "
        "Nystrom approximation is not a probability model. Look at them with return_cov=True, clip them with "
        "clip_variances=True, or use approximation='dtc', its proper relative."
    )
