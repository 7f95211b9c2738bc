"""Experts with learned input-dependent noise (DVSHGP, 001 sec. IV): they speak of f and of the log noise g."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparsegp import inducing
from sparsegp.approximations import Approximation, Family, get
from sparsegp.committee.aggregation import Moments
from sparsegp.committee.experts import ExpertPlan, Trained
from sparsegp.committee.plans import joined
from sparsegp.committee.reach import Reach, dense_reach, sparse_reach
from sparsegp.data import Block, Rows
from sparsegp.dense import ExactPosterior, require_dense_size
from sparsegp.heteroscedastic.bound import BoundState
from sparsegp.heteroscedastic.hyperparameters import JointHyperparameters
from sparsegp.heteroscedastic.learning import FINAL_STEPS
from sparsegp.heteroscedastic.noise_process import NoiseProcess
from sparsegp.heteroscedastic.objective import ProfiledBound
from sparsegp.kernels import Kernel
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.posterior import LatentPosterior, SparsePosterior

FINAL_TOLERANCE = 1e-6
# Names of experts with learned noise, and the row of the table that models f.
ROWS = {"vshgp": "vfe", "vhgp": "exact"}


@dataclass(frozen=True)
class NoisyExpert:
    """Posteriors of f and of g, and how far each reaches."""

    posterior: LatentPosterior
    process: NoiseProcess
    reaches: tuple[Reach | None, ...]

    def moments(self, X: Tensor) -> tuple[Moments, ...]:
        return Moments(*self.posterior.marginals(X)), Moments(*self.process.predict(X))

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return self.posterior.joint(X)

    def influence(self, X: Tensor) -> None:
        """Not known for g: as a communications expert it leaves all experts to be asked."""


@dataclass(frozen=True)
class NoisyPlan:
    """Rows, inducing inputs of f and of g; the bound is profiled over the expert's own q(g_u).

    An exact f is PIC with a single block, whatever its inducing input.
    """

    rows: Rows
    row: Approximation
    inducing: Tensor
    noise_inducing: Tensor
    noise_limits: tuple[float, float]

    @property
    def objective(self) -> ProfiledBound:
        return ProfiledBound(self.rows, self.row, self.noise_limits)

    @property
    def has_inducing(self) -> bool:
        """Moving those of g under an exact f doubles the time of learning and gained 0.005 nats on protein."""
        return not self.row.is_local and len(self.inducing) < len(self.rows)

    @property
    def work(self) -> float:
        if self.row.is_local:
            return float(len(self.rows)) ** 3
        sizes = len(self.inducing), len(self.noise_inducing)
        return float(sum((len(self.rows) + size) * size**2 for size in sizes))

    def hyperparameters(self, shared: Hyperparameters, *, learn_inducing: bool = False) -> JointHyperparameters:
        assert isinstance(shared, JointHyperparameters)
        mean = float(shared.noise_mean.detach())
        return JointHyperparameters(
            shared.kernel, self.inducing, shared.noise_kernel, self.noise_inducing, mean, learn_inducing=learn_inducing
        )

    def with_inducing_of(self, own: Hyperparameters) -> "NoisyPlan":
        assert isinstance(own, JointHyperparameters)
        return replace(self, inducing=own.inducing.detach(), noise_inducing=own.noise_inducing.detach())

    def augmented(self, common: ExpertPlan) -> "NoisyPlan":
        assert isinstance(common, NoisyPlan)
        return replace(
            self,
            rows=_as_rows(self.row, joined(common.rows.all, self.rows.all)),
            inducing=self.inducing if self.row.is_local else torch.cat([common.inducing, self.inducing]),
            noise_inducing=torch.cat([common.noise_inducing, self.noise_inducing]),
        )

    def train(self, hyper: Hyperparameters) -> Trained:
        own = self.hyperparameters(hyper)
        assert isinstance(hyper, JointHyperparameters)
        own.kernel, own.noise_kernel = hyper.kernel, hyper.noise_kernel
        state = replace(self.objective, tolerance=FINAL_TOLERANCE, max_steps=FINAL_STEPS).ascend(own).state
        posterior, f_reach = _posterior(self.row, state)
        expert = NoisyExpert(posterior, state.process, (f_reach, sparse_reach(state.process.prior, state.process.q)))
        return Trained(expert, state.value, max(state.f_prior.Luu.jitter, state.process.prior.Luu.jitter))


@dataclass(frozen=True)
class NoisyRecipe:
    """How every expert with learned noise is made."""

    row: Approximation
    n_inducing: int
    n_noise_inducing: int
    inducing: str
    kernel: Kernel
    noise_kernel: Kernel
    noise_limits: tuple[float, float]
    rng: np.random.Generator

    def plan(self, block: Block) -> NoisyPlan:
        of_g = self._select(self.noise_kernel, block, self.n_noise_inducing)
        if self.row.family is Family.EXACT:
            require_dense_size(len(block))
            local = get("pic")
            return NoisyPlan(_as_rows(local, block), local, block.X[:1].clone(), of_g, self.noise_limits)
        of_f = self._select(self.kernel, block, self.n_inducing)
        return NoisyPlan(_as_rows(self.row, block), self.row, of_f, of_g, self.noise_limits)

    def _select(self, kernel: Kernel, block: Block, n: int) -> Tensor:
        return inducing.select_inducing(self.inducing, kernel, block.X, n, self.rng, block.weight)


def _as_rows(row: Approximation, block: Block) -> Rows:
    return Rows(block, torch.tensor([0, len(block)])) if row.by_block else Rows(block)


def _posterior(row: Approximation, state: BoundState) -> tuple[LatentPosterior, Reach | None]:
    """f given the noise R of each row; with a single block, the exact posterior."""
    if not row.is_local:
        return SparsePosterior(state.f_prior, state.q), sparse_reach(state.f_prior, state.q)
    block, kernel = state.rows.all, state.f_prior.kernel
    exact = ExactPosterior.build(kernel, block, state.f_prior.noise_var)
    return exact, dense_reach(kernel, block, state.f_prior.noise_var, exact.alpha)
