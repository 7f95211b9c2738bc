"""What travels between driver and workers: a model of M x D numbers, and symmetric matrices as triangles."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsegp import linalg
from sparsegp.approximations import Approximation
from sparsegp.estimators.updating.stream_state import RowSum
from sparsegp.kernels import Kernel
from sparsegp.learning.adjoint import SharedAdjoint
from sparsegp.learning.gradients import Gradients, gradients_of
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import AdjointTotals
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics

Array = NDArray[np.float64]
RowFacts = tuple[int, int, Array, float, float | None]


def triangle(A: Tensor) -> Array:
    """The M(M+1)/2 numbers of the lower triangle."""
    rows, columns = torch.tril_indices(*A.shape).unbind()
    return A[rows, columns].cpu().numpy()


def lower(packed: Array, size: int) -> Tensor:
    """The lower-triangular matrix of `triangle`."""
    A = torch.zeros(size, size, dtype=torch.float64)
    rows, columns = torch.tril_indices(size, size).unbind()
    A[rows, columns] = torch.from_numpy(np.array(packed))
    return A


def symmetric(packed: Array, size: int) -> Tensor:
    """The symmetric matrix whose lower triangle was packed."""
    return linalg.mirror_upper_(lower(packed, size).mT.contiguous())


@dataclass(frozen=True)
class Model:
    """All that fixes what a row says about u: workers build the prior from it. `direct`: whiten the sum only."""

    hyper: Hyperparameters
    row: Approximation
    jitter: float
    direct: bool = False

    def prior(self) -> SparsePrior:
        return SparsePrior.build(self.hyper.kernel, self.hyper.inducing, self.hyper.noise_var, self.row, self.jitter)


@dataclass(frozen=True)
class PackedPrior:
    """`SparsePrior` without its M x M matrix; for hyper-parameters that stay."""

    kernel: Kernel
    inducing: Tensor
    noise_var: Tensor
    row: Approximation
    jitter: float

    @classmethod
    def of(cls, prior: SparsePrior) -> "PackedPrior":
        return cls(prior.kernel, prior.inducing, prior.noise_var, prior.row, prior.Luu.jitter)

    def unpacked(self) -> SparsePrior:
        return SparsePrior.build(self.kernel, self.inducing, self.noise_var, self.row, self.jitter)


@dataclass(frozen=True)
class Question:
    """Of the second round: the model, and q(v) as mean and triangle of the Cholesky factor of its precision."""

    model: Model
    mean: Array
    LB: Array
    LB_jitter: float

    @classmethod
    def of(cls, model: Model, q: InducingPosterior) -> "Question":
        return cls(model, q.mean.cpu().numpy(), triangle(q.LB.factor), q.LB.jitter)

    def shared(self, prior: SparsePrior) -> SharedAdjoint:
        LB = linalg.Cholesky(lower(self.LB, len(self.mean)), self.LB_jitter)
        q = InducingPosterior(torch.from_numpy(np.array(self.mean)), LB)
        return SharedAdjoint.build(prior, q, linalg.inverse_lower(prior.Luu.factor), direct=self.model.direct)


@dataclass(frozen=True)
class PackedStatistics:
    """`BlockStatistics` with half of its precision."""

    precision: Array
    shift: Array
    scalars: tuple[float, float, float, float]
    fingerprint: str

    @classmethod
    def of(cls, s: BlockStatistics) -> "PackedStatistics":
        scalars = (s.noise_logdet, s.target_sq, s.penalty, s.n_rows)
        return cls(triangle(s.precision), s.shift.cpu().numpy(), scalars, s.fingerprint)

    def unpacked(self) -> BlockStatistics:
        shift = torch.from_numpy(np.array(self.shift))
        return BlockStatistics(symmetric(self.precision, len(shift)), shift, *self.scalars, self.fingerprint)

    @property
    def n_bytes(self) -> int:
        return self.precision.nbytes + self.shift.nbytes + 8 * len(self.scalars)


@dataclass(frozen=True)
class PackedSum:
    """`RowSum` with packed statistics."""

    statistics: PackedStatistics
    facts: RowFacts

    @classmethod
    def of(cls, rows: RowSum) -> "PackedSum":
        facts = (rows.n_rows, rows.n_weightless, rows.totals, rows.target_total, rows.noise_total)
        return cls(PackedStatistics.of(rows.statistics), facts)

    def unpacked(self) -> RowSum:
        return RowSum(self.statistics.unpacked(), *self.facts)


@dataclass(frozen=True)
class PackedAdjoint:
    """Of the second round: the gradient through the rows, and `AdjointTotals` packed."""

    gradients: Gradients
    noise: float
    residual_gram: Array | None

    @classmethod
    def of(cls, hyper: Hyperparameters, totals: AdjointTotals) -> "PackedAdjoint":
        gram = None if totals.residual_gram is None else triangle(totals.residual_gram)
        return cls(gradients_of(hyper), float(totals.noise), gram)

    def totals(self, size: int) -> AdjointTotals:
        gram = None if self.residual_gram is None else symmetric(self.residual_gram, size)
        return AdjointTotals(torch.tensor(self.noise, dtype=torch.float64), gram)
