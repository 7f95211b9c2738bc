"""Parts of fitted models as records of a model file, and back: posteriors, rows, sums, noise."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.calibration.calibration import Calibration
from sparsegp.calibration.scale import LocalScale
from sparsegp.core import approximations
from sparsegp.core.approximations import Family, Residual, TestConditional
from sparsegp.core.block import Block
from sparsegp.core.dense import ExactPosterior, NystromPosterior, TrendPosterior, require_dense_size
from sparsegp.core.local import LocalPosterior
from sparsegp.core.partition import Blocking, Partition
from sparsegp.core.posterior import InducingPosterior, LatentPosterior, SparsePosterior
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.core.trend import Trend
from sparsegp.data.digest import SIZE as DIGEST_SIZE
from sparsegp.data.digest import RowDigest
from sparsegp.errors import ModelFileError
from sparsegp.files import calibration_parts, schema
from sparsegp.fit.kept import Kept, KeptRows
from sparsegp.fit.scaling import Scaling
from sparsegp.infer.drift import Innovations, RecentLevel
from sparsegp.kernels import Kernel
from sparsegp.noise.process import NoiseProcess

Array = np.ndarray[Any, Any]
State = dict[str, Any]
Posterior = SparsePosterior | LocalPosterior | ExactPosterior | NystromPosterior

RESIDUALS = {Residual.NONE: "none", Residual.DIAGONAL: "diagonal", Residual.BLOCK: "block"}
NEW_ROWS = {
    TestConditional.DETERMINISTIC: "deterministic",
    TestConditional.EXACT: "exact",
    TestConditional.INDEPENDENT: "independent",
    TestConditional.LOCAL: "local",
}
METHODS = {
    Family.INDUCING: "inducing",
    Family.EXACT: "exact",
    Family.SUBSET: "subset",
    Family.NYSTROM: "nystrom",
}
# Arrays and triangles


def to_numpy(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().contiguous().numpy()
    return array


def to_tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def _packed(A: Tensor) -> Array:
    """The lower triangle, row by row, of a triangular or symmetric matrix: half the size."""
    return to_numpy(linalg.packed_lower(A.detach()))


def _unpacked(values: Array, size: int) -> Tensor:
    """The lower-triangular matrix of `_packed`, column by column in memory as a factorisation leaves it.

    Solves with another layout differ in the last digit.
    """
    if size * (size + 1) != 2 * len(values):
        raise ModelFileError(f"a triangle of {size} rows cannot have {len(values)} entries")
    A = torch.zeros(size, size, dtype=torch.float64).mT
    row, column = torch.tril_indices(size, size)
    A[row, column] = to_tensor(values)
    return A


def _factor(values: Array, size: int, jitter: float) -> linalg.Cholesky:
    L = _unpacked(values, size)
    if not (L.diagonal() > 0).all():
        raise ModelFileError("a triangle that should be a Cholesky factor has a diagonal that is not positive")
    return linalg.Cholesky(L, jitter)


def _symmetric(values: Array, size: int) -> Tensor:
    """Row by row in memory, as sums of statistics are: a factorisation has other last digits from the other layout."""
    A = _unpacked(values, size)
    return (A + A.tril(-1).mT).mT


def need(value: Any, what: str) -> Any:
    if value is None:
        raise ModelFileError(f"the model lacks {what}")
    return value


# Approximations and posteriors


def describe_approximation(approx: approximations.Approximation) -> schema.Approximation:
    return schema.Approximation(
        name=approx.name,
        components=[
            schema.Component(weight=float(c.weight), residual=RESIDUALS[c.residual], power=float(c.alpha))
            for c in approx.components
        ],
        penalty=float(approx.penalty),
        new_rows=NEW_ROWS[approx.test],
        method=METHODS[approx.family],
        reference=approx.reference,
    )


def key_of(words: Mapping[Any, str], word: str) -> Any:
    return {text: key for key, text in words.items()}[word]


def restore_approximation(approx: schema.Approximation) -> approximations.Approximation:
    components = tuple(
        approximations.Component(c.weight, key_of(RESIDUALS, c.residual), c.power) for c in approx.components
    )
    test, family = key_of(NEW_ROWS, approx.new_rows), key_of(METHODS, approx.method)
    return approximations.Approximation(approx.name, components, approx.penalty, test, approx.reference, family)


def describe_inducing(prior: SparsePrior, q: InducingPosterior) -> schema.InducingValues:
    return schema.InducingValues(
        inputs=to_numpy(prior.inducing),
        noise_var=float(prior.noise_var),
        prior_cholesky=_packed(prior.Luu.factor),
        prior_jitter=float(prior.Luu.jitter),
        mean=to_numpy(q.mean),
        precision_cholesky=_packed(q.LB.factor),
        precision_jitter=float(q.LB.jitter),
    )


def describe_trend(trend: Trend | None) -> schema.Trend | None:
    if trend is None:
        return None
    return schema.Trend(columns=np.array(trend.columns, dtype=np.int64), width=float(trend.width))


def restore_trend(record: schema.Trend | None) -> Trend | None:
    return None if record is None else Trend(tuple(record.columns.tolist()), record.width)


def restore_prior(
    values: schema.InducingValues,
    kernel: Kernel,
    approx: approximations.Approximation,
    trend: Trend | None = None,
) -> SparsePrior:
    Luu = _factor(values.prior_cholesky, len(values.inputs), values.prior_jitter)
    noise_var = torch.tensor(values.noise_var, dtype=torch.float64)
    prior = SparsePrior(kernel, to_tensor(values.inputs), noise_var, approx, Luu, trend)
    if len(values.mean) != prior.n_features:
        raise ModelFileError(f"{len(values.mean)} means do not fit {prior.n_features} inducing values and coefficients")
    return prior


def restore_q(values: schema.InducingValues) -> InducingPosterior:
    LB = _factor(values.precision_cholesky, len(values.mean), values.precision_jitter)
    return InducingPosterior(to_tensor(values.mean), LB)


def describe_posterior(
    posterior: LatentPosterior,
    approx: approximations.Approximation,
    blocking: Blocking | None,
    kept: KeptRows | None = None,
) -> schema.Posterior:
    """`kept` are the rows of a local posterior as updates know them, in order of arrival."""
    partition = None if blocking is None else describe_partition(blocking)
    given: State = {
        "approximation": describe_approximation(approx),
        "partition": partition,
        "trend": describe_trend(posterior.trend),
    }
    if isinstance(posterior, SparsePosterior):
        inducing = describe_inducing(posterior.prior, posterior.q)
        return schema.Posterior(form=schema.INDUCING, inducing=inducing, **given)
    if isinstance(posterior, LocalPosterior):
        inducing = describe_inducing(posterior.prior, posterior.q)
        rows = describe_rows(KeptRows.of(posterior.rows) if kept is None else kept, posterior.prior.inducing.shape[1])
        return schema.Posterior(form=schema.LOCAL, inducing=inducing, rows=rows, **given)
    if isinstance(posterior, ExactPosterior):
        return schema.Posterior(form=schema.EXACT, dense=describe_dense(posterior), **given)
    if isinstance(posterior, NystromPosterior):
        inducing, nystrom = describe_inducing(posterior.prior, posterior.q), describe_nystrom(posterior)
        return schema.Posterior(form=schema.NYSTROM, inducing=inducing, nystrom=nystrom, **given)
    raise ModelFileError(f"A model file cannot hold a {type(posterior).__name__}.")


def restore_posterior(record: schema.Posterior, kernel: Kernel) -> Posterior:
    if record.form == schema.EXACT:
        return restore_dense(need(record.dense, "its rows"), kernel, restore_trend(record.trend))
    inducing = need(record.inducing, "inducing values")
    prior = restore_prior(inducing, kernel, restore_approximation(record.approximation), restore_trend(record.trend))
    if record.form == schema.NYSTROM:
        return restore_nystrom(need(record.nystrom, "its rows"), prior, restore_q(inducing))
    if record.form == schema.LOCAL:
        return LocalPosterior(prior, restore_q(inducing), restore_rows(need(record.rows, "its rows")))
    return SparsePosterior(prior, restore_q(inducing))


def describe_dense(posterior: ExactPosterior) -> schema.DenseRows:
    """Instead of C = chol(K + noise), N x N, the diagonal of K + noise."""
    return schema.DenseRows(
        inputs=to_numpy(posterior.X),
        weights=to_numpy(posterior.alpha),
        covariance_diagonal=to_numpy(posterior.diagonal),
        jitter=float(posterior.C.jitter),
        log_evidence=float(posterior.log_evidence),
        trend_mean=None if posterior.beside is None else to_numpy(posterior.beside.mean),
    )


def restore_dense(record: schema.DenseRows, kernel: Kernel, trend: Trend | None) -> ExactPosterior:
    require_dense_size(len(record.inputs))
    X = to_tensor(record.inputs)
    with torch.no_grad(), parallel.single(len(X)):  # as `ExactPosterior.build`, to the last digit
        K = kernel(X)
        diagonal = to_tensor(record.covariance_diagonal)
        K.diagonal().copy_(diagonal)
        C = linalg.cholesky(K, name="covariance of the targets", least_jitter=record.jitter)
        beside = None
        if trend is not None:
            beside = TrendPosterior.of(trend, X, C, to_tensor(need(record.trend_mean, "the mean of its trend")))
    return ExactPosterior(kernel, X, C, to_tensor(record.weights), record.log_evidence, diagonal, beside)


def describe_nystrom(posterior: NystromPosterior) -> schema.NystromRows:
    return schema.NystromRows(
        inputs=to_numpy(posterior.X),
        weights=to_numpy(posterior.beta),
        noise_precision=to_numpy(posterior.inverse_noise),
        clip=bool(posterior.clip),
    )


def restore_nystrom(record: schema.NystromRows, prior: SparsePrior, q: InducingPosterior) -> NystromPosterior:
    inputs, inverse_noise, beta = (to_tensor(a) for a in (record.inputs, record.noise_precision, record.weights))
    return NystromPosterior.resumed(prior, inputs, inverse_noise, q, beta, clip=record.clip)


# Rows and blocks


def describe_rows(kept: KeptRows, n_columns: int = 0) -> schema.Rows:
    """All groups as one, and their sizes. Rows without weights count once. `n_columns` is needed without groups."""
    blocks = [member.block for member in kept.members]
    weighted, known = (any(getattr(b, name) is not None for b in blocks) for name in ("weight", "noise_var"))
    noise = [to_numpy(b.noise_var) for b in blocks if b.noise_var is not None]
    weights = [to_numpy(b.weights) for b in blocks]
    return schema.Rows(
        inputs=np.concatenate([to_numpy(b.X) for b in blocks]) if blocks else np.zeros((0, n_columns)),
        targets=np.concatenate([to_numpy(b.y) for b in blocks]) if blocks else np.zeros(0),
        noise_var=np.concatenate(noise) if known else None,
        weights=np.concatenate(weights) if weighted else None,
        block_sizes=np.array([len(block) for block in blocks], dtype=np.int64),
        arrival=np.concatenate([np.zeros(0, dtype=np.int64), *(to_numpy(member.serials) for member in kept.members)]),
    )


def restore_rows(record: schema.Rows) -> KeptRows:
    noise, weights = (None if a is None else to_tensor(a) for a in (record.noise_var, record.weights))
    together = Kept(
        Block(to_tensor(record.inputs), to_tensor(record.targets), noise, weights), to_tensor(record.arrival)
    )
    groups, start = [], 0
    for size in record.block_sizes.tolist():
        groups.append(together.take(slice(start, start + size)))
        start += size
    lengths = {len(a) for a in (record.targets, record.arrival, record.noise_var, record.weights) if a is not None}
    if {start, *lengths} != {len(together.block)} or (record.block_sizes < 0).any():
        raise ModelFileError(f"blocks of {start} rows in all do not fit {len(together.block)} rows")
    return KeptRows(tuple(groups))


def describe_partition(blocking: Blocking) -> schema.Partition:
    labels = None if blocking.originals is None else to_numpy(blocking.originals)
    centroids, metric = to_numpy(blocking.partition.centroids), to_numpy(blocking.metric)
    return schema.Partition(centroids=centroids, metric=metric, labels=labels)


def restore_blocking(found: schema.Partition | None) -> Blocking | None:
    if found is None:
        return None
    labels = None if found.labels is None else to_tensor(found.labels)
    return Blocking(Partition(to_tensor(found.centroids)), to_tensor(found.metric), labels)


# What updates need


def describe_statistics(statistics: BlockStatistics) -> schema.Statistics:
    return schema.Statistics(
        precision=_packed(statistics.precision),
        shift=to_numpy(statistics.shift),
        noise_logdet=float(statistics.noise_logdet),
        target_sq=float(statistics.target_sq),
        penalty=float(statistics.penalty),
        n_rows=float(statistics.n_rows),
    )


def restore_statistics(record: schema.Statistics, prior: SparsePrior) -> BlockStatistics:
    """The fingerprint is that of the prior they were computed with, by whatever this version hashes."""
    return BlockStatistics(
        _symmetric(record.precision, prior.n_features),
        to_tensor(record.shift),
        record.noise_logdet,
        record.target_sq,
        record.penalty,
        record.n_rows,
        prior.fingerprint,
    )


def restore_digest(counts: Array) -> RowDigest:
    if counts.shape != (DIGEST_SIZE,) or counts.dtype != np.uint8:
        raise ModelFileError(f"a digest of rows has {DIGEST_SIZE} bytes, not {counts.shape} of {counts.dtype}")
    return RowDigest(counts)


def describe_stream(innovations: Innovations, level: RecentLevel, rows_arrived: int, rows_held: int) -> schema.Stream:
    return schema.Stream(
        rows_arrived=int(rows_arrived),
        rows_held=int(rows_held),
        innovations=schema.Innovations(
            rows=int(innovations.rows),
            square_sum=float(innovations.square_sum),
            weight=float(innovations.weight),
            weight_sq=float(innovations.weight_sq),
        ),
        level=schema.RecentLevel(
            weight=float(level.weight),
            input_total=np.asarray(level.total, dtype=np.float64),
            target_total=float(level.target_total),
            reported=bool(level.reported),
        ),
    )


def restore_innovations(record: schema.Stream) -> Innovations:
    return Innovations(**vars(record.innovations))


def restore_level(record: schema.Stream) -> RecentLevel:
    level = record.level
    return RecentLevel(level.weight, level.input_total, level.target_total, level.reported)


# Calibration


def describe_calibration(calibration: Calibration) -> schema.Calibration:
    scale, shape = calibration.scale, calibration.shape
    return schema.Calibration(
        weights=shape.weight,
        locations=shape.location,
        widths=shape.width,
        scale=None if scale is None else describe_scale(scale),
        rows=int(calibration.n_rows),
        gain=float(calibration.gain),
    )


def describe_scale(scale: LocalScale) -> schema.LocalScale:
    trees = scale.trees
    return schema.LocalScale(
        base=float(trees.base),
        columns=trees.columns,
        thresholds=trees.thresholds,
        leaves=trees.leaves,
        strength=float(scale.strength),
        most=float(scale.most),
    )


def restore_calibration(record: schema.Calibration, n_columns: int) -> Calibration:
    shape = calibration_parts.restored_shape(record)
    scale = None if record.scale is None else calibration_parts.restored_scale(record.scale, n_columns)
    return Calibration(shape, scale, record.rows, record.gain)


# Noise processes


def describe_noise(process: NoiseProcess) -> schema.NoiseProcess:
    least, largest = process.limits
    return schema.NoiseProcess(
        mean=float(process.mean),
        inducing=describe_inducing(process.prior, process.q),
        least_var=float(least),
        largest_var=float(largest),
    )


def restore_noise(record: schema.NoiseProcess, kernel: Kernel) -> NoiseProcess:
    if record.least_var > record.largest_var:
        raise ModelFileError("the least noise variance is above the largest")
    prior = restore_prior(record.inducing, kernel, approximations.get("vfe"))
    mean = torch.tensor(record.mean, dtype=torch.float64)
    return NoiseProcess(prior, mean, restore_q(record.inducing), (record.least_var, record.largest_var))


def mean_noise(record: schema.Model, scaling: Scaling) -> float:
    """To the last digit, where the file has it."""
    known = record.mean_noise_var
    return record.noise_var / scaling.y_scale**2 if known is None else known
