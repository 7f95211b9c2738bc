"""What one mini-batch adds to the natural parameters of u and to their derivatives (003 appendix C).

Coordinates: u = L0 v, where L0 is the factor of Kuu at the start of the epoch; while the parameters are held these are
the whitened ones. A row has the features w = L0^T Kuu^-1 k_u. Derivation: docs/derivations/srgp.md.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from papers.carried_srgp.kernel_tangents import KernelTangents, make_tangents
from sparsegp import linalg
from sparsegp.core import noise_model
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.learn.hyperparameters import Hyperparameters


@dataclass(frozen=True)
class Gradient:
    """Derivatives by log noise variance and kernel parameters (`shared`, in that order) and by U (`inducing`)."""

    shared: Tensor
    inducing: Tensor

    def __add__(self, other: "Gradient") -> "Gradient":
        return Gradient(self.shared + other.shared, self.inducing + other.inducing)

    def __sub__(self, other: "Gradient") -> "Gradient":
        return Gradient(self.shared - other.shared, self.inducing - other.inducing)


@dataclass(frozen=True)
class Directions:
    """The parameters that derivatives are taken by: those of the kernel, the noise, and (n_dims > 0) all of U."""

    approx: Approximation
    tangents: KernelTangents
    learns_noise: bool
    n_dims: int

    @classmethod
    def build(cls, hyper: Hyperparameters, approx: Approximation, *, learns_noise: bool) -> "Directions":
        tangents = make_tangents(hyper.kernel, hyper.inducing.detach())
        return cls(approx, tangents, learns_noise, hyper.inducing.shape[1] if hyper.inducing.requires_grad else 0)

    @property
    def n_shared(self) -> int:
        return self.tangents.n_shared

    @property
    def n_tangents(self) -> int:
        return self.n_shared + self.n_dims

    @property
    def n_spread(self) -> int:
        """Parameters that change the noise of a row: the noise variance, and with a residual those of the kernel."""
        return 1 + (self.n_shared if self.approx.keeps_residual else 0)

    def inducing_columns(self, prior: SparsePrior) -> Tensor:
        """D_t with dKuu = D_t + D_t^T: half of dKuu for kernel parameters; for u_jq only column j of D_q counts."""
        U = prior.inducing
        columns = U.new_empty(self.n_tangents, len(U), len(U))
        for t, tangent in enumerate(self.tangents.covariance(U, U, self.n_tangents)[1]):
            columns[t] = 0.5 * linalg.add_jitter(tangent, prior.Luu.jitter) if t < self.n_shared else tangent
        return columns

    def gradient(self, by_column: Tensor, n_dims: int) -> Gradient:
        """From derivatives by tangent and column: kernel parameters act on all columns, u_jq on column j."""
        shared = by_column.new_zeros(1 + self.n_shared)
        shared[1:] = by_column[: self.n_shared].sum(1)
        inducing = by_column[self.n_shared :].mT if self.n_dims else by_column.new_zeros(by_column.shape[1], n_dims)
        return Gradient(shared, inducing)


@dataclass(frozen=True)
class Sensitivities:
    """Natural parameters and their derivatives, additive over batches; s is the precision weight/v of a row.

    precision = sum w s w^T, shift = sum w s y; columns[t] = sum w s (dk_u/dt)^T and targets[t] = sum (dk_u/dt) s y for
    each tangent t of the kernel; spread[r] = sum w (ds/dr) w^T and pull[r] = sum w (ds/dr) y.
    """

    precision: Tensor
    shift: Tensor
    columns: Tensor
    targets: Tensor
    spread: Tensor
    pull: Tensor

    @classmethod
    def zero(cls, U: Tensor, directions: Directions) -> "Sensitivities":
        M, T, R = len(U), directions.n_tangents, directions.n_spread
        shapes = ((M, M), (M,), (T, M, M), (T, M), (R, M, M), (R, M))
        return cls(*(U.new_zeros(shape) for shape in shapes))

    def __add__(self, other: "Sensitivities") -> "Sensitivities":
        return Sensitivities(
            self.precision + other.precision,
            self.shift + other.shift,
            self.columns + other.columns,
            self.targets + other.targets,
            self.spread + other.spread,
            self.pull + other.pull,
        )

    def add_rows(self, W: Tensor, s: Tensor, y: Tensor) -> Tensor:
        """Add the natural parameters of some rows in place; gives s W."""
        sW = W * s[:, None]
        self.precision.addmm_(sW.mT, W)
        self.shift.addmv_(sW.mT, y)
        return sW

    def add_tangent(self, t: int, sW: Tensor, dK: Tensor, sy: Tensor) -> None:
        self.columns[t].addmm_(sW.mT, dK)
        self.targets[t].addmv_(dK.mT, sy)

    def add_spread(self, r: int, W: Tensor, ds: Tensor, y: Tensor) -> None:
        self.spread[r].addmm_((W * ds[:, None]).mT, W)
        self.pull[r].addmv_(W.mT, ds * y)


@dataclass(frozen=True)
class PointModel:
    """Rows with a residual: H = K Kuu^-1, s, and how s and the local part of J react to d and to the noise."""

    H: Tensor
    s: Tensor
    s_by_d: Tensor
    s_by_noise: Tensor
    local_by_d: Tensor
    local_by_noise: Tensor

    @classmethod
    def build(cls, prior: SparsePrior, inverse_L: Tensor, block: Block, K: Tensor) -> "PointModel":
        W = K @ inverse_L.mT
        noise, weight = prior.row_noise(block), row_weights(block)
        d = prior.residual_diag(block.X, W)
        v = noise_model.point_variance(prior.approx, d, noise)
        plain = replace(prior.approx, penalty=0.0)
        v_by_d, v_by_noise = noise_model.point_pullback(plain, d, noise, v, torch.ones_like(v))
        # local part: -(log v + y^2/v)/2 - a
        v_bar = 0.5 * (block.y.square() / v - 1.0) / v
        by_d, by_noise = noise_model.point_pullback(prior.approx, d, noise, v, v_bar)
        s_slope = -weight / v.square()
        clipped = d <= 0.0
        return cls(
            W @ inverse_L,
            weight / v,
            (s_slope * v_by_d).masked_fill_(clipped, 0.0),
            s_slope * v_by_noise,
            (weight * by_d).masked_fill_(clipped, 0.0),
            weight * by_noise,
        )


def row_weights(block: Block) -> Tensor:
    return torch.ones_like(block.y) if block.weight is None else block.weight


def in_double(block: Block) -> Block:
    """The block in float64: derivatives are sums of large terms that cancel."""
    optional = (None if value is None else value.to(torch.float64) for value in (block.noise_var, block.weight))
    return Block(block.X.to(torch.float64), block.y.to(torch.float64), *optional)


@dataclass(frozen=True)
class Linearization:
    """The model at the parameters of `prior` in the coordinates of the epoch, with dKuu = D_t + D_t^T.

    root = L0^-1 L, so that the precision of v under the prior is root root^T = L0^-1 Kuu L0^-T.
    """

    prior: SparsePrior
    inverse_L0: Tensor
    inverse_L: Tensor
    root: Tensor
    columns: Tensor

    @classmethod
    def build(cls, directions: Directions, prior: SparsePrior, inverse_L0: Tensor) -> "Linearization":
        L = prior.Luu.factor
        columns = directions.inducing_columns(prior)
        return cls(prior, inverse_L0, linalg.inverse_lower(L), inverse_L0 @ L, columns)

    @property
    def prior_precision(self) -> Tensor:
        return self.root @ self.root.mT


def batch_sensitivities(directions: Directions, here: Linearization, batch: Block) -> tuple[Sensitivities, Gradient]:
    """The batch's part of the natural parameters with their derivatives, and the gradient of its local part of J.

    The local part is log N(y; 0, V) - a.
    """
    return (_with_residual if directions.approx.keeps_residual else _without_residual)(directions, here, batch)


def _without_residual(directions: Directions, here: Linearization, batch: Block) -> tuple[Sensitivities, Gradient]:
    """SoR, DTC, VFE: d enters through the penalty rho s d/2 alone, whose sum follows from M x M matrices."""
    prior = here.prior
    part = Sensitivities.zero(prior.inducing, directions)
    total_weight, target_sq, own = 0.0, 0.0, prior.inducing.new_zeros(1 + directions.n_shared)
    for chunk in map(in_double, MemoryRows(batch).chunks()):
        K, tangents = directions.tangents.covariance(chunk.X, prior.inducing, directions.n_tangents)
        s = row_weights(chunk) / prior.row_noise(chunk)
        sW = part.add_rows(K @ here.inverse_L0.mT, s, chunk.y)
        for t, dK in enumerate(tangents):
            part.add_tangent(t, sW, dK, s * chunk.y)
        total_weight += chunk.n_rows
        target_sq += float(s @ chunk.y.square())
        if directions.approx.penalty:
            own[0] += s @ prior.kernel.diagonal(chunk.X).detach()
            own[1:] += directions.tangents.diagonal(chunk.X) @ s
    part.spread[0], part.pull[0] = -part.precision, -part.shift
    local = _penalty_slope(directions, here, part, own)
    local.shared[0] += 0.5 * (target_sq - total_weight)
    return part, local


def _penalty_slope(directions: Directions, here: Linearization, part: Sensitivities, own: Tensor) -> Gradient:
    """Gradient of -rho/2 sum s (k_ii - q_ii) from own = (sum s k_ii, sum s dk_ii) and the batch's matrices.

    With Q = L0^T Kuu^-1: sum s q_ii = <Q L0, S>, by column 2 <Q, T_t> - 2 <Q^T S Q, D_t>.
    """
    rho, n_dims = directions.approx.penalty, here.prior.inducing.shape[1]
    if not rho:
        return directions.gradient(torch.zeros_like(part.targets), n_dims)
    inverse_root = linalg.inverse_lower(here.root)
    Q = inverse_root.mT @ here.inverse_L
    by_column = torch.einsum("tij,ij->tj", part.columns, Q)
    by_column -= torch.einsum("tij,ij->tj", here.columns, Q.mT @ part.precision @ Q)
    local = directions.gradient(rho * by_column, n_dims)
    local.shared[0] += 0.5 * rho * (own[0] - (part.precision * (inverse_root.mT @ inverse_root)).sum())
    local.shared[1:] -= 0.5 * rho * own[1:]
    return local


def _with_residual(directions: Directions, here: Linearization, batch: Block) -> tuple[Sensitivities, Gradient]:
    """FITC, PEP and combinations: dd_i/dt = dk_ii - 2 h_i^T (dk_ui - D_t^T h_i) changes the noise of every row."""
    prior = here.prior
    part = Sensitivities.zero(prior.inducing, directions)
    by_column, shared = torch.zeros_like(part.targets), prior.inducing.new_zeros(1 + directions.n_shared)
    inner = torch.zeros_like(here.root)
    for chunk in map(in_double, MemoryRows(batch).chunks()):
        K, tangents = directions.tangents.covariance(chunk.X, prior.inducing, directions.n_tangents)
        model = PointModel.build(prior, here.inverse_L, chunk, K)
        W, own = K @ here.inverse_L0.mT, directions.tangents.diagonal(chunk.X)
        sW, sy, DH = part.add_rows(W, model.s, chunk.y), model.s * chunk.y, model.H * model.local_by_d[:, None]
        for t, dK in enumerate(tangents):
            part.add_tangent(t, sW, dK, sy)
            if t < directions.n_shared:
                dd = own[t] - 2.0 * linalg.row_dots(model.H, dK - model.H @ here.columns[t])
                part.add_spread(1 + t, W, model.s_by_d * dd, chunk.y)
                shared[1 + t] += model.local_by_d @ dd
            else:
                by_column[t] -= 2.0 * (DH * dK).sum(0)
        part.add_spread(0, W, model.s_by_noise * prior.noise_var, chunk.y)
        shared[0] += model.local_by_noise.sum() * prior.noise_var
        inner.addmm_(model.H.mT, DH)
    by_column[directions.n_shared :] += 2.0 * (here.columns[directions.n_shared :] * inner).sum(1)
    local = directions.gradient(by_column, prior.inducing.shape[1])
    return part, Gradient(local.shared + shared, local.inducing)
