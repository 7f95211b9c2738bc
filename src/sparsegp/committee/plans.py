"""Experts by the table of approximations: exact on a few hundred rows, or sparse with inducing inputs of their own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparsegp import inducing, partition
from sparsegp.approximations import Approximation, Family, TestConditional
from sparsegp.committee.experts import ExpertPlan, GaussianExpert, InnerBlocks, Trained
from sparsegp.committee.reach import dense_reach, sparse_reach
from sparsegp.data import Block, Rows
from sparsegp.dense import ExactObjective, ExactPosterior, require_dense_size
from sparsegp.engines import batch
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import CollapsedObjective, Objective
from sparsegp.local_posterior import LocalPosterior
from sparsegp.prior import SparsePrior


@dataclass(frozen=True)
class DensePlan:
    """An exact GP on the rows of the expert, the first `n_common` of which are everybody's."""

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

    def hyperparameters(self, shared: Hyperparameters, *, learn_inducing: bool = False) -> Hyperparameters:
        return _private_copy(shared, self.block.X[:1], learn_inducing=False)

    def with_inducing_of(self, own: Hyperparameters) -> "DensePlan":
        return self

    def augmented(self, common: ExpertPlan) -> "DensePlan":
        assert isinstance(common, DensePlan)
        return DensePlan(joined(common.block, self.block), len(common.block))

    def train(self, hyper: Hyperparameters) -> Trained:
        posterior = ExactPosterior.build(hyper.kernel, self.block, hyper.noise_var)
        own, common = self.block.take(slice(self.n_common, None)), posterior.X[: self.n_common]
        reach = dense_reach(
            hyper.kernel, own, hyper.noise_var, posterior.alpha[self.n_common :], common if self.n_common else None
        )
        return Trained(GaussianExpert(posterior, reach), posterior.log_evidence, posterior.C.jitter)


@dataclass(frozen=True)
class SparsePlan:
    """A row of the table of approximations on the rows of the expert, with inducing inputs of its own."""

    rows: Rows
    row: Approximation
    inducing: Tensor
    blocks: InnerBlocks | None = None

    @property
    def objective(self) -> Objective:
        return CollapsedObjective(self.rows, self.row)

    @property
    def has_inducing(self) -> bool:
        """As many inducing inputs as rows are exact already: moving them gains nothing."""
        return len(self.inducing) < len(self.rows)

    @property
    def work(self) -> float:
        return float((len(self.rows) + len(self.inducing)) * len(self.inducing) ** 2)

    def hyperparameters(self, shared: Hyperparameters, *, learn_inducing: bool = False) -> Hyperparameters:
        return _private_copy(shared, self.inducing, learn_inducing=learn_inducing)

    def with_inducing_of(self, own: Hyperparameters) -> "SparsePlan":
        return replace(self, inducing=own.inducing.detach())

    def augmented(self, common: ExpertPlan) -> "SparsePlan":
        assert isinstance(common, SparsePlan)
        block = joined(common.rows.all, self.rows.all)
        both = torch.cat([common.inducing, self.inducing])
        rows, blocks = Rows(block), None
        if common.blocks is not None and self.blocks is not None:
            cells = partition.Partition(torch.cat([common.blocks.cells.centroids, self.blocks.cells.centroids]))
            rows, blocks = in_blocks(block, InnerBlocks(cells, self.blocks.metric))
        return SparsePlan(rows, self.row, both, blocks)

    def train(self, hyper: Hyperparameters) -> Trained:
        prior = SparsePrior.build(hyper.kernel, self.inducing, hyper.noise_var, self.row)
        _, posterior, info = batch.infer(prior, self.rows)
        # A local posterior depends on the rows of the point's block too, which the bounds do not know.
        reach = None if isinstance(posterior, LocalPosterior) else sparse_reach(prior, posterior.q)
        expert = GaussianExpert(posterior, reach, self.blocks if self.row.is_local else None)
        return Trained(expert, info.log_evidence, info.jitter)


def _private_copy(shared: Hyperparameters, own_inducing: Tensor, *, learn_inducing: bool) -> Hyperparameters:
    learn_noise = shared.log_noise_var.requires_grad
    noise_var = float(shared.noise_var)
    return Hyperparameters(
        shared.kernel, noise_var, own_inducing, learn_noise=learn_noise, learn_inducing=learn_inducing
    )


@dataclass(frozen=True)
class Recipe:
    """How every expert is made: its approximation, its inducing inputs, and the metric of blocks inside it."""

    row: Approximation
    n_inducing: int
    inducing: str
    kernel: Kernel
    metric: Tensor
    rng: np.random.Generator

    def plan(self, block: Block) -> ExpertPlan:
        return _PLANNERS[self.row.family](self, block)


def can_be_expert(row: Approximation) -> bool:
    """An expert's variance must come back to the prior's where it knows nothing."""
    return row.family is not Family.NYSTROM and row.test is not TestConditional.DETERMINISTIC


def require_expert(row: Approximation) -> None:
    if not can_be_expert(row):
        raise InputError(
            f"expert={row.name!r} cannot sit on a committee: an expert must say how little it knows far from its rows, "
            "and the variance of 'sor' vanishes there while that of 'nystrom' can be negative. Use 'dtc', 'vfe' or "
            "'fitc', or 'exact' for experts of a few hundred rows."
        )


def joined(first: Block, second: Block) -> Block:
    """The rows of both; blocks of one data set, so noise and weights are given in both or in none."""

    def both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
        return None if one is None or other is None else torch.cat([one, other])

    return Block(
        torch.cat([first.X, second.X]),
        torch.cat([first.y, second.y]),
        both(first.noise_var, second.noise_var),
        both(first.weight, second.weight),
    )


def in_blocks(block: Block, blocks: InnerBlocks) -> tuple[Rows, InnerBlocks]:
    """The rows sorted by their block inside the expert."""
    order, offsets = partition.block_slices(blocks.labels(block.X), blocks.cells.n_blocks)
    return Rows(block.take(order), offsets), blocks


def _plan_exact(recipe: Recipe, block: Block) -> ExpertPlan:
    require_dense_size(len(block))
    return DensePlan(block)


def _plan_subset(recipe: Recipe, block: Block) -> ExpertPlan:
    index = torch.from_numpy(recipe.rng.permutation(len(block))[: recipe.n_inducing])
    return DensePlan(block.take(index))


def _plan_sparse(recipe: Recipe, block: Block) -> ExpertPlan:
    X = block.X.to(torch.float64)
    chosen = inducing.select_inducing(recipe.inducing, recipe.kernel, X, recipe.n_inducing, recipe.rng, block.weight)
    if not recipe.row.by_block:
        return SparsePlan(Rows(block), recipe.row, chosen)
    n_blocks = max(1, round(len(block) / recipe.n_inducing))
    cells = partition.kmeans_partition(X * recipe.metric, n_blocks, recipe.rng)
    rows, blocks = in_blocks(block, InnerBlocks(cells, recipe.metric))
    return SparsePlan(rows, recipe.row, chosen, blocks)


_PLANNERS: Mapping[Family, Callable[[Recipe, Block], ExpertPlan]] = {
    Family.EXACT: _plan_exact,
    Family.SUBSET: _plan_subset,
    Family.INDUCING: _plan_sparse,
}
