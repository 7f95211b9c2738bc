"""Fitted estimators as records of a model file, and back. Only here and in `record_parts` both are known."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sparsegp import approximations, kernels
from sparsegp.baselines.exact import ExactPosterior
from sparsegp.committee.aggregation import Aggregation, BaseCount, Weighting
from sparsegp.committee.experts import Process
from sparsegp.committee.nearest import Nearest
from sparsegp.committee.prediction import Committee
from sparsegp.engines import recursive
from sparsegp.engines.batch import BatchState
from sparsegp.engines.innovations import Innovations
from sparsegp.errors import ModelFileError
from sparsegp.estimators import record_parts as parts
from sparsegp.estimators.families import Fitted
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.updating.recent_level import RecentLevel
from sparsegp.estimators.updating.stream_state import Streamed
from sparsegp.files import kernels as kernel_records
from sparsegp.files import schema, seen_batches
from sparsegp.files.kernels import Classes
from sparsegp.heteroscedastic.learning import NoisyModel
from sparsegp.kernels import Kernel
from sparsegp.learning.recorder import LearningResult
from sparsegp.local_posterior import LocalPosterior

State = dict[str, Any]

WEIGHTINGS = {
    Weighting.ONE: "one",
    Weighting.SHARE: "one_over_experts",
    Weighting.ENTROPY: "entropy",
    Weighting.PRECISION: "squared_precision",
}
BASE_COUNTS = {BaseCount.ONCE: "once", BaseCount.PER_WEIGHT: "per_weight"}


def describe(estimator: Any) -> schema.Model:
    """The record of a fitted estimator."""
    check_is_fitted(estimator)
    model = estimator.plain()
    state, units = vars(model), model._standardizer
    info = dict(model.info_)
    stages = info.pop("stages", None)
    names = state.get("feature_names_in_")
    return schema.Model(
        kind=model.kind,
        **_described_parameters(model.get_params(deep=False)),
        columns=schema.Columns(
            count=int(model.n_features_in_),
            names=None if names is None else list(map(str, names)),
            target=state.get("target_name_in_"),
        ),
        scaling=schema.Scaling(
            input_mean=units.x_mean,
            input_scale=units.x_scale,
            target_mean=float(units.y_mean),
            target_scale=float(units.y_scale),
        ),
        noise_var=float(model.noise_var_),
        log_evidence=float(model.log_evidence_),
        rows_seen=int(model.n_samples_seen_),
        seen_batches=list(seen_batches.batch_ids(model)) or None,
        learning=None if stages is None else [schema.LearningStage(**vars(stage)) for stage in stages],
        info=info,
        **_DESCRIBED[model.kind](state),
    )


def restore(record: schema.Model, estimators: Mapping[str, type[Any]], classes: Classes) -> Any:
    """The estimator of a record, on the CPU. `classes` are those of the user's own kernels."""
    parameters = _restored_parameters(record, classes)
    model = estimators[record.kind](**parameters)
    scaling = record.scaling
    units = Standardizer(scaling.input_mean, scaling.input_scale, scaling.target_mean, scaling.target_scale)
    if not len(units.x_mean) == len(units.x_scale) == record.columns.count:
        raise ModelFileError(f"the scaling is not that of {record.columns.count} columns")
    kernel = kernel_records.restore(record.kernel, classes)
    state = {
        "_standardizer": units,
        "kernel_": units.raw_kernel(kernel),
        "noise_var_": record.noise_var,
        "n_samples_seen_": record.rows_seen,
        "n_features_in_": record.columns.count,
        "info_": _restored_info(record),
        **_RESTORED[record.kind](record, kernel, units, classes),
    }
    if record.columns.names is not None:
        state["feature_names_in_"] = np.array(record.columns.names, dtype=object)
    if record.columns.target is not None:
        state["target_name_in_"] = record.columns.target
    for name, value in state.items():
        setattr(model, name, value)
    if record.seen_batches:
        seen_batches.record_batches(model, *record.seen_batches)
    return model


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


