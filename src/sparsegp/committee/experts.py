"""The members of a committee: the prior they share, what each can be asked, and the rows and choices it is made from.

Experts come from the table of approximations: exact on a few hundred rows, or sparse with inducing inputs of their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.committee.aggregation import Moments
from sparsegp.committee.influence import InfluenceBound, dense_bound, sparse_bound
from sparsegp.core import inducing, partition
from sparsegp.core.approximations import Approximation, Family, TestConditional
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.dense import MOST_INVERTED, ExactPosterior, require_dense_size
from sparsegp.core.local import Beyond, LocalPosterior, probes
from sparsegp.core.posterior import SMALLEST_VARIANCE, LatentPosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.errors import InputError
from sparsegp.infer import batch
from sparsegp.kernels import Kernel
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective, ExactObjective, Objective
from sparsegp.learn.sum_objective import private_copy


@dataclass(frozen=True)
class Process:
    """A latent function, f or the log noise g, before any data: GP(mean, kernel)."""

    kernel: Kernel
    mean: float = 0.0

    def moments(self, X: Tensor) -> Moments:
        with torch.no_grad():
            var = self.kernel.diagonal(X)
        return Moments(torch.full_like(var, self.mean), var)

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            K = self.kernel(X)
        return torch.full_like(K[0], self.mean), K


class Expert(Protocol):
    """What a committee asks of its members."""

    @property
    def bounds(self) -> tuple[InfluenceBound | None, ...]:
        """Of each latent function, how much the expert can change; None: not known."""

    def moments(self, X: Tensor, common: "CommonPart | None" = None) -> tuple[Moments, ...]:
        """Mean and variance of each latent function, (f,) or (f, g), at each row of X. `common` is the part of the
        communications expert, whose rows come first among the expert's."""

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance matrix of f at the rows of X together."""

    def row_influence(self, X: Tensor) -> Tensor | None:
        """Bound of what each row of a communications expert says of f at each x; None: unknown."""

    def common_part(self, X: Tensor) -> "CommonPart | None":
        """As communications expert, what the others need not compute again; None: nothing."""


@dataclass(frozen=True)
class CommonPart:
    """Of some rows: covariances with those of a communications expert, whitened ones, and what that expert says."""

    jitter: float
    K: Tensor
    whitened: Tensor
    said: Moments

    def at(self, index: Tensor) -> "CommonPart":
        return CommonPart(self.jitter, self.K[index], self.whitened[index], self.said.at(index))


@dataclass(frozen=True)
class GaussianExpert:
    """An expert on f alone, by any posterior of f."""

    posterior: LatentPosterior
    bound: InfluenceBound | None
    blocks: partition.Blocking | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies prepare for predictions themselves."""
        return {name: value for name, value in vars(self).items() if name not in ("_beyond_common", "_beyond_nothing")}

    @property
    def bounds(self) -> tuple[InfluenceBound | None, ...]:
        return (self.bound,)

    def moments(self, X: Tensor, common: CommonPart | None = None) -> tuple[Moments, ...]:
        own = self.posterior
        if not isinstance(own, ExactPosterior) or own.beside is not None or len(own.X) > MOST_INVERTED:
            return (Moments(*own.marginals(X, self._labels(X))),)
        with torch.no_grad():
            return (self._moments_of_exact(own, X.to(torch.float64), common),)

    def _moments_of_exact(self, own: ExactPosterior, X: Tensor, common: CommonPart | None) -> Moments:
        """s_i = s_c - |C_o^-1 (k_o - V w_c)|^2, C = [[C_c, 0], [V, C_o]] the factor of common and own rows; without
        common ones s_c is that of the prior."""
        prior_var = own.kernel.diagonal(X)
        if common is not None and self._shares(common):
            n, left = self._n_common, common.said.var
            K = self._beyond_common.covariance(X)
            mean = common.K @ own.alpha[:n] + K @ own.alpha[n:]
            root = self._beyond_common.innovations(K, common.whitened)
        else:
            left, K = prior_var, self._beyond_nothing.covariance(X)
            mean, root = K @ own.alpha, self._beyond_nothing.innovations(K)
        return Moments(mean, torch.maximum(left - linalg.row_squares(root), SMALLEST_VARIANCE * prior_var))

    def _shares(self, common: CommonPart) -> bool:
        """Whether the factor of the common rows is the leading part of the expert's own."""
        own = self.posterior
        return isinstance(own, ExactPosterior) and self._n_common > 0 and own.C.jitter == common.jitter == 0.0

    @property
    def _n_common(self) -> int:
        known = None if self.bound is None else self.bound.common_covariance
        return 0 if known is None else len(known)

    @cached_property
    def _beyond_common(self) -> Beyond:
        """What the expert's own rows say beyond the common ones."""
        return self._beyond(self._n_common)

    @cached_property
    def _beyond_nothing(self) -> Beyond:
        """What all its rows say."""
        return self._beyond(0)

    def _beyond(self, n: int) -> Beyond:
        """What its rows say beyond the first n: in float32 where that leaves the variances of its own rows right."""
        own = self.posterior
        assert isinstance(own, ExactPosterior)
        C, rows = own.C.factor, own.X[n:]
        with parallel.single():  # the same digits whoever asks first
            inverse = linalg.InverseLower.of(C[n:, n:])
            found = Beyond(own.kernel.onto(rows), inverse.whiten(C[n:, :n].mT).mT, inverse)
            some = rows[probes(rows)]
            K, W = found.covariance(some), linalg.whiten_rows(own.kernel(some, own.X[:n]), C[:n, :n]) if n else None
            left = own.kernel.diagonal(some)
            left = left if W is None else left - linalg.row_squares(W)
            return found.narrowed(lambda part: left - linalg.row_squares(part.innovations(K, W)))

    def common_part(self, X: Tensor) -> CommonPart | None:
        own = self.posterior
        if not isinstance(own, ExactPosterior):
            return None
        with torch.no_grad():
            K, prior_var = own.covariance(X.to(torch.float64)), own.kernel.diagonal(X.to(torch.float64))
            whitened = own.whitened(K)
            var = torch.maximum(prior_var - linalg.row_squares(whitened), SMALLEST_VARIANCE * prior_var)
            return CommonPart(own.C.jitter, K, whitened, Moments(K @ own.alpha, var))

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return self.posterior.joint(X, self._labels(X))

    def row_influence(self, X: Tensor) -> Tensor | None:
        """|(K + noise)^-1 k(x)|, how much each row of an exact expert has to say at x; None for other posteriors."""
        if not isinstance(self.posterior, ExactPosterior):
            return None
        with torch.no_grad():
            half = self.posterior.whitened(self.posterior.covariance(X))
            return linalg.solve_lower_transposed(self.posterior.C.factor, half.mT).mT.abs()

    def _labels(self, X: Tensor) -> Tensor | None:
        return None if self.blocks is None else self.blocks.nearest(X)


