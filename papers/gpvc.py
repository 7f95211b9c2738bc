"""GPVC: a sparse Bayesian model whose basis functions, each with a covariance of its own, serve f and the noise.

    phi_j(x) = exp(-|G_j (x - p_j)|^2 / 2),                 G_j: D x D
    y_i ~ N(phi(x_i)^T w, exp(g_i)),                        g_i = b + phi(x_i)^T u
    w_j ~ N(0, 1/alpha_j),                                  u_j ~ Student's t, of scale and freedom `NoisePrior`

The comparison of 001 (sec. I and VI) names it after its variable covariances; there it is the program at
https://github.com/OxfordML/GPz. w is integrated out, everything else is found by L-BFGS on

    J = log N(y; 0, Phi A^-1 Phi^T + R) + log p(u),         A = diag(alpha), R = diag(exp(g)).

One departure: that program maximises over u_j and the precision of its Gaussian prior together, which has no maximum
(u_j -> 0, precision -> infinity). Here the precision has a gamma prior and is integrated out: Student's t.

As in that program, rows held out choose among the iterations.

Gradient, with S = (A + Phi^T R^-1 Phi)^-1, w = S Phi^T R^-1 y, e = y - Phi w, v_i = phi_i^T S phi_i:

    dJ/dg_i = [(e_i^2 + v_i)/R_i - 1]/2,     dJ/dlog alpha_j = [1 - alpha_j (w_j^2 + S_jj)]/2
    bar Phi = R^-1 (e w^T - Phi S) + (dJ/dg) u^T,           T = bar Phi * Phi
    bar G_j = -G_j sum_i T_ij (x_i - p_j)(x_i - p_j)^T,     bar p_j = G_j^T G_j sum_i T_ij (x_i - p_j)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.block import CHUNK_ROWS
from sparsegp.core.inducing import kmeans_inducing
from sparsegp.errors import FactorizationError, InputError
from sparsegp.noise.process import limit_slope, limited

Array = NDArray[np.float64]
LOG_ALPHA = (-20.0, 20.0)
NOISE_LIMITS = (1e-6, 1e2)
"""Least and largest noise variance, as fractions of the variance of y: kept smoothly."""
FIRST_NOISE = 0.5


@dataclass(frozen=True)
class NoisePrior:
    """Gamma(shape, rate) of the precision of every noise weight u_j; without it, p(u) is Student's t.

    log p(u_j) = -(shape + 1/2) log(1 + u_j^2/(2 rate)), up to a constant.
    """

    shape: float = 1.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not (self.shape > 0.0 and self.rate > 0.0):
            raise InputError(f"shape and rate of a gamma prior must be positive; got {self.shape!r}, {self.rate!r}.")

    def log_density(self, u: Tensor) -> float:
        return -(self.shape + 0.5) * float(torch.log1p(u.square() / (2.0 * self.rate)).sum())

    def slope(self, u: Tensor) -> Tensor:
        return -(self.shape + 0.5) * u / (self.rate + 0.5 * u.square())


@dataclass(frozen=True)
class Parameters:
    """All that is learned; also the shape of a gradient."""

    centres: Tensor
    roots: Tensor
    log_alpha: Tensor
    noise_weights: Tensor
    noise_bias: Tensor

    def vector(self) -> Array:
        return np.concatenate([getattr(self, f.name).numpy().ravel() for f in fields(self)])

    def from_vector(self, vector: Array) -> "Parameters":
        """Those of a vector, in the shapes of these."""
        shapes = {f.name: getattr(self, f.name).shape for f in fields(self)}
        parts = np.split(vector, np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1])
        tensors = (torch.from_numpy(part.reshape(shapes[name])) for name, part in zip(shapes, parts, strict=True))
        return Parameters(*tensors)

    def bounds(self) -> list[tuple[float | None, float | None]]:
        boxes: dict[str, tuple[float | None, float | None]] = {
            "log_alpha": LOG_ALPHA,
            "noise_bias": (math.log(NOISE_LIMITS[0]), math.log(NOISE_LIMITS[1])),
        }
        return [boxes.get(f.name, (None, None)) for f in fields(self) for _ in range(getattr(self, f.name).numel())]

    def basis(self, X: Tensor) -> Tensor:
        """phi_j(x_i), from the quadratic form x^T Q x - 2 x^T Q p + p^T Q p with Q = G^T G."""
        Q = self.roots.mT @ self.roots
        Qp = torch.einsum("jde,je->jd", Q, self.centres)
        squares = squared_columns(X) @ _packed(Q).mT
        squares.addmm_(X, Qp.mT, alpha=-2.0).add_((Qp * self.centres).sum(1))
        return squares.clamp_min_(0.0).mul_(-0.5).exp_()


def squared_columns(X: Tensor) -> Tensor:
    """x_d x_e for d <= e: [n, D (D + 1)/2]."""
    d, e = torch.triu_indices(X.shape[1], X.shape[1])
    return X[:, d] * X[:, e]


def _packed(Q: Tensor) -> Tensor:
    """The entries of symmetric matrices that belong to `squared_columns`, those off the diagonal twice."""
    d, e = torch.triu_indices(Q.shape[1], Q.shape[1])
    return Q[:, d, e] * torch.where(d == e, 1.0, 2.0).to(Q)


def _unpacked(packed: Tensor, n_dims: int) -> Tensor:
    """Symmetric matrices from sums of `squared_columns`."""
    d, e = torch.triu_indices(n_dims, n_dims)
    full = packed.new_zeros(len(packed), n_dims, n_dims)
    full[:, d, e] = packed
    full[:, e, d] = packed
    return full


@dataclass(frozen=True)
class Weights:
    """p(w | y): mean, and S = (A^-1/2) B^-1 (A^-1/2) with B = I + A^-1/2 Phi^T R^-1 Phi A^-1/2."""

    mean: Tensor
    covariance: Tensor

    def latent(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f."""
        return features @ self.mean, linalg.row_dots(features @ self.covariance, features)