def _described_sparse(state: State) -> State:
    fitted, kept = state["_fitted"], state.get("_fit_rows")
    if not isinstance(fitted, Fitted | Streamed):
        raise ModelFileError(f"A model file cannot hold a {type(fitted).__name__}.")
    stream, posterior, held = None, fitted.posterior, fitted.state
    if isinstance(fitted, Streamed):
        kept = fitted.kept
        stream = parts.describe_stream(fitted.innovations, fitted.level, fitted.n_arrived, fitted.n_rows)
    is_local = isinstance(posterior, LocalPosterior)
    window = None if kept is None or is_local or held is None else parts.describe_rows(kept, held.prior)
    return {
        "kernel": kernel_records.describe(fitted.kernel),
        "mean_noise_var": float(fitted.noise_var),
        "known_noise": state.get("_known_noise"),
        "rows_of_fit": state.get("_n_fit_rows"),
        "posterior": parts.describe_posterior(posterior, state["_row"], state["_blocking"], kept if is_local else None),
        "statistics": None if held is None else parts.describe_statistics(held.statistics),
        "window_rows": window,
        "stream": stream,
    }


def _restored_sparse(record: schema.Model, kernel: Kernel, units: Standardizer, classes: Classes) -> State:
    found = parts.need(record.posterior, "a posterior")
    posterior = parts.restore_posterior(found, kernel)
    inducing = posterior.X if isinstance(posterior, ExactPosterior) else posterior.prior.inducing
    kept = parts.by_block(posterior.rows) if isinstance(posterior, LocalPosterior) else None
    if record.window_rows is not None:
        kept = parts.restore_rows(record.window_rows)
    held = None
    if record.statistics is not None and not isinstance(posterior, ExactPosterior):
        held = BatchState(posterior.prior, parts.restore_statistics(record.statistics, posterior.prior))
    noise_var = parts.need(record.mean_noise_var, "the mean of the noise")
    optional = {"_known_noise": record.known_noise, "_n_fit_rows": record.rows_of_fit}
    state = {
        "_row": parts.restore_approximation(found.approximation),
        "_blocking": parts.restore_blocking(found),
        "inducing_": units.raw_inputs(inducing.numpy().astype(np.float64)),
        **{name: value for name, value in optional.items() if value is not None},
    }
    if record.stream is None:
        fitted = Fitted(kernel, noise_var, inducing, posterior, record.log_evidence, state=held)
        return {**state, "_fitted": fitted, "_fit_rows": kept}
    if held is None:
        raise ModelFileError("a model that was updated lacks its statistics")
    streamed = Streamed(
        kernel,
        noise_var,
        inducing,
        recursive.resume(held.prior, held.statistics),
        kept,
        parts.restore_innovations(record.stream),
        parts.restore_level(record.stream),
        record.stream.rows_arrived,
        record.stream.rows_held,
    )
    return {**state, "_fitted": streamed, "_fit_rows": None}


# Models with learned noise


def _described_learned_noise(state: State) -> State:
    model, n = state["_model"], state["n_samples_seen_"]
    jitter, seconds = float(model.jitter), float(model.seconds)
    innovations, level = state.get("_innovations", Innovations()), state.get("_level", RecentLevel())
    return {
        "kernel": kernel_records.describe(model.state.prior.kernel),
        "noise_kernel": kernel_records.describe(model.process.prior.kernel),
        "posterior": parts.describe_posterior(model.posterior, state["_row"], state["_blocking"]),
        "noise": parts.describe_noise(model.process),
        "noise_inference": schema.NoiseInference(
            jitter=jitter, evaluations=int(model.ascent_evaluations), seconds=seconds
        ),
        "statistics": parts.describe_statistics(model.state.statistics),
        "stream": parts.describe_stream(innovations, level, n, n),
    }


