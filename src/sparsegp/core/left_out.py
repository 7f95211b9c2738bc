"""Leave-one-out predictions in closed form: what a model says of a row when it has all the others.

Hyper-parameters, inducing inputs and blocks stay as they are. A row of weight w leaves with all its weight.

Given the other rows of its block, row i adds information of low rank to u. For component j of the block precision
V^-1 = sum_j a_j P_j, with P_j = V_j^-1,

    g_ij = sqrt(a_j) (P_j W)_i / sqrt(P_j,ii),     t_ij = sqrt(a_j) (P_j y)_i / sqrt(P_j,ii),     B_-i = B - G_i G_i^T,

so with S = B^-1 a row that is f_i = c_i + b_i^T u + (residual of variance r_i) has

    mean_-i = c_i + b_i^T m + x^T (I - H)^-1 (G_i^T m - t_i),      var_-i = r_i + b_i^T S b_i + x^T (I - H)^-1 x,

where H = G_i^T S G_i and x = G_i^T S b_i. Models that predict from u have b_i = w_i and c_i = 0. PIC conditions on the
rest of the block: b_i = (P W)_i/P_ii, c_i = y_i - (P y)_i/P_ii, r_i = 1/P_ii - noise_i.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from operator import add

import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.core import noise_model
from sparsegp.core.approximations import TestConditional
from sparsegp.core.block import CHUNK_ROWS, Block, MemoryRows
from sparsegp.core.dense import ExactPosterior, NystromPosterior, row_noise
from sparsegp.core.posterior import SMALLEST_VARIANCE, InducingPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics, repeated_noise
from sparsegp.errors import InputError

SAME_ROWS = {torch.float64: 1e-6, torch.float32: 1e-3}
"""By how much sums over the same rows may differ, relative to their size."""
OTHER_ROWS = (
    "These are not the rows of the model: {what}. Give exactly the rows that the model holds, as they were given to "
    "it, with their noise_var, sample_weight and blocks."
)
LEAST_SHARE = 1e-15


@dataclass(frozen=True)
class LeftOut:
    """Of each row, without the row itself: mean and variance of f; and its noise variance and target.

    All in the scaling of the model and in float64.
    """

    mean: Tensor
    f_var: Tensor
    noise: Tensor
    y: Tensor

    @classmethod
    def concat(cls, parts: Sequence["LeftOut"]) -> "LeftOut":
        columns = ([getattr(part, name) for part in parts] for name in ("mean", "f_var", "noise", "y"))
        return cls(*map(torch.cat, columns))

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def var(self) -> Tensor:
        """Variance of y."""
        return self.f_var + self.noise

    def take(self, index: Tensor) -> "LeftOut":
        return LeftOut(self.mean[index], self.f_var[index], self.noise[index], self.y[index])

    def unsorted(self, serials: Tensor | None) -> "LeftOut":
        """In the order of the serial numbers of the rows (None: they were not sorted)."""
        return self if serials is None else self.take(serials.argsort())


@dataclass(frozen=True)
class LeftOutPass:
    """What a pass has found, in the order of its rows, and sums that tell whether these are the rows of a model."""

    parts: tuple[LeftOut, ...]
    shift: Tensor
    target_sq: float
    n_rows: float

    def __add__(self, other: "LeftOutPass") -> "LeftOutPass":
        return LeftOutPass(
            self.parts + other.parts,
            self.shift + other.shift,
            self.target_sq + other.target_sq,
            self.n_rows + other.n_rows,
        )

    @property
    def left_out(self) -> LeftOut:
        return LeftOut.concat(self.parts)

    def require_rows_of(self, held: BlockStatistics, dtype: torch.dtype) -> None:
        """An error unless the rows of the pass are those of the statistics."""
        tolerance = SAME_ROWS[dtype]
        if not math.isclose(self.n_rows, held.n_rows, rel_tol=tolerance):
            what = f"they count {self.n_rows:,.6g}, with their weights, and the model holds {held.n_rows:,.6g}"
            raise InputError(OTHER_ROWS.format(what=what))
        same_targets = math.isclose(self.target_sq, held.target_sq, rel_tol=tolerance)
        # |shift|^2 <= |precision| target_sq: the size it could have
        size = math.sqrt(float(held.precision.diagonal().max()) * max(held.target_sq, 0.0))
        if not same_targets or float((self.shift - held.shift).norm()) > tolerance * size:
            what = "inputs, targets, noise, weights or blocks differ, or the rows of the model have faded"
            raise InputError(OTHER_ROWS.format(what=what))


@dataclass(frozen=True)
class LeftOutOfRows:
    """Task of a pass: every row left out of q, which is the posterior of all of them."""

    prior: SparsePrior
    q: InducingPosterior

    def __call__(self, rows: MemoryRows) -> LeftOutPass:
        groups = list(rows.groups(self.prior.approx.by_block))
        n = parallel.n_workers(None, len(groups))
        cuts = [len(groups) * k // n for k in range(n + 1)]
        parts = [groups[a:b] for a, b in pairwise(cuts)]
        return reduce(add, parallel.run([partial(self._of_groups, part) for part in parts]))

    def _of_groups(self, groups: Iterable[Block]) -> LeftOutPass:
        none = torch.zeros(0, dtype=torch.float64)
        parts, shift, target_sq, n_rows = [LeftOut(none, none, none, none)], torch.zeros_like(self.q.mean), 0.0, 0.0
        for group in groups:
            found = left_out_of_group(self.prior, self.q, group)
            parts += found.parts
            shift, target_sq, n_rows = shift + found.shift, target_sq + found.target_sq, n_rows + found.n_rows
        return LeftOutPass((LeftOut.concat(parts),), shift, target_sq, n_rows)


@dataclass(frozen=True)
class _Group:
    """Rows as the formulas above see them, with W and b multiplied by LB^-1 first, so that S is the identity.

    `information` has G_i and t_i of each component, row by row.
    """

    b: Tensor
    offset: Tensor | float
    residual: Tensor
    information: Sequence[tuple[Tensor, Tensor]]
    weighted_target: Tensor


@torch.no_grad()
def left_out_of_group(prior: SparsePrior, q: InducingPosterior, block: Block) -> LeftOutPass:
    """Each row of a block, or of a chunk where rows are independent given u. Memory O(b M + b^2)."""
    W, y, LB = prior.features(block.X), block.y.to(torch.float64), q.LB.factor
    group = (_seen_together if prior.approx.by_block else _seen_apart)(prior, block, W, LB)
    W64, mean = W.to(torch.float64), LB.mT @ q.mean
    x = torch.stack([linalg.row_dots(G, group.b) for G, _ in group.information], dim=1)
    gap = torch.stack([G @ mean - t for G, t in group.information], dim=1)
    gain = linalg.solve_each(_left(group.information), x)
    spread = linalg.row_squares(group.b) + linalg.row_dots(gain, x)
    # without the row the posterior is still no wider than the prior, whatever the rounding
    spread = torch.minimum(spread, linalg.row_squares(group.b @ LB.mT))
    floor = SMALLEST_VARIANCE * prior.kernel.diagonal(block.X).to(torch.float64)
    found = LeftOut(
        group.offset + group.b @ mean + linalg.row_dots(gain, gap),
        torch.maximum(group.residual + spread, floor),
        prior.row_noise(block).to(torch.float64),
        y,
    )
    target = group.weighted_target
    return LeftOutPass((found,), W64.mT @ target, float(y @ target), block.n_rows)


def _left(information: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """I - H of each row: what it leaves of the precision in the directions of G."""
    G = torch.stack([part for part, _ in information], dim=1)
    left = (G @ G.mT).neg_()
    left.diagonal(dim1=1, dim2=2).add_(1.0 + LEAST_SHARE)
    return left


def _seen_apart(prior: SparsePrior, block: Block, W: Tensor, LB: Tensor) -> _Group:
    """Rows that are independent given u: P is diagonal, whatever the components."""
    y, noise = block.y.to(torch.float64), prior.row_noise(block).to(torch.float64)
    d = prior.residual_diag(block.X, W).to(torch.float64)
    precision = block.weights.to(torch.float64) / noise_model.point_variance(prior.approx, d, noise)
    b, root = linalg.whiten_rows(W.to(torch.float64), LB), precision.sqrt()
    return _Group(b, 0.0, _test_residual(prior, d), [(b * root[:, None], y * root)], precision * y)


def _seen_together(prior: SparsePrior, block: Block, W: Tensor, LB: Tensor) -> _Group:
    y, D = block.y.to(torch.float64), prior.residual_block(block.X, W)
    noise, weight = repeated_noise(prior, block)
    b, weighted, information = linalg.whiten_rows(W.to(torch.float64), LB), torch.zeros_like(y), []
    precisions = noise_model.component_precisions(prior.approx, D, noise, weight)
    for part, P in zip(prior.approx.components, precisions, strict=True):
        scale = (part.weight / P.diagonal()).sqrt()
        information.append(((P @ b) * scale[:, None], (P @ y) * scale))
        weighted += part.weight * (P @ y)
    if not prior.approx.is_local:
        return _Group(b, 0.0, _test_residual(prior, D.diagonal()), information, weighted)
    # PIC has a single component
    ((G, t),), (P,) = information, precisions
    own = P.diagonal().sqrt()
    residual = (own.square().reciprocal() - noise).clamp_min(0.0)
    return _Group(G / own[:, None], y - t / own, residual, information, weighted)


def _test_residual(prior: SparsePrior, d: Tensor) -> Tensor:
    return torch.zeros_like(d) if prior.approx.test is TestConditional.DETERMINISTIC else d


# Models without statistics: C^-1 of the rows themselves


@torch.no_grad()
def left_out_of_exact(posterior: ExactPosterior, block: Block, noise_var: Tensor) -> tuple[LeftOut, Tensor]:
    """mean_-i = y_i - [C^-1 y]_i/[C^-1]_ii, var_-i = 1/[C^-1]_ii - noise_i; and which rows the posterior rests on.

    Of the others, if the posterior is that of a subset, the answer is its prediction.
    """
    _, _, single = row_noise(block, noise_var)
    places, y = _places(posterior, block, noise_var), block.y.to(torch.float64)
    mean, f_var = torch.empty_like(y), torch.empty_like(y)
    mean[places], f_var[places] = _own_left_out(posterior, y[places])
    held = torch.zeros(len(y), dtype=torch.bool)
    held[places] = True
    if not bool(held.all()):
        mean[~held], f_var[~held] = posterior.marginals(block.X[~held])
    return LeftOut(mean, f_var, single, y), held


@torch.no_grad()
def left_out_within(posterior: ExactPosterior, block: Block, noise_var: Tensor) -> LeftOut:
    """The same where the posterior rests on exactly these rows, in this order."""
    _, _, single = row_noise(block, noise_var)
    y = block.y.to(torch.float64)
    return LeftOut(*_own_left_out(posterior, y), single, y)


def _own_left_out(posterior: ExactPosterior, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of f at the rows of the posterior, whose targets are y."""
    precision = posterior.precision().diagonal()
    prior_var = posterior.kernel.diagonal(posterior.X)
    var = precision.reciprocal() - (posterior.diagonal - prior_var)
    return y - posterior.alpha / precision, torch.maximum(var, SMALLEST_VARIANCE * prior_var)


