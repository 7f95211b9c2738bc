"""Fitted estimators as records of a model file, and back. Only here, in `record_parts` and in
`committee_records` both are known."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sparsegp import kernels
from sparsegp.calibration.transform import named
from sparsegp.core import approximations
from sparsegp.core.dense import ExactPosterior
from sparsegp.core.local import LocalPosterior
from sparsegp.core.posterior import SparsePosterior
from sparsegp.data import FeatureLayout
from sparsegp.errors import ModelFileError
from sparsegp.estimators import committee_records
from sparsegp.estimators import record_parts as parts
from sparsegp.estimators.fitted import Columns, Fitted
from sparsegp.files import kernel_records, schema
from sparsegp.files.column_codes import (
    describe_completion,
    describe_encoding,
    restore_completion,
    restore_encoding,
)
from sparsegp.files.kernel_records import Classes
from sparsegp.fit.committee_model import CommitteeModel
from sparsegp.fit.kept import KeptRows
from sparsegp.fit.learned_noise import LearnedNoiseModel
from sparsegp.fit.model import Found, Model
from sparsegp.fit.scaling import Scaling
from sparsegp.infer import recursive
from sparsegp.infer.batch import BatchState
from sparsegp.infer.recursive import FilterState
from sparsegp.kernels import Kernel
from sparsegp.learn.trace import LearningResult

State = dict[str, Any]


def describe(estimator: Any) -> schema.Model:
    """The record of a fitted estimator."""
    check_is_fitted(estimator)
    fitted = estimator.fitted_
    scaling, columns = fitted.scaling, fitted.columns
    info = dict(fitted.info)
    stages = info.pop("stages", None)
    kind, parts_of_model = _described(fitted.model)
    return schema.Model(
        kind=kind,
        estimator=None if estimator.kind == kind else estimator.kind,
        **_described_parameters(estimator.get_params(deep=False)),
        columns=schema.Columns(
            count=int(columns.layout.n_features),
            names=None if columns.names is None else list(map(str, columns.names)),
            target=fitted.target,
            encoding=None if columns.encoding is None else describe_encoding(columns.encoding),
            completion=describe_completion(columns.completion),
        ),
        scaling=schema.Scaling(
            input_mean=scaling.x_mean,
            input_scale=scaling.x_scale,
            target_mean=float(scaling.y_mean),
            target_scale=float(scaling.y_scale),
            target_transform=None if scaling.transform is None else scaling.transform.name,
        ),
        noise_var=float(estimator.noise_var_),
        calibration=None if fitted.calibration is None else parts.describe_calibration(fitted.calibration),
        log_evidence=float(estimator.log_evidence_),
        rows_seen=int(fitted.n_samples),
        seen_batches=list(fitted.batches) or None,
        row_digest=None if fitted.digest is None else fitted.digest.counts,
        learning=None if stages is None else [schema.LearningStage(**vars(stage)) for stage in stages],
        info=info,
        **parts_of_model,
    )


def _described(model: Any) -> tuple[str, State]:
    for kind, cls, described in _DESCRIBED:
        if isinstance(model, cls):
            return kind, described(model)
    raise ModelFileError(f"A model file cannot hold a {type(model).__name__}.")


def restore(record: schema.Model, estimators: Mapping[str, type[Any]], classes: Classes) -> Any:
    """The estimator of a record, on the CPU. `classes` are those of the user's own kernels."""
    parameters = _restored_parameters(record, classes)
    estimator = estimators[record.estimator or record.kind](**parameters)
    found = record.scaling
    transform = named(found.target_transform)
    scaling = Scaling(found.input_mean, found.input_scale, found.target_mean, found.target_scale, transform)
    if not len(scaling.x_mean) == len(scaling.x_scale) == record.columns.count:
        raise ModelFileError(f"the scaling is not that of {record.columns.count} columns")
    kernel = kernel_records.restore(record.kernel, classes)
    fitted = Fitted(
        _RESTORED[record.kind](record, kernel, scaling, classes),
        scaling,
        _restored_info(record),
        record.rows_seen,
        _restored_columns(record.columns),
        record.columns.target,
        tuple(record.seen_batches or ()),
        None if record.calibration is None else parts.restore_calibration(record.calibration, record.columns.count),
        digest=None if record.row_digest is None else parts.restore_digest(record.row_digest),
    )
    estimator.assign(fitted)
    return estimator


