"""What rows in memory say about their noise: R_i dJ/dR_i with f eliminated, and the gradient for the parameters of g.

For every approximation lambda_i = R_i dJ/dR_i + weight_i/2 is half the expected squared error over the noise,
E(y_i - f_i)^2 / (2 R_i), or a sum of squares like it: never negative (docs/derivations/heteroscedastic.md, H3).

The gradient for kernel, inducing inputs and mean of g (derivations: H5) is

    bar W = slope m^T + lam (W - W P^-1),     bar k_ii = -lam/2,    bar mu0 = sum slope
    bar Kuu = -L^-T (sum W^T bar W) L^-1 / 2

At the optimum of q(g_u) nothing comes through q (envelope theorem). `bar Kuu` holds because the bound does not change
when g_u is replaced by G g_u.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate

import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.core import noise_model
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import Features, SparsePrior
from sparsegp.core.statistics import BlockStatistics, repeated_noise, whiten_block
from sparsegp.learn.adjoint import push_back
from sparsegp.learn.hyperparameters import Gradient, added
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.process import NoiseMoments, NoiseProcess, NoiseSlopes

SMALLEST_UNABSORBED = 1e-3


class GroupFeatures:
    """Features of groups of rows at one prior, which does not change: kept as far as `most_bytes` go."""

    def __init__(self, prior: SparsePrior, groups: list[Block], most_bytes: int) -> None:
        self.prior, self.groups = prior, groups
        used = accumulate(_n_bytes(prior, group) for group in groups)
        self._n_kept = sum(1 for total in used if total <= most_bytes)
        self._kept: dict[int, Features] = {}

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, k: int) -> Features:
        found = self._kept.get(k)
        if found is None:
            found = self.prior.seen(self.groups[k].X)
            if k < self._n_kept:
                self._kept[k] = found
        return found

    def __iter__(self) -> Iterator[Features]:
        return (self[k] for k in range(len(self)))

    def W(self, k: int, K: Tensor) -> Tensor:
        """W of group k, whose covariances with the inducing inputs are K."""
        return self._kept[k].W if k in self._kept else self.prior.features(self.groups[k].X, K)

    def placed(self) -> Iterator[tuple[slice, Tensor]]:
        """The place of each group among the rows, and its W."""
        start = 0
        for k, group in enumerate(self.groups):
            yield slice(start, start + len(group)), self[k].W
            start += len(group)


def _n_bytes(prior: SparsePrior, group: Block) -> int:
    columns = prior.n_features + (len(group) if prior.approx.by_block else 1)
    return group.X.element_size() * len(group) * columns


class RowFeatures:
    """Rows in memory with their features at the priors of f and of g, for as long as both priors are held."""

    def __init__(self, f_prior: SparsePrior, g_prior: SparsePrior, rows: MemoryRows, most_bytes: int) -> None:
        self.rows = rows
        self.f = GroupFeatures(f_prior, list(rows.groups(f_prior.approx.by_block)), most_bytes)
        self.g = GroupFeatures(g_prior, list(rows.chunks()), most_bytes)


@dataclass(frozen=True)
class RowNoise:
    """The noise that a process gives to rows in memory. With q, the posterior of f under that noise of all rows, also
    what f says about it."""

    features: RowFeatures
    process: NoiseProcess
    moments: NoiseMoments
    q: InducingPosterior | None = None

    @classmethod
    def of(cls, features: RowFeatures, process: NoiseProcess) -> "RowNoise":
        with torch.no_grad():
            return cls(features, process, process.moments_of(features.g, len(features.rows)))

    def seen_by(self, q: InducingPosterior) -> "RowNoise":
        return replace(self, q=q)

    @cached_property
    def rows(self) -> MemoryRows:
        """The rows with noise variance R_i each."""
        return replace(self.features.rows, all=replace(self.features.rows.all, noise_var=self.moments.R))

    @cached_property
    def _groups(self) -> list[Block]:
        """Of f."""
        return list(self.rows.groups(self.features.f.prior.approx.by_block))

    def statistics(self) -> BlockStatistics:
        """Of f. Groups of rows are divided among threads in a fixed way."""
        found: BlockStatistics = parallel.summed(self._statistics_of, range(len(self._groups)))
        return found

    def _statistics_of(self, part: Sequence[int]) -> BlockStatistics:
        prior, features = self.features.f.prior, self.features.f
        whitened = (whiten_block(prior, self._groups[k], features[k]) for k in part)
        return BlockStatistics.from_whitened(prior, whitened)

    @property
    def weighted_var(self) -> float:
        """sum_i w_i v_g,i."""
        return float(self.features.rows.all.weights @ self.moments.var)

    @cached_property
    def slopes(self) -> NoiseSlopes:
        """With respect to g: less than those with respect to log R where the noise is close to a limit."""
        assert self.q is not None
        parts = parallel.shared_out(range(len(self._groups)))
        found = parallel.run([partial(self._slopes_of, self.q, part) for part in parts])
        pairs: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(self._groups)
        for k, part in enumerate(found):
            pairs[k :: len(parts)] = part
        if not pairs:
            return NoiseSlopes(*torch.zeros(3, 0, dtype=torch.float64))
        slope, unabsorbed = (torch.cat(column) for column in zip(*pairs, strict=True))
        half, near = 0.5 * self.features.rows.all.weights, self.moments.limit_slope
        lam = half + near * ((slope + half).clamp_min(0.0) - half)
        return NoiseSlopes(near * slope, lam, unabsorbed.clamp(SMALLEST_UNABSORBED, 1.0))

    def _slopes_of(self, q: InducingPosterior, part: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """(R dJ/dR, the part of a change of R that f leaves) of each group."""
        features = self.features.f
        of_group = _slopes_together if features.prior.approx.by_block else _slopes_of_points
        with torch.no_grad():
            return [of_group(features.prior, q, self._groups[k], features[k]) for k in part]


def _slopes_of_points(
    prior: SparsePrior, q: InducingPosterior, block: Block, features: Features
) -> tuple[Tensor, Tensor]:
    """bar v = ( ((y - W m)^2 + w B^-1 w)/v - 1 )/(2 v), pulled back to the noise of each row."""
    W, d = features.W, features.residual
    noise = prior.row_noise(block)
    v = noise_model.point_variance(prior.approx, d, noise)
    spread = linalg.row_squares(linalg.whiten_rows(W, q.LB.factor))
    second = (block.y - W @ q.mean).square() + spread
    _, noise_bar = noise_model.point_pullback(prior.approx, d, noise, v, 0.5 * (second / v - 1.0) / v)
    return block.weights * noise * noise_bar, noise * (1.0 - spread / v) / v


def _slopes_together(
    prior: SparsePrior, q: InducingPosterior, block: Block, features: Features
) -> tuple[Tensor, Tensor]:
    """bar V = V^-1 ( (e e^T + W B^-1 W^T) V^-1 - I )/2 of the block, pulled back to the noise of each row."""
    W, D = features.W, features.residual
    noise, weight = repeated_noise(prior, block)
    V = noise_model.block_covariance(prior.approx, D, noise, weight)
    V_inv = linalg.inverse_from_cholesky(linalg.cholesky(V, name="noise covariance of a block").factor)
    spread = linalg.whiten_rows(V_inv @ W, q.LB.factor)
    alpha = V_inv @ (block.y - W @ q.mean)
    minus_precision = linalg.symmetric_product(spread, spread).sub_(V_inv)
    unabsorbed = noise * (minus_precision.square() @ noise)
    V_bar = minus_precision.addr_(alpha, alpha).mul_(0.5)
    _, noise_bar = noise_model.block_pullback(prior.approx, D, noise, weight, V_inv, V_bar)
    if block.weight is not None:
        noise_bar = noise_bar / weight + noise_model.repeats_pullback(prior.approx, D, noise, weight)[1]
    return prior.row_noise(block) * noise_bar, unabsorbed


@dataclass(frozen=True)
class NoiseAdjoints:
    """What rows say about the parameters of g: the gradient through their covariances, sum W^T bar W, sum slope."""

    gradient: Gradient
    gram: Tensor
    slope: Tensor

    @classmethod
    def of(cls, hyper: JointHyperparameters, noise: RowNoise) -> "NoiseAdjoints":
        """With a private copy of the parameters, in which torch gathers gradients."""
        own = copy.deepcopy(hyper)
        own.clear_gradient()
        process, features = noise.process, noise.features.g
        inverse_L = linalg.inverse_lower(process.prior.Luu.factor)
        gram, start = torch.zeros_like(inverse_L), 0
        with torch.no_grad():
            for k, chunk in enumerate(features.groups):
                part = slice(start, start + len(chunk))
                slope, lam = noise.slopes.slope[part], noise.slopes.lam[part]
                gram += _push_chunk(own, process, inverse_L, features, k, slope, lam)
                start = part.stop
        return cls(own.gradients(), gram, noise.slopes.slope.sum())

    def __add__(self, other: "NoiseAdjoints") -> "NoiseAdjoints":
        return NoiseAdjoints(added(self.gradient, other.gradient), self.gram + other.gram, self.slope + other.slope)

    def close(self, hyper: JointHyperparameters, process: NoiseProcess) -> None:
        """Add dF/d(noise kernel, noise inducing inputs, noise mean) of all rows to the `.grad` of the parameters."""
        hyper.add_gradient(self.gradient)
        push_inducing(hyper, process, linalg.inverse_lower(process.prior.Luu.factor), self.gram)
        if hyper.noise_mean.requires_grad:
            hyper.noise_mean.grad = self.slope


def _push_chunk(
    hyper: JointHyperparameters,
    process: NoiseProcess,
    inverse_L: Tensor,
    features: GroupFeatures,
    k: int,
    slope: Tensor,
    lam: Tensor,
) -> Tensor:
    """Push one chunk through the kernel; gives its W^T bar W."""
    X = features.groups[k].X
    with torch.enable_grad():
        K = hyper.noise_kernel(X, hyper.noise_inducing)
        own = hyper.noise_kernel.diagonal(X)
    W = features.W(k, K.detach())
    not_clipped = lam.where(own.detach() > linalg.row_squares(W), 0.0)
    W_bar = torch.outer(slope, process.q.mean) + not_clipped[:, None] * W - lam[:, None] * (W @ process.q.covariance)
    push_back(K, W_bar @ inverse_L)
    push_back(own, -0.5 * not_clipped)
    return W.mT @ W_bar


def push_inducing(hyper: JointHyperparameters, process: NoiseProcess, inverse_L: Tensor, gram: Tensor) -> None:
    """Push bar Kuu of gram = sum W^T bar W through the kernel of g."""
    with torch.enable_grad():
        Kuu = linalg.add_jitter(hyper.noise_kernel(hyper.noise_inducing), process.prior.Luu.jitter)
    push_back(Kuu, -0.5 * linalg.symmetric(inverse_L.mT @ gram @ inverse_L))