def _places(posterior: ExactPosterior, block: Block, noise_var: Tensor) -> Tensor:
    """Which of the rows each row of the posterior is. Equal rows are taken in their order."""
    noise, _, _ = row_noise(block, noise_var)
    X = block.X.to(torch.float64)
    C, alpha = posterior.C.factor, posterior.alpha
    targets = C @ (C.mT @ alpha)
    if posterior.beside is not None:
        targets += posterior.beside.trend.features(posterior.X) @ posterior.beside.mean
    slack = SAME_ROWS[block.X.dtype] * float(targets.abs().max()) + 1e-13 * float(
        posterior.diagonal.max() * alpha.norm()
    )
    diagonal = posterior.kernel.diagonal(X) + noise
    wanted: dict[bytes, list[int]] = {}
    for k, x in enumerate(posterior.X.cpu().numpy()):
        wanted.setdefault(x.tobytes(), []).append(k)
    places = torch.full((len(targets),), -1)
    for i, x in enumerate(X.cpu().numpy()):
        for k in wanted.get(x.tobytes(), ()):
            same = abs(float(targets[k] - block.y[i])) <= slack
            if places[k] < 0 and same and math.isclose(diagonal[i], posterior.diagonal[k], rel_tol=1e-6):
                places[k] = i
                break
    if bool((places < 0).any()):
        what = f"{int((places < 0).sum())} of the {len(places)} rows that it rests on are not among these {len(block)}"
        raise InputError(OTHER_ROWS.format(what=what))
    return places