@dataclass(frozen=True)
class Trained:
    """An expert with the log evidence of its rows and the jitter its factorisations took."""

    expert: Expert
    log_evidence: float
    jitter: float


class ExpertSpec(Protocol):
    """The rows of an expert and everything about it that is not shared."""

    @property
    def block(self) -> Block:
        """Its rows."""

    @property
    def objective(self) -> Objective:
        """Log evidence or bound of the expert's own rows."""

    @property
    def has_inducing(self) -> bool:
        """Whether the expert has inducing inputs of its own to learn."""

    @property
    def work(self) -> float:
        """What an evaluation costs, in multiplications up to a factor; for dividing experts among workers."""

    @property
    def inference_work(self) -> float:
        """What `train` costs, as `work`."""

    def hyperparameters(self, shared: Hyperparameters, *, learn_inducing: bool = False) -> Hyperparameters:
        """A private copy of the shared hyper-parameters with the expert's own inducing inputs."""

    def with_inducing_of(self, own: Hyperparameters) -> "ExpertSpec":
        """The same expert with the inducing inputs that were learned in its own hyper-parameters."""

    def with_rows(self, block: Block) -> "ExpertSpec":
        """The same expert, with its inducing inputs, on other rows."""

    def augmented(self, common: "ExpertSpec") -> "ExpertSpec":
        """The expert that has seen the rows of a communications expert too."""

    def train(self, hyper: Hyperparameters) -> Trained:
        """The posterior at given hyper-parameters; of `hyper` only kernel and noise are used."""


@dataclass(frozen=True)
class DenseSpec:
    """An exact GP on the rows of the expert, the first `n_common` of which all experts have."""

    block: Block
    n_common: int = 0

    @property
    def objective(self) -> Objective:
        return ExactObjective(self.block)

    @property
    def has_inducing(self) -> bool:
        return False

    @property
    def work(self) -> float:
        return float(len(self.block)) ** 3

    @property
    def inference_work(self) -> float:
        """An evaluation inverts the matrix that inference factors, and pushes a gradient through the kernel."""
        return 0.5 * self.work

    def hyperparameters(self, shared: Hyperparameters, *, learn_inducing: bool = False) -> Hyperparameters:
        return private_copy(shared, self.block.X[:1], learn_inducing=False)

    def with_inducing_of(self, own: Hyperparameters) -> "DenseSpec":
        return self

    def with_rows(self, block: Block) -> "DenseSpec":
        require_dense_size(len(block))
        return DenseSpec(block)

    def augmented(self, common: ExpertSpec) -> "DenseSpec":
        return DenseSpec(Block.concat([common.block, self.block], fill=True), len(common.block))

    def train(self, hyper: Hyperparameters) -> Trained:
        posterior = ExactPosterior.build(hyper.kernel, self.block, hyper.noise_var)
        own, common = self.block.take(slice(self.n_common, None)), posterior.X[: self.n_common]
        bound = dense_bound(
            hyper.kernel, own, hyper.noise_var, posterior.alpha[self.n_common :], common if self.n_common else None
        )
        return Trained(GaussianExpert(posterior, bound), posterior.log_evidence, posterior.C.jitter)