def _restored_columns(record: schema.Columns) -> Columns:
    names = None if record.names is None else np.array(record.names, dtype=object)
    if record.encoding is None:
        completion = restore_completion(record.completion, record.count)
        return Columns(record.count, names, FeatureLayout.plain(record.count), completion=completion)
    encoding = restore_encoding(record.encoding, record.count)
    return Columns(len(encoding.codes), names, encoding.layout, encoding)


def _restored_info(record: schema.Model) -> dict[str, Any]:
    if record.learning is None:
        return dict(record.info)
    return {**record.info, "stages": [LearningResult(**vars(stage)) for stage in record.learning]}


# Parameters


def _described_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as data: scikit-learn kernels become kernels of this package, a random generator is not kept."""
    plain: State = {}
    own_kernels: dict[str, schema.Kernel] = {}
    own_rows: dict[str, schema.Approximation] = {}
    for name, value in values.items():
        if isinstance(value, approximations.Approximation):
            own_rows[name] = parts.describe_approximation(value)
        elif name in ("kernel", "noise_kernel") and not isinstance(value, str):
            kernel = value if isinstance(value, Kernel) else kernels.as_kernel(value)[0]
            own_kernels[name] = kernel_records.describe(kernel)
        elif name in ("inducing", "noise_inducing") and not isinstance(value, str):
            plain[name] = np.asarray(value, dtype=np.float64)
        else:
            plain[name] = value if name != "random_state" or isinstance(value, int) else None
    return {
        "parameters": plain,
        "parameter_kernels": own_kernels or None,
        "parameter_approximations": own_rows or None,
    }


def _restored_parameters(record: schema.Model, classes: Classes) -> State:
    own_kernels = {
        name: kernel_records.restore(kernel, classes) for name, kernel in (record.parameter_kernels or {}).items()
    }
    own_rows = {name: parts.restore_approximation(row) for name, row in (record.parameter_approximations or {}).items()}
    parameters = {**record.parameters, **own_kernels, **own_rows}
    return {**parameters, "device": "cpu"} if "device" in parameters else parameters


# Sparse models


def _described_sparse(model: Model) -> State:
    posterior, held = model.posterior, model.state
    stream = None
    if model.found is None:
        stream = parts.describe_stream(model.innovations, model.level, model.n_arrived, model.n_rows)
    is_local = isinstance(posterior, LocalPosterior)
    window_rows = None
    if model.kept is not None and held is not None and not is_local:
        window_rows = parts.describe_rows(model.kept, held.prior.inducing.shape[1])
    return {
        "kernel": kernel_records.describe(model.kernel),
        "mean_noise_var": float(model.noise_var),
        "known_noise": model.known_noise,
        "rows_of_fit": model.n_arrived,
        "posterior": parts.describe_posterior(
            posterior, model.approx, model.blocking, model.kept if is_local else None
        ),
        "statistics": None if held is None else parts.describe_statistics(held.statistics),
        "window_rows": window_rows,
        "stream": stream,
    }


def _restored_sparse(record: schema.Model, kernel: Kernel, scaling: Scaling, classes: Classes) -> Model:
    found = parts.need(record.posterior, "a posterior")
    posterior = parts.restore_posterior(found, kernel)
    inducing = posterior.X if isinstance(posterior, ExactPosterior) else posterior.prior.inducing
    kept = KeptRows.of(posterior.rows) if isinstance(posterior, LocalPosterior) else None
    if record.window_rows is not None:
        kept = parts.restore_rows(record.window_rows)
    held: BatchState | FilterState | None = None
    if record.statistics is not None and not isinstance(posterior, ExactPosterior):
        held = BatchState(posterior.prior, parts.restore_statistics(record.statistics, posterior.prior))
    model = Model(
        parts.restore_approximation(found.approximation),
        kernel,
        parts.need(record.mean_noise_var, "the mean of the noise"),
        inducing,
        held,
        Found(posterior, record.log_evidence),
        parts.restore_blocking(found.partition),
        kept,
        bool(record.known_noise),
        record.parameters.get("window"),
        record.rows_of_fit or record.rows_seen,
        record.rows_of_fit or record.rows_seen,
    )
    stream = record.stream
    if stream is None:
        return model
    if held is None:
        raise ModelFileError("a model that was updated lacks its statistics")
    return replace(
        model,
        state=recursive.resume(held.prior, held.statistics),
        found=None,
        n_arrived=stream.rows_arrived,
        n_rows=stream.rows_held,
        innovations=parts.restore_innovations(stream),
        level=parts.restore_level(stream),
    )


# Models with learned noise


def _described_learned_noise(model: LearnedNoiseModel) -> State:
    mean = model.mean
    if mean.state is None:
        raise ModelFileError("A model with learned noise lacks the statistics of its rows.")
    return {
        "kernel": kernel_records.describe(model.kernel),
        "noise_kernel": kernel_records.describe(model.process.prior.kernel),
        "mean_noise_var": float(model.noise_var),
        "posterior": parts.describe_posterior(mean.posterior, mean.approx, mean.blocking, mean.kept),
        "noise": parts.describe_noise(model.process),
        "statistics": parts.describe_statistics(mean.state.statistics),
        "stream": parts.describe_stream(mean.innovations, mean.level, mean.n_arrived, mean.n_rows),
    }


def _restored_learned_noise(
    record: schema.Model, kernel: Kernel, scaling: Scaling, classes: Classes
) -> LearnedNoiseModel:
    found, stream = parts.need(record.posterior, "a posterior"), parts.need(record.stream, "the state of its stream")
    noise_kernel = kernel_records.restore(parts.need(record.noise_kernel, "the kernel of the noise"), classes)
    process = parts.restore_noise(parts.need(record.noise, "its noise"), noise_kernel)
    posterior = parts.restore_posterior(found, kernel)
    if isinstance(posterior, ExactPosterior):
        raise ModelFileError("a model with learned noise has inducing values")
    innovations = parts.restore_innovations(stream)
    is_updated = innovations.rows > 0 or stream.rows_held != stream.rows_arrived
    if is_updated and isinstance(posterior, SparsePosterior):
        posterior = replace(posterior, transient=True)  # as updates leave it
    prior = posterior.prior
    statistics = parts.restore_statistics(parts.need(record.statistics, "statistics"), prior)
    mean = Model(
        parts.restore_approximation(found.approximation),
        kernel,
        float(prior.noise_var),
        prior.inducing,
        BatchState(prior, statistics),
        Found(posterior, record.log_evidence),
        parts.restore_blocking(found.partition),
        KeptRows.of(posterior.rows) if isinstance(posterior, LocalPosterior) else None,
        True,
        None,
        stream.rows_arrived,
        stream.rows_held,
        innovations,
        parts.restore_level(stream),
    )
    return LearnedNoiseModel(mean, process, record.log_evidence, parts.mean_noise(record, scaling))


_DESCRIBED: tuple[tuple[str, type[Any], Callable[[Any], State]], ...] = (
    (schema.SPARSE, Model, _described_sparse),
    (schema.LEARNED_NOISE, LearnedNoiseModel, _described_learned_noise),
    (schema.COMMITTEE, CommitteeModel, committee_records.describe),
)
_RESTORED: Mapping[str, Callable[[schema.Model, Kernel, Scaling, Classes], Any]] = {
    schema.SPARSE: _restored_sparse,
    schema.LEARNED_NOISE: _restored_learned_noise,
    schema.COMMITTEE: committee_records.restore,
}
