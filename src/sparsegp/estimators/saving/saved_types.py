"""What a model file may hold: every type a fitted estimator is made of. What can be computed again is left out."""

from typing import Any

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.approximations import Approximation, Component, Family, Residual, TestConditional
from sparsegp.committee.aggregation import Aggregation, BaseCount, Weighting
from sparsegp.committee.experts import GaussianExpert, InnerBlocks, Process
from sparsegp.committee.nearest import Nearest
from sparsegp.committee.prediction import Committee
from sparsegp.committee.reach import Reach
from sparsegp.data import Block, Rows
from sparsegp.dense import ExactPosterior, NystromPosterior
from sparsegp.engines import recursive
from sparsegp.engines.batch import BatchState
from sparsegp.engines.filter_state import FilterState
from sparsegp.engines.innovations import Innovations
from sparsegp.errors import ModelFileError
from sparsegp.estimators.families import Fitted
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.noisy_experts import NoisyExpert
from sparsegp.estimators.updating.kept_rows import Kept, KeptRows
from sparsegp.estimators.updating.recent_level import RecentLevel
from sparsegp.estimators.updating.stream_state import Streamed
from sparsegp.heteroscedastic.learning import NoisyModel
from sparsegp.heteroscedastic.noise_process import NoiseProcess
from sparsegp.io.records import Fields, RecordType, plain
from sparsegp.learning.recorder import LearningResult
from sparsegp.local_posterior import LocalPosterior
from sparsegp.partition import Partition
from sparsegp.posterior import InducingPosterior, SparsePosterior
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics


def packed(A: Tensor) -> Tensor:
    """The lower triangle, row by row, of a triangular or symmetric matrix: half the size."""
    row, column = torch.tril_indices(*A.shape)
    return A[row, column]


def unpacked(values: Tensor) -> Tensor:
    """The lower-triangular matrix of `packed`."""
    size = round(((8 * len(values) + 1) ** 0.5 - 1) / 2)
    if size * (size + 1) != 2 * len(values):
        raise ModelFileError(f"a triangle with {len(values)} entries does not exist")
    A = values.new_zeros(size, size)
    row, column = torch.tril_indices(size, size)
    A[row, column] = values
    return A


def _with_packed(record: RecordType, name: str, *, symmetric: bool) -> RecordType:
    def take_apart(value: Any) -> Fields:
        values = record.take_apart(value)
        return {**values, name: packed(values[name])}

    def put_together(values: Fields) -> Any:
        A = unpacked(values[name])
        return record.put_together({**values, name: A + A.tril(-1).mT if symmetric else A})

    return RecordType(record.cls, take_apart, put_together)


def _take_apart_exact(value: ExactPosterior) -> Fields:
    """Instead of C = chol(K + noise), N x N, the diagonal of C C^T."""
    diagonal = linalg.row_squares(value.C.factor)
    values = {name: getattr(value, name) for name in ("kernel", "X", "alpha", "log_evidence")}
    return {**values, "diagonal": diagonal, "jitter": value.C.jitter}


def _put_together_exact(values: Fields) -> ExactPosterior:
    kernel, X = values["kernel"], values["X"]
    with torch.no_grad():
        K = kernel(X)
        K.diagonal().copy_(values["diagonal"])
        factor = linalg.cholesky(K, name="covariance of the targets").factor
    C = linalg.Cholesky(factor, values["jitter"])
    return ExactPosterior(kernel, X, C, values["alpha"], values["log_evidence"])


def _put_together_nystrom(values: Fields) -> NystromPosterior:
    """T = N^-1/2 A LB^-T with A = N^-1/2 W^T and LB LB^T = I + A^T A."""
    prior, X, scale = values["prior"], values["X"], values["inverse_noise"].sqrt()
    with torch.no_grad():
        A = prior.features(X) * scale[:, None]
        B = linalg.symmetric_product(A.mT.to(torch.float64), A.mT.to(torch.float64))
        B.diagonal().add_(1.0)
        LB = linalg.cholesky(B, name="posterior precision of the inducing values", smallest_pivot=0.0).factor
        T = linalg.whiten_rows(A, LB.to(A.dtype)) * scale[:, None]
    return NystromPosterior(T=T, **values)


def _take_apart_kept(kept: KeptRows) -> Fields:
    """All groups as one, and their sizes. Rows without weights count once."""
    blocks = [group.block for group in kept.groups]
    weighted, known = (any(getattr(b, name) is not None for b in blocks) for name in ("weight", "noise_var"))
    return {
        "sizes": torch.tensor([len(block) for block in blocks], dtype=torch.int64),
        "X": torch.cat([b.X for b in blocks]) if blocks else None,
        "y": torch.cat([b.y for b in blocks]) if blocks else None,
        "noise_var": torch.cat([b.noise_var for b in blocks if b.noise_var is not None]) if known else None,
        "weight": torch.cat([torch.ones_like(b.y) if b.weight is None else b.weight for b in blocks])
        if weighted
        else None,
        "serials": torch.cat([group.serials for group in kept.groups]) if blocks else None,
    }


def _put_together_kept(values: Fields) -> KeptRows:
    sizes, serials = values.pop("sizes").tolist(), values.pop("serials")
    if not sizes:
        return KeptRows(())
    together, groups, start = Kept(Block(**values), serials), [], 0
    for size in sizes:
        groups.append(together.take(slice(start, start + size)))
        start += size
    if start != len(together.block):
        raise ModelFileError(f"groups of {start} rows in all do not fit {len(together.block)} rows")
    return KeptRows(tuple(groups))


RECORDS = (
    *map(
        plain,
        (
            Aggregation,
            Approximation,
            BatchState,
            Block,
            Blocking,
            Committee,
            Component,
            Fitted,
            GaussianExpert,
            InducingPosterior,
            InnerBlocks,
            Innovations,
            LearningResult,
            Nearest,
            NoiseProcess,
            NoisyExpert,
            NoisyModel,
            Partition,
            Process,
            Reach,
            RecentLevel,
            Rows,
            SparsePosterior,
            SparsePrior,
            Standardizer,
            Streamed,
        ),
    ),
    _with_packed(plain(linalg.Cholesky), "factor", symmetric=False),
    _with_packed(plain(BlockStatistics), "precision", symmetric=True),
    plain(LocalPosterior, leave_out=("_cache",)),
    RecordType(ExactPosterior, _take_apart_exact, _put_together_exact),
    RecordType(NystromPosterior, plain(NystromPosterior, leave_out=("T",)).take_apart, _put_together_nystrom),
    RecordType(KeptRows, _take_apart_kept, _put_together_kept),
    RecordType(
        FilterState,
        lambda state: {"prior": state.prior, "statistics": state.statistics},
        lambda values: recursive.resume(values["prior"], values["statistics"]),
    ),
)
ENUMS = (BaseCount, Family, Residual, TestConditional, Weighting)