@torch.no_grad()
def left_out_of_nystrom(posterior: NystromPosterior, block: Block) -> LeftOut:
    """From C = Q + noise without row and column i, and the exact covariances k of row i with the others.

    With P = C^-1 = N - T T^T, beta = P y and k~ = k without its own entry, C_-i^-1 is P - P_i P_i^T/P_ii:

        mean_-i = k~ beta - (k~ P_i) beta_i/P_ii,     var_-i = k_ii - k~ P k~ + (k~ P_i)^2/P_ii.

    A trend is part of C and of k here.
    """
    prior, T, beta = posterior.prior, posterior.T, posterior.beta
    H = block.X.new_zeros(len(block), 0)
    if posterior.beside is not None:
        H = posterior.beside.trend.features(block.X)
        T = torch.cat([T, linalg.whiten_rows(posterior.beside.G, posterior.beside.A.factor)], dim=1)
    weight = 1.0 if block.weight is None else block.weight
    same = block.X.shape == posterior.X.shape and bool((block.X == posterior.X).all())
    tolerance = SAME_ROWS[block.X.dtype]
    if not same or not torch.allclose(weight / prior.row_noise(block), posterior.inverse_noise, rtol=tolerance):
        raise InputError(OTHER_ROWS.format(what="inputs, noise or weights differ, or their order"))
    rest = NystromPosterior.build(prior, block, posterior.q).beta
    if float((rest - beta).norm()) > tolerance * float((posterior.inverse_noise * block.y).norm()):
        raise InputError(OTHER_ROWS.format(what="targets differ"))
    means, variances = [], []
    for start in range(0, len(block), CHUNK_ROWS):
        own = torch.arange(start, min(start + CHUNK_ROWS, len(block)))
        K = prior.kernel(block.X[own], block.X) + H[own] @ H.mT
        prior_var = prior.kernel.diagonal(block.X[own]) + linalg.row_squares(H[own])
        K[torch.arange(len(own)), own] = 0.0
        KT = K @ T
        cross, precision = -linalg.row_dots(KT, T[own]), posterior.inverse_noise[own] - linalg.row_squares(T[own])
        explained = linalg.row_dots(K * posterior.inverse_noise, K) - KT.square().sum(1) - cross.square() / precision
        means.append(K @ beta - cross * beta[own] / precision)
        variances.append(posterior.clipped(prior_var - explained, prior_var))
    columns = torch.cat(means), torch.cat(variances), prior.row_noise(block), block.y
    return LeftOut(*(column.to(torch.float64) for column in columns))
