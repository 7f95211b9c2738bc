"""Experts with learned input-dependent noise (DVSHGP, 001 sec. IV): they speak of f and of the log noise g."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparsegp.committee.aggregation import Moments
from sparsegp.committee.experts import CommonPart, ExpertSpec, Trained
from sparsegp.committee.influence import InfluenceBound, dense_bound, sparse_bound
from sparsegp.core import inducing
from sparsegp.core.approximations import Approximation, Family, get
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.dense import ExactPosterior, require_dense_size
from sparsegp.core.posterior import LatentPosterior, SparsePosterior
from sparsegp.kernels import Kernel
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.noise.bound import BoundState, ProfiledBound
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.noise_learning import INFERENCE
from sparsegp.noise.process import NoiseProcess

FINAL_TOLERANCE = 1e-6
COLD_ASCENT = 3.0
# Names of experts with learned noise, and the approximation that models f.
APPROXIMATIONS = {"vshgp": "vfe", "vhgp": "exact"}


@dataclass(frozen=True)
class LearnedNoiseExpert:
    """Posteriors of f and of g, and bounds of what they can change."""

    posterior: LatentPosterior
    process: NoiseProcess
    bounds: tuple[InfluenceBound | None, ...]

    def moments(self, X: Tensor, common: CommonPart | None = None) -> tuple[Moments, ...]:
        return Moments(*self.posterior.marginals(X)), Moments(*self.process.predict(X))

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return self.posterior.joint(X)

    def row_influence(self, X: Tensor) -> None:
        """Not known for g: as a communications expert it leaves all experts to be asked."""

    def common_part(self, X: Tensor) -> None:
        """Nothing: the noise of the common rows is each expert's own."""


@dataclass(frozen=True)
class LearnedNoiseSpec:
    """Rows, inducing inputs of f and of g; the bound is profiled over the expert's own q(g_u).

    An exact f is PIC with a single block, whatever its inducing input.
    """

    rows: MemoryRows
    approx: Approximation
    inducing: Tensor
    noise_inducing: Tensor
    noise_limits: tuple[float, float]

    @property
    def block(self) -> Block:
        return self.rows.all

    @property
    def objective(self) -> ProfiledBound:
        return ProfiledBound(self.rows, self.approx, self.noise_limits)

    @property
    def has_inducing(self) -> bool:
        """Moving those of g under an exact f doubles the time of learning and gained 0.005 nats on protein."""
        return not self.approx.is_local and len(self.inducing) < len(self.rows)

    @property
    def work(self) -> float:
        if self.approx.is_local:
            return float(len(self.rows)) ** 3
        sizes = len(self.inducing), len(self.noise_inducing)
        return float(sum((len(self.rows) + size) * size**2 for size in sizes))

    @property
    def inference_work(self) -> float:
        """The ascent of q(g_u) starts from its prior; those of learning start from where the last one ended."""
        return COLD_ASCENT * self.work

    def hyperparameters(self, shared: Hyperparameters, *, learn_inducing: bool = False) -> JointHyperparameters:
        assert isinstance(shared, JointHyperparameters)
        mean = float(shared.noise_mean.detach())
        return JointHyperparameters(
            shared.kernel, self.inducing, shared.noise_kernel, self.noise_inducing, mean, learn_inducing=learn_inducing
        )

    def with_inducing_of(self, own: Hyperparameters) -> "LearnedNoiseSpec":
        assert isinstance(own, JointHyperparameters)
        return replace(self, inducing=own.inducing.detach(), noise_inducing=own.noise_inducing.detach())

    def with_rows(self, block: Block) -> "LearnedNoiseSpec":
        if self.approx.is_local:
            require_dense_size(len(block))
        return replace(self, rows=_as_rows(self.approx, block))

    def augmented(self, common: ExpertSpec) -> "LearnedNoiseSpec":
        assert isinstance(common, LearnedNoiseSpec)
        return replace(
            self,
            rows=_as_rows(self.approx, Block.concat([common.block, self.block], fill=True)),
            inducing=self.inducing if self.approx.is_local else torch.cat([common.inducing, self.inducing]),
            noise_inducing=torch.cat([common.noise_inducing, self.noise_inducing]),
        )

    def train(self, hyper: Hyperparameters) -> Trained:
        own = self.hyperparameters(hyper)
        assert isinstance(hyper, JointHyperparameters)
        own.kernel, own.noise_kernel = hyper.kernel, hyper.noise_kernel
        state = replace(self.objective, tolerance=FINAL_TOLERANCE, max_steps=INFERENCE.max_steps).ascend(own).state
        posterior, f_bound = _posterior(self.approx, state)
        expert = LearnedNoiseExpert(
            posterior, state.process, (f_bound, sparse_bound(state.process.prior, state.process.q))
        )
        return Trained(expert, state.value, max(state.f_prior.Luu.jitter, state.process.prior.Luu.jitter))


@dataclass(frozen=True)
class LearnedNoiseRecipe:
    """How every expert with learned noise is made."""

    approx: Approximation
    n_inducing: int
    n_noise_inducing: int
    inducing: str
    kernel: Kernel
    noise_kernel: Kernel
    noise_limits: tuple[float, float]
    rng: np.random.Generator

    def at(self, hyper: Hyperparameters) -> "LearnedNoiseRecipe":
        """For experts that come later, under hyper-parameters that were learned."""
        assert isinstance(hyper, JointHyperparameters)
        kernels = hyper.kernel, hyper.noise_kernel
        return replace(self, kernel=kernels[0], noise_kernel=kernels[1], rng=np.random.default_rng(0))

    def spec(self, block: Block) -> LearnedNoiseSpec:
        of_g = self._select(self.noise_kernel, block, self.n_noise_inducing)
        row = spec_approximation(self.approx)
        if self.approx.family is Family.EXACT:
            require_dense_size(len(block))
            of_f = block.X[:1].clone()
        else:
            of_f = self._select(self.kernel, block, self.n_inducing)
        return LearnedNoiseSpec(_as_rows(row, block), row, of_f, of_g, self.noise_limits)

    def _select(self, kernel: Kernel, block: Block, n: int) -> Tensor:
        return inducing.select_inducing(self.inducing, kernel, block.X, n, self.rng, block.weight)


def spec_approximation(approx: Approximation) -> Approximation:
    """An exact f is PIC with a single block."""
    return get("pic") if approx.family is Family.EXACT else approx


def _as_rows(approx: Approximation, block: Block) -> MemoryRows:
    return MemoryRows(block, torch.tensor([0, len(block)])) if approx.by_block else MemoryRows(block)


def _posterior(approx: Approximation, state: BoundState) -> tuple[LatentPosterior, InfluenceBound | None]:
    """f given the noise R of each row; with a single block, the exact posterior."""
    if not approx.is_local:
        return SparsePosterior(state.f_prior, state.q), sparse_bound(state.f_prior, state.q)
    block, kernel = state.row_noise.rows.all, state.f_prior.kernel
    exact = ExactPosterior.build(kernel, block, state.f_prior.noise_var)
    return exact, dense_bound(kernel, block, state.f_prior.noise_var, exact.alpha)