@dataclass(frozen=True)
class Objective:
    """J and its gradient; rows are visited by chunks, only the basis functions of all rows are kept."""

    X: Tensor
    y: Tensor
    prior: NoisePrior
    linear: bool

    def features(self, X: Tensor, basis: Tensor) -> Tensor:
        """Basis functions, and where the mean has a linear part 1 and the columns of X."""
        return torch.cat([basis, X, torch.ones_like(X[:, :1])], dim=1) if self.linear else basis

    def _chunks(self, basis: Tensor) -> list[tuple[slice, Tensor]]:
        starts = range(0, len(self.y), CHUNK_ROWS)
        parts = [slice(start, start + CHUNK_ROWS) for start in starts]
        return [(part, basis[part]) for part in parts]

    def infer(self, parameters: Parameters, basis: Tensor) -> tuple[Weights, float]:
        """The weights, and log N(y; 0, Phi A^-1 Phi^T + R)."""
        scale = (-0.5 * parameters.log_alpha).exp()
        B = torch.eye(len(scale), dtype=torch.float64)
        shift, fixed = torch.zeros_like(scale), len(self.y) * math.log(2.0 * math.pi)
        for part, phi in self._chunks(basis):
            log_noise = noise_of(parameters, phi)
            root = (-0.5 * log_noise).exp()
            scaled, target = self.features(self.X[part], phi) * root[:, None] * scale, root * self.y[part]
            B.addmm_(scaled.mT, scaled)
            shift.addmv_(scaled.mT, target)
            fixed += float(log_noise.sum() + target @ target)
        LB = linalg.cholesky(B, name="posterior precision of the weights", smallest_pivot=0.0)
        inverse = linalg.inverse_from_cholesky(LB.factor)
        mean = inverse @ shift
        evidence = -0.5 * (fixed + float(LB.logdet) - float(shift @ mean))
        return Weights(scale * mean, scale[:, None] * inverse * scale), evidence

    def value(self, parameters: Parameters) -> float:
        return self.value_and_gradient(parameters)[0]

    def value_and_gradient(self, parameters: Parameters) -> tuple[float, Parameters]:
        basis = parameters.basis(self.X)
        weights, evidence = self.infer(parameters, basis)
        n_basis, n_dims = parameters.centres.shape
        u, w = parameters.noise_weights, weights.mean
        by_u, by_bias = self.prior.slope(u), torch.zeros((), dtype=torch.float64)
        sums, first = u.new_zeros(n_basis), u.new_zeros(n_basis, n_dims)
        second = u.new_zeros(n_basis, n_dims * (n_dims + 1) // 2)
        for part, phi in self._chunks(basis):
            X = self.X[part]
            features, log_noise = self.features(X, phi), noise_of(parameters, phi)
            inverse_noise, spread = (-log_noise).exp(), features @ weights.covariance
            error = self.y[part] - features @ w
            squares = error.square() + linalg.row_dots(spread, features)
            by_g = 0.5 * (squares * inverse_noise - 1.0) * limit_slope(raw_noise(parameters, phi), NOISE_LIMITS)
            by_u, by_bias = by_u + phi.mT @ by_g, by_bias + by_g.sum()
            T = torch.outer(error, w[:n_basis]).sub_(spread[:, :n_basis]).mul_(inverse_noise[:, None])
            T.addr_(by_g, u).mul_(phi)
            sums, first = sums + T.sum(0), first + T.mT @ X
            second = second + T.mT @ squared_columns(X)
        by_alpha = 0.5 * (1.0 - parameters.log_alpha.exp() * (w.square() + weights.covariance.diagonal()))
        by_centres, by_roots = _by_shapes(parameters, sums, first, _unpacked(second, n_dims))
        gradient = Parameters(by_centres, by_roots, by_alpha, by_u, by_bias)
        return evidence + self.prior.log_density(u), gradient


def _by_shapes(parameters: Parameters, sums: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of p and G from sum T, sum T x and sum T x x^T of every basis function."""
    p, G = parameters.centres, parameters.roots
    centred = first - sums[:, None] * p
    moved = torch.einsum("jd,je->jde", centred, p)
    moments = second - moved - moved.mT - sums[:, None, None] * torch.einsum("jd,je->jde", p, p)
    return torch.einsum("jde,je->jd", G.mT @ G, centred), -G @ moments


def raw_noise(parameters: Parameters, basis: Tensor) -> Tensor:
    """g = b + phi^T u."""
    return parameters.noise_bias + basis @ parameters.noise_weights


def noise_of(parameters: Parameters, basis: Tensor) -> Tensor:
    """Log noise variance, kept inside its limits."""
    return limited(raw_noise(parameters, basis), NOISE_LIMITS)


def starting_parameters(X: Tensor, n_basis: int, linear: bool, rng: np.random.Generator) -> Parameters:
    """Centres by k-means; round basis functions, narrower the more there are of them; constant noise."""
    centres = kmeans_inducing(X, n_basis, rng).to(torch.float64)
    n_basis, n_dims = centres.shape
    squares = X.square().sum(1).mean() - 2.0 * centres @ X.mean(0) + centres.square().sum(1)
    width = (2.0 * n_basis ** (1.0 / n_dims) / squares.clamp_min(1e-6)).sqrt()
    roots = width[:, None, None] * torch.eye(n_dims, dtype=torch.float64)
    n_weights = n_basis + (n_dims + 1 if linear else 0)
    zeros = torch.zeros(n_weights, dtype=torch.float64)
    bias = torch.tensor(math.log(FIRST_NOISE), dtype=torch.float64)
    return Parameters(centres, roots, zeros, zeros[:n_basis].clone(), bias)


Judge = Callable[[Parameters], float]
"""How good parameters are for rows that learning does not see."""


def maximize(
    objective: Objective, start: Parameters, max_iterations: int, judge: Judge | None = None
) -> tuple[Parameters, int]:
    """L-BFGS inside the box; points where nothing can be factorised count as very bad.

    The parameters are those of the last iteration, or of the one that the judge likes best.
    """
    best = (-math.inf if judge is None else judge(start)), start

    def remember(vector: Array) -> None:
        nonlocal best
        parameters = start.from_vector(vector.copy())
        value = math.inf if judge is None else judge(parameters)
        if value >= best[0]:
            best = value, parameters

    def loss(vector: Array) -> tuple[float, Array]:
        try:
            value, gradient = objective.value_and_gradient(start.from_vector(vector))
        except FactorizationError:
            return math.inf, np.zeros_like(vector)
        return -value / len(objective.y), -gradient.vector() / len(objective.y)

    options = {"maxiter": max_iterations, "maxfun": 2 * max_iterations + 20}
    found = minimize(
        loss, start.vector(), jac=True, method="L-BFGS-B", bounds=start.bounds(), options=options, callback=remember
    )
    return best[1], int(found.nit)


def held_out(objective: Objective, fraction: float, rng: np.random.Generator) -> tuple[Objective, Judge | None]:
    """The objective of the other rows, and the mean log density of this fraction of them as a judge."""
    order = torch.from_numpy(rng.permutation(len(objective.y)))
    held, kept = order.split([round(fraction * len(order)), len(order) - round(fraction * len(order))])
    if len(held) == 0 or len(kept) == 0:
        return objective, None
    learned = replace(objective, X=objective.X[kept], y=objective.y[kept])
    X, y = objective.X[held], objective.y[held]

    def judge(parameters: Parameters) -> float:
        weights, _ = learned.infer(parameters, parameters.basis(learned.X))
        basis = parameters.basis(X)
        mean, var = weights.latent(learned.features(X, basis))
        var = var + noise_of(parameters, basis).exp()
        return -0.5 * float(((y - mean).square() / var + var.log()).mean())

    return learned, judge


class VariableCovarianceRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """GPVC of paper 001: basis functions with covariances of their own, shared by f and the log noise variance.

    Far from all basis functions the variance of f is that of its linear part alone, and the noise is exp(b): too sure.

    Parameters
    ----------
    n_basis : number of basis functions, m_b in the paper.
    linear_mean : whether f has a linear part besides (with prior precisions of its own).
    noise_prior : of the noise weights; None for `NoisePrior()`.
    max_iterations : of L-BFGS; the paper allows 100.
    held_fraction : of the rows, by which the best iteration is chosen: basis functions with shapes of their own come to
        fit the rows they see too closely. The weights are those of all rows. 0: the last iteration.
    random_state : of the k-means start.

    Attributes
    ----------
    parameters_ : what was learned, in standardised units.
    log_evidence_ : J at the end, in standardised units.
    n_iterations_ : of L-BFGS.
    """

    def __init__(
        self,
        n_basis: int = 100,
        linear_mean: bool = True,
        noise_prior: NoisePrior | None = None,
        max_iterations: int = 100,
        held_fraction: float = 0.1,
        random_state: Any = None,
    ) -> None:
        self.n_basis = n_basis
        self.linear_mean = linear_mean
        self.noise_prior = noise_prior
        self.max_iterations = max_iterations
        self.held_fraction = held_fraction
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        for name in ("n_basis", "max_iterations"):
            _require_count(name, getattr(self, name))
        if not 0.0 <= self.held_fraction < 1.0:
            raise InputError(f"held_fraction must be at least 0 and below 1; got {self.held_fraction!r}.")
        X_array, y_array = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        self._inputs, self._target = _Scaling.of(X_array), _Scaling.of(y_array)
        inputs, target = self._inputs.scaled(X_array), self._target.scaled(y_array)
        self._objective = Objective(inputs, target, self.noise_prior or NoisePrior(), self.linear_mean)
        start = starting_parameters(inputs, min(self.n_basis, len(inputs)), self.linear_mean, rng)
        learned, judge = held_out(self._objective, self.held_fraction, rng)
        self.parameters_, self.n_iterations_ = maximize(learned, start, self.max_iterations, judge)
        basis = self.parameters_.basis(inputs)
        self._weights, evidence = self._objective.infer(self.parameters_, basis)
        self.log_evidence_ = evidence + self._objective.prior.log_density(self.parameters_.noise_weights)
        self._objective = replace(self._objective, X=inputs[:0], y=target[:0])
        return self

    def predict_components(self, X: ArrayLike) -> tuple[Array, Array, Array]:
        """Mean, standard deviation of f and standard deviation of the noise."""
        check_is_fitted(self)
        inputs = self._inputs.scaled(validate_data(self, X, dtype=np.float64, reset=False))
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for part in inputs.split(CHUNK_ROWS):
            basis = self.parameters_.basis(part)
            mean, var = self._weights.latent(self._objective.features(part, basis))
            found.append((mean, var.clamp_min(0.0).sqrt(), (0.5 * noise_of(self.parameters_, basis)).exp()))
        means, latent_stds, noise_stds = (torch.cat(values).numpy() for values in zip(*found, strict=True))
        unit = self._target.scale
        return means * unit + self._target.shift, latent_stds * unit, noise_stds * unit

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, and its standard deviation (noise included)."""
        mean, latent_std, noise_std = self.predict_components(X)
        return (mean, np.hypot(latent_std, noise_std)) if return_std else mean

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """Of each target, under the Gaussian with the predicted moments."""
        mean, std = self.predict(X, return_std=True)
        values = np.asarray(y, dtype=np.float64)
        if values.shape != mean.shape:
            raise InputError(f"y needs one target for each row of X: expected shape {mean.shape}, got {values.shape}.")
        density: Array = -0.5 * ((values - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2.0 * math.pi)
        return density


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1; got {value!r}.")


@dataclass(frozen=True)
class _Scaling:
    """To mean 0 and variance 1; what does not vary keeps its unit."""

    shift: Any
    scale: Any

    @classmethod
    def of(cls, values: Array) -> "_Scaling":
        scale = np.asarray(values.std(axis=0))
        return cls(values.mean(axis=0), np.where(scale > 0.0, scale, 1.0))

    def scaled(self, values: Array) -> Tensor:
        return torch.from_numpy((values - self.shift) / self.scale)
