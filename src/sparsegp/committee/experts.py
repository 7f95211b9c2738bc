"""What a committee knows of its members: the prior they share, what each of them can be asked, and how it is made."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sparsegp import linalg, partition
from sparsegp.committee.aggregation import Moments
from sparsegp.committee.reach import Reach
from sparsegp.dense import ExactPosterior
from sparsegp.kernels import Kernel
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import Objective
from sparsegp.posterior import LatentPosterior


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
    def reaches(self) -> tuple[Reach | None, ...]:
        """Of each latent function, how far the expert has something to say of it; None: everywhere."""

    def moments(self, X: Tensor) -> tuple[Moments, ...]:
        """Mean and variance of each latent function, (f,) or (f, g), at each row of X."""

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance matrix of f at the rows of X together."""

    def influence(self, X: Tensor) -> Tensor | None:
        """Bound of what each row of a communications expert says of f at each x; None: unknown."""


@dataclass(frozen=True)
class InnerBlocks:
    """The blocks inside an expert whose approximation has them, and the metric in which they are compact."""

    cells: partition.Partition
    metric: Tensor

    def labels(self, X: Tensor) -> Tensor:
        return self.cells.assign(X.to(torch.float64) * self.metric)


@dataclass(frozen=True)
class GaussianExpert:
    """An expert on f alone, by any posterior of f."""

    posterior: LatentPosterior
    reach: Reach | None
    blocks: InnerBlocks | None = None

    @property
    def reaches(self) -> tuple[Reach | None, ...]:
        return (self.reach,)

    def moments(self, X: Tensor) -> tuple[Moments, ...]:
        return (Moments(*self.posterior.marginals(X, self._labels(X))),)

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return self.posterior.joint(X, self._labels(X))

    def influence(self, X: Tensor) -> Tensor | None:
        """|(K + noise)^-1 k(x)|, how much each row of an exact expert has to say at x; None for other posteriors."""
        if not isinstance(self.posterior, ExactPosterior):
            return None
        L = self.posterior.C.factor
        with torch.no_grad():
            half = linalg.solve_lower(L, self.posterior.kernel(X, self.posterior.X).mT)
            return linalg.solve_lower_transposed(L, half).mT.abs()

    def _labels(self, X: Tensor) -> Tensor | None:
        return None if self.blocks is None else self.blocks.labels(X)


@dataclass(frozen=True)
class Trained:
    """An expert with the log evidence of its rows and the jitter its factorisations took."""

    expert: Expert
    log_evidence: float
    jitter: float


class ExpertPlan(Protocol):
    """The rows of an expert and everything about it that is not shared."""

    @property
    def objective(self) -> Objective:
        """Log evidence or bound of the expert's own rows."""

    @property
    def has_inducing(self) -> bool:
        """Whether the expert has inducing inputs of its own to learn."""

    @property
    def work(self) -> float:
        """What an evaluation costs, in multiplications up to a factor; for sharing experts out."""

    def hyperparameters(self, shared: Hyperparameters, *, learn_inducing: bool = False) -> Hyperparameters:
        """A private copy of the shared hyper-parameters with the expert's own inducing inputs."""

    def with_inducing_of(self, own: Hyperparameters) -> "ExpertPlan":
        """The same expert with the inducing inputs that were learned in its own hyper-parameters."""

    def augmented(self, common: "ExpertPlan") -> "ExpertPlan":
        """The expert that has seen the rows of a communications expert too."""

    def train(self, hyper: Hyperparameters) -> Trained:
        """The posterior at given hyper-parameters; of `hyper` only kernel and noise are used."""