@dataclass(frozen=True)
class SparseSpec:
    """An approximation of approximations on the rows of the expert, with inducing inputs of its own."""

    rows: MemoryRows
    approx: Approximation
    inducing: Tensor
    blocks: partition.Blocking | None = None

    @property
    def block(self) -> Block:
        return self.rows.all

    @property
    def objective(self) -> Objective:
        return CollapsedObjective(self.rows, self.approx)

    @property
    def has_inducing(self) -> bool:
        """As many inducing inputs as rows are exact already: moving them gains nothing."""
        return len(self.inducing) < len(self.rows)

    @property
    def work(self) -> float:
        return float((len(self.rows) + len(self.inducing)) * len(self.inducing) ** 2)

    @property
    def inference_work(self) -> float:
        """One of the two passes over the rows that an evaluation takes."""
        return 0.5 * self.work

    def hyperparameters(self, shared: Hyperparameters, *, learn_inducing: bool = False) -> Hyperparameters:
        return private_copy(shared, self.inducing, learn_inducing=learn_inducing)

    def with_inducing_of(self, own: Hyperparameters) -> "SparseSpec":
        return replace(self, inducing=own.inducing.detach())

    def with_rows(self, block: Block) -> "SparseSpec":
        return replace(self, rows=MemoryRows(block) if self.blocks is None else _in_blocks(block, self.blocks))

    def augmented(self, common: ExpertSpec) -> "SparseSpec":
        assert isinstance(common, SparseSpec)
        blocks = self.blocks
        if common.blocks is not None and blocks is not None:
            cells = partition.Partition(torch.cat([common.blocks.partition.centroids, blocks.partition.centroids]))
            blocks = partition.Blocking(cells, blocks.metric)
        both = replace(self, inducing=torch.cat([common.inducing, self.inducing]), blocks=blocks)
        return both.with_rows(Block.concat([common.block, self.block], fill=True))

    def train(self, hyper: Hyperparameters) -> Trained:
        prior = SparsePrior.build(hyper.kernel, self.inducing, hyper.noise_var, self.approx)
        _, posterior, info = batch.infer(prior, self.rows)
        # A local posterior depends on the rows of the point's block too, which the bounds do not know.
        bound = None if isinstance(posterior, LocalPosterior) else sparse_bound(prior, posterior.q)
        expert = GaussianExpert(posterior, bound, self.blocks if self.approx.is_local else None)
        return Trained(expert, info.log_evidence, info.jitter)


@dataclass(frozen=True)
class Recipe:
    """How every expert is made: its approximation, its inducing inputs, and the metric of blocks inside it."""

    approx: Approximation
    n_inducing: int
    inducing: str
    kernel: Kernel
    metric: Tensor
    rng: np.random.Generator

    def at(self, hyper: Hyperparameters) -> "Recipe":
        """For experts that come later, under hyper-parameters that were learned."""
        return replace(self, kernel=hyper.kernel, rng=np.random.default_rng(0))

    def spec(self, block: Block) -> ExpertSpec:
        return _MAKERS[self.approx.family](self, block)


def can_be_expert(approx: Approximation) -> bool:
    """An expert's variance must come back to the prior's where it knows nothing."""
    return approx.family is not Family.NYSTROM and approx.test is not TestConditional.DETERMINISTIC


def require_expert(approx: Approximation) -> None:
    if not can_be_expert(approx):
        raise InputError(
            f"expert={approx.name!r} cannot sit on a committee: an expert must say how little it knows far from its "
            "rows, "
            "and the variance of 'sor' vanishes there while that of 'nystrom' can be negative. Use 'dtc', 'vfe' or "
            "'fitc', or 'exact' for experts of a few hundred rows."
        )


def _in_blocks(block: Block, blocks: partition.Blocking) -> MemoryRows:
    return MemoryRows(block).in_blocks(blocks.nearest, blocks.n_blocks)


def _exact_spec(recipe: Recipe, block: Block) -> ExpertSpec:
    require_dense_size(len(block))
    return DenseSpec(block)


def _subset_spec(recipe: Recipe, block: Block) -> ExpertSpec:
    index = torch.from_numpy(recipe.rng.permutation(len(block))[: recipe.n_inducing])
    return DenseSpec(block.take(index))


def _sparse_spec(recipe: Recipe, block: Block) -> ExpertSpec:
    X = block.X.to(torch.float64)
    chosen = inducing.select_inducing(recipe.inducing, recipe.kernel, X, recipe.n_inducing, recipe.rng, block.weight)
    if not recipe.approx.by_block:
        return SparseSpec(MemoryRows(block), recipe.approx, chosen)
    n_blocks = max(1, round(len(block) / recipe.n_inducing))
    cells = partition.kmeans_partition(X * recipe.metric, n_blocks, recipe.rng)
    blocks = partition.Blocking(cells, recipe.metric)
    return SparseSpec(_in_blocks(block, blocks), recipe.approx, chosen, blocks)


_MAKERS: Mapping[Family, Callable[[Recipe, Block], ExpertSpec]] = {
    Family.EXACT: _exact_spec,
    Family.SUBSET: _subset_spec,
    Family.INDUCING: _sparse_spec,
}