def _restored_learned_noise(record: schema.Model, kernel: Kernel, units: Standardizer, classes: Classes) -> State:
    found, stream = parts.need(record.posterior, "a posterior"), parts.need(record.stream, "the state of its stream")
    noise_kernel = kernel_records.restore(parts.need(record.noise_kernel, "the kernel of the noise"), classes)
    process = parts.restore_noise(parts.need(record.noise, "its noise"), noise_kernel)
    posterior = parts.restore_posterior(found, kernel)
    if isinstance(posterior, ExactPosterior):
        raise ModelFileError("a model with learned noise has inducing values")
    inference = parts.need(record.noise_inference, "the record of its inference")
    statistics = parts.restore_statistics(parts.need(record.statistics, "statistics"), posterior.prior)
    model = NoisyModel(
        posterior,
        process,
        record.log_evidence,
        BatchState(posterior.prior, statistics),
        inference.jitter,
        inference.evaluations,
        inference.seconds,
    )
    return {
        "_model": model,
        "_row": parts.restore_approximation(found.approximation),
        "_blocking": parts.restore_blocking(found),
        "_innovations": parts.restore_innovations(stream),
        "_level": parts.restore_level(stream),
        "inducing_": units.raw_inputs(posterior.prior.inducing.numpy()),
        "log_evidence_": record.log_evidence,
        "noise_kernel_": units.raw_noise_kernel(noise_kernel),
        "noise_inducing_": units.raw_inputs(process.prior.inducing.numpy()),
        "noise_mean_": float(process.mean) + units.log_noise_shift,
    }


# Committees


def _described_committee(state: State) -> State:
    committee = state["_committee"]
    f, *others = committee.processes
    noise = others[0] if others else None
    row, nearest = committee.row, committee.nearest
    record = schema.Committee(
        aggregation=schema.Aggregation(
            name=row.name,
            weighting=WEIGHTINGS[row.weighting],
            base_count=BASE_COUNTS[row.base_count],
            communicates=row.communicates,
            reference=row.reference,
        ),
        experts=[parts.describe_expert(expert) for expert in committee.experts],
        common=None if committee.common is None else parts.describe_expert(committee.common),
        noise_mean=None if noise is None else float(noise.mean),
        skip_tolerance=float(committee.tolerance),
        nearest=None if nearest is None else _described_nearest(nearest),
        n_jobs=committee.n_jobs,
    )
    return {
        "kernel": kernel_records.describe(f.kernel),
        "noise_kernel": None if noise is None else kernel_records.describe(noise.kernel),
        "committee": record,
    }


def _described_nearest(nearest: Nearest) -> schema.NearestExperts:
    centres, metric = parts.to_numpy(nearest.centres), parts.to_numpy(nearest.metric)
    return schema.NearestExperts(most=nearest.most, centres=centres, metric=metric)


def _restored_nearest(record: schema.NearestExperts) -> Nearest:
    return Nearest(record.most, parts.to_tensor(record.centres), parts.to_tensor(record.metric))


def _restored_committee(record: schema.Model, kernel: Kernel, units: Standardizer, classes: Classes) -> State:
    found = parts.need(record.committee, "its experts")
    noise_kernel = None if record.noise_kernel is None else kernel_records.restore(record.noise_kernel, classes)
    members: tuple[Process, ...] = (Process(kernel),)
    state: State = {"log_evidence_": record.log_evidence}
    if noise_kernel is not None:
        mean = parts.need(found.noise_mean, "the mean of the noise")
        members = (*members, Process(noise_kernel, mean))
        state["noise_kernel_"] = units.raw_noise_kernel(noise_kernel)
        state["noise_mean_"] = mean + units.log_noise_shift
    row, nearest = found.aggregation, found.nearest
    state["_committee"] = Committee(
        Aggregation(
            row.name,
            parts.key_of(WEIGHTINGS, row.weighting),
            parts.key_of(BASE_COUNTS, row.base_count),
            row.communicates,
            row.reference,
        ),
        members,
        [parts.restore_expert(expert, kernel, noise_kernel) for expert in found.experts],
        None if found.common is None else parts.restore_expert(found.common, kernel, noise_kernel),
        found.skip_tolerance,
        found.n_jobs,
        None
        if nearest is None
        else Nearest(nearest.most, parts.to_tensor(nearest.centres), parts.to_tensor(nearest.metric)),
    )
    return state


_DESCRIBED: Mapping[str, Callable[[State], State]] = {
    schema.SPARSE: _described_sparse,
    schema.LEARNED_NOISE: _described_learned_noise,
    schema.COMMITTEE: _described_committee,
}
_RESTORED: Mapping[str, Callable[[schema.Model, Kernel, Standardizer, Classes], State]] = {
    schema.SPARSE: _restored_sparse,
    schema.LEARNED_NOISE: _restored_learned_noise,
    schema.COMMITTEE: _restored_committee,
}
