"""Model files of version 1 as trees of version 2. Frozen: it knows no class of this package, only names in old files.

A file of version 1 holds Python objects: records by the name of their class, the attributes of the estimator by theirs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tree = dict[str, Any]
Fields = Mapping[str, Any]

KIND, CUSTOM = "$kind", "$custom"

ESTIMATORS = {
    "SparseGPRegressor": "sparse",
    "HeteroscedasticGPRegressor": "learned_noise",
    "CommitteeGPRegressor": "committee",
}
KERNELS = {
    "SquaredExponential": "squared_exponential",
    "Matern12": "matern12",
    "Matern32": "matern32",
    "Matern52": "matern52",
    "RationalQuadratic": "rational_quadratic",
    "Periodic": "periodic",
    "Linear": "linear",
    "Constant": "constant",
    "Sum": "sum",
    "Product": "product",
    "Power": "power",
    "Rescaled": "rescaled",
}
ARRAYS = {
    "log_variance": "log_variance",
    "log_lengthscales": "log_lengthscales",
    "log_shape": "log_shape",
    "log_period": "log_period",
    "units": "units",
    "center": "center",
    "x_shift": "input_shift",
    "x_scale": "input_scale",
}
WEIGHTINGS = {"one": "one", "share": "one_over_experts", "entropy": "entropy", "precision": "squared_precision"}
BASE_COUNTS = {"once": "once", "per weight": "per_weight"}


class TensorArray(np.ndarray[Any, Any]):
    """An array that was a tensor of torch."""


def translated(description: Fields, arrays: Mapping[str, Array]) -> Tree:
    """The tree of version 2."""
    kind = ESTIMATORS.get(description["estimator"])
    if kind is None:
        raise ValueError(f"it holds a {description['estimator']!r}, which is none of {', '.join(ESTIMATORS)}")
    decoder = _Decoder(arrays)
    parameters = {name: decoder.decode(form) for name, form in description["parameters"].items()}
    state = {name: decoder.decode(form) for name, form in description["state"].items()}
    parts = {"sparse": _sparse, "learned_noise": _learned_noise, "committee": _committee}[kind](state)
    return {"kind": kind, **_parameters(parameters), **_common(state), **parts}


class _Decoder:
    """JSON and arrays to dictionaries, lists, tuples and numbers. What was shared stays shared."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self._made: dict[int, Any] = {}

    def decode(self, form: Any) -> Any:
        if not isinstance(form, dict):
            return form
        (tag, *_) = (key for key in form if key.startswith("$"))
        return self._READERS[tag](self, form[tag], form)

    def _list(self, items: Any, form: Any) -> list[Any]:
        return [self.decode(item) for item in items]

    def _fields(self, name: str, form: Any) -> dict[str, Any]:
        value = {field: self.decode(item) for field, item in form["values"].items()}
        value |= {KIND: name, CUSTOM: form.get("custom", False)}
        self._made[form["id"]] = value
        return value

    _READERS: Mapping[str, Callable[["_Decoder", Any, Any], Any]] = {
        "$float": lambda self, text, form: float(text),
        "$tensor": lambda self, name, form: self._arrays[name].view(TensorArray),
        "$array": lambda self, name, form: self._arrays[name],
        "$names": lambda self, names, form: np.array(names, dtype=object),
        "$tuple": lambda self, items, form: tuple(self._list(items, form)),
        "$list": _list,
        "$dict": lambda self, items, form: {self.decode(key): self.decode(item) for key, item in items},
        "$enum": lambda self, name, form: form["value"],
        "$ref": lambda self, number, form: self._made[number],
        "$record": _fields,
        "$kernel": _fields,
    }


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.get(KIND) == kind


def _array(value: Array) -> Array:
    """The numbers alone."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected an array, got {value!r:.40}")
    return value.view(np.ndarray)


def _number(value: Any) -> float:
    """A number, which may have been a tensor without axes."""
    if not isinstance(value, np.ndarray | float | int):
        raise TypeError(f"expected a number, got {value!r:.40}")
    return float(value)


def _free(value: Any) -> Any:
    """Values in any arrangement, as version 2 writes them."""
    if isinstance(value, TensorArray):
        return {"$tensor": _array(value)}
    if isinstance(value, np.ndarray):
        return {"$texts": value.tolist()} if value.dtype.kind == "O" else value
    if isinstance(value, list):
        return [_free(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [_free(item) for item in value]}
    if isinstance(value, dict):
        if KIND in value:
            raise TypeError(f"a {value[KIND]} is in a place of plain values")
        return {"$pairs": [[_free(key), _free(item)] for key, item in value.items()]}
    return value


def _parameters(values: Fields) -> Tree:
    kernels = {name: _kernel(value) for name, value in values.items() if isinstance(value, dict) and "kernels" in value}
    rows = {name: _approximation(value) for name, value in values.items() if _is(value, "Approximation")}
    plain = {name: _free(value) for name, value in values.items() if name not in kernels and name not in rows}
    return {"parameters": plain, "parameter_kernels": kernels or None, "parameter_approximations": rows or None}


def _common(state: Fields) -> Tree:
    units, columns, names = state["_standardizer"], state.get("_table_columns"), state.get("feature_names_in_")
    log, info = state.get("_batch_log"), dict(state["info_"])
    stages = info.pop("stages", None)
    return {
        "columns": {
            "count": state["n_features_in_"],
            "names": None if names is None else list(names),
            "target": None if columns is None else columns["target"],
        },
        "scaling": {
            "input_mean": _array(units["x_mean"]),
            "input_scale": _array(units["x_scale"]),
            "target_mean": units["y_mean"],
            "target_scale": units["y_scale"],
        },
        "noise_var": state["noise_var_"],
        "rows_seen": state["n_samples_seen_"],
        "seen_batches": None if log is None or log["fit"] is not units else list(log["ids"]),
        "learning": None if stages is None else [_stage(stage) for stage in stages],
        "info": {name: _free(value) for name, value in info.items()},
    }


def _stage(stage: Fields) -> Tree:
    names = ("n_rows", "iterations", "evaluations", "seconds", "reason")
    return {
        "objective": _number(stage["objective"]),
        **{name: stage[name] for name in names},
        "stopped": stage.get("stopped", False),
    }


def _kernel(kernel: Fields) -> Tree:
    nodes: list[Tree] = []
    _node(kernel, nodes, {})
    return {"nodes": nodes}


def _node(kernel: Fields, nodes: list[Tree], numbers: dict[int, int]) -> int:
    """The number of a kernel among the nodes; its parts come first."""
    if id(kernel) in numbers:
        return numbers[id(kernel)]
    inner = {
        name: [_node(p, nodes, numbers) for p in parts] if isinstance(parts, list) else _node(parts, nodes, numbers)
        for name, parts in kernel["kernels"].items()
    }
    nodes.append(_custom(kernel, inner) if kernel[CUSTOM] else _built_in(kernel, inner))
    numbers[id(kernel)] = len(nodes) - 1
    return numbers[id(kernel)]


def _custom(kernel: Fields, inner: Tree) -> Tree:
    values = {
        "class_name": kernel[KIND],
        "attributes": {name: _free(value) for name, value in kernel["attributes"].items()},
        "parameters": {name: _array(value) for name, value in kernel["parameters"].items()},
        "buffers": {name: _array(value) for name, value in kernel["buffers"].items()},
        "parts": inner,
    }
    return {"kind": "custom", "custom": values}


def _built_in(kernel: Fields, inner: Tree) -> Tree:
    attributes = dict(kernel["attributes"])
    columns = attributes.pop("active_dims", None)
    node: Tree = {"kind": KERNELS[kernel[KIND]]}
    if columns is not None:
        node["active_columns"] = list(columns)
    if "exponent" in attributes:
        node["exponent"] = attributes.pop("exponent")
    if "y_scale" in attributes:
        node["output_scale"] = attributes.pop("y_scale")
    if attributes:
        raise ValueError(f"a kernel cannot have a value called {min(attributes)!r}")
    node |= {ARRAYS[name]: _array(value) for name, value in {**kernel["parameters"], **kernel["buffers"]}.items()}
    if inner:
        (parts,) = inner.values()
        node["parts"] = parts if isinstance(parts, list) else [parts]
    return node


def _approximation(row: Fields) -> Tree:
    return {
        "name": row["name"],
        "components": [
            {"weight": part["weight"], "residual": part["residual"], "power": part["alpha"]}
            for part in row["components"]
        ],
        "penalty": row["penalty"],
        "new_rows": row["test"],
        "method": row.get("family", "inducing"),
        "reference": row["reference"],
    }


def _inducing(prior: Fields, q: Fields) -> Tree:
    return {
        "inputs": _array(prior["inducing"]),
        "noise_var": _number(prior["noise_var"]),
        "prior_cholesky": _array(prior["Luu"]["factor"]),
        "prior_jitter": prior["Luu"]["jitter"],
        "mean": _array(q["mean"]),
        "precision_cholesky": _array(q["LB"]["factor"]),
        "precision_jitter": q["LB"]["jitter"],
    }


def _q_of(statistics: Fields) -> Tree:
    """N(mean, (B B^T)^-1) with B B^T = I + precision, B B^T mean = shift."""
    packed, shift = _array(statistics["precision"]), _array(statistics["shift"])
    size = len(shift)
    if len(packed) != size * (size + 1) // 2:
        raise ValueError(f"a triangle of {size} rows cannot have {len(packed)} entries")
    A = np.zeros((size, size))
    A[np.tril_indices(size)] = packed
    A = A + np.tril(A, -1).T + np.eye(size)
    B = np.linalg.cholesky(A)
    return {"mean": np.linalg.solve(A, shift), "LB": {"factor": B[np.tril_indices(size)], "jitter": 0.0}}


def _posterior(posterior: Fields, row: Fields | None, blocking: Fields | None) -> Tree:
    forms = {
        "SparsePosterior": _sparse_form,
        "LocalPosterior": _local_form,
        "ExactPosterior": _exact_form,
        "NystromPosterior": _nystrom_form,
    }
    assumed = posterior["prior"]["row"] if row is None else row
    values = {"approximation": _approximation(assumed), **forms[posterior[KIND]](posterior)}
    return values if blocking is None else {**values, "partition": _partition(blocking)}


def _sparse_form(posterior: Fields) -> Tree:
    return {"form": "inducing", "inducing": _inducing(posterior["prior"], posterior["q"])}


def _local_form(posterior: Fields) -> Tree:
    return {
        "form": "local",
        "inducing": _inducing(posterior["prior"], posterior["q"]),
        "rows": _rows(posterior["rows"], posterior["prior"]),
    }


def _exact_form(posterior: Fields) -> Tree:
    diagonal, jitter = _array(posterior["diagonal"]), posterior["jitter"]
    dense = {
        "inputs": _array(posterior["X"]),
        "weights": _array(posterior["alpha"]),
        # version 1 has it with the jitter
        "covariance_diagonal": diagonal - diagonal.mean() * (jitter / (1.0 + jitter)),
        "jitter": jitter,
        "log_evidence": _number(posterior["log_evidence"]),
    }
    return {"form": "exact", "dense": dense}


def _nystrom_form(posterior: Fields) -> Tree:
    rows = {
        "inputs": _array(posterior["X"]),
        "weights": _array(posterior["beta"]),
        "noise_precision": _array(posterior["inverse_noise"]),
        "clip": posterior.get("clip", False),
    }
    return {"form": "nystrom", "inducing": _inducing(posterior["prior"], posterior["q"]), "nystrom": rows}


def _rows(rows: Fields, prior: Fields) -> Tree:
    """Rows by block: those of a fit, or those kept for updates."""
    block: Fields = rows
    if _is(rows, "Rows"):
        block = rows["all"]
        sizes, arrival = np.diff(_array(rows["offsets"])), np.arange(len(block["y"]))
    elif rows["X"] is None:
        columns = _array(prior["inducing"]).shape[1]
        none = np.zeros(0, dtype=np.int64)
        return {"inputs": np.zeros((0, columns)), "targets": np.zeros(0), "block_sizes": none, "arrival": none}
    else:
        sizes, arrival = _array(rows["sizes"]), _array(rows["serials"])
    found = {"inputs": _array(block["X"]), "targets": _array(block["y"]), "block_sizes": sizes, "arrival": arrival}
    for name, field in (("noise_var", "noise_var"), ("weight", "weights")):
        if block.get(name) is not None:
            found[field] = _array(block[name])
    return found


def _partition(blocking: Fields) -> Tree:
    cells = blocking["partition"] if "partition" in blocking else blocking["cells"]
    labels = blocking.get("originals")
    found = {"centroids": _array(cells["centroids"]), "metric": _array(blocking["metric"])}
    return found if labels is None else {**found, "labels": _array(labels)}


def _statistics(statistics: Fields) -> Tree:
    names = ("noise_logdet", "target_sq", "penalty", "n_rows")
    sums = {"precision": _array(statistics["precision"]), "shift": _array(statistics["shift"])}
    return {**sums, **{name: statistics[name] for name in names}}


def _stream(innovations: Fields | None, level: Fields | None, n_arrived: int, n_rows: int) -> Tree:
    seen, recent = innovations or {}, level or {}
    return {
        "rows_arrived": n_arrived,
        "rows_held": n_rows,
        "innovations": {
            "rows": seen.get("rows", 0),
            **{name: seen.get(name, 0.0) for name in ("square_sum", "weight", "weight_sq")},
        },
        "level": {
            "weight": recent.get("weight", 0.0),
            "input_total": _array(recent.get("total", np.zeros(1))),
            "target_total": recent.get("target_total", 0.0),
            "reported": recent.get("reported", False),
        },
    }


def _sparse(state: Fields) -> Tree:
    fitted = state["_fitted"]
    return {
        "kernel": _kernel(fitted["kernel"]),
        "mean_noise_var": fitted["noise_var"],
        "known_noise": state.get("_known_noise"),
        "rows_of_fit": state.get("_n_fit_rows"),
        **{"Fitted": _fit, "Streamed": _streamed}[fitted[KIND]](state, fitted),
    }


def _fit(state: Fields, fitted: Fields) -> Tree:
    held, kept = fitted["state"], state.get("_fit_rows")
    given = fitted["posterior"]
    if _is(given, "NystromPosterior"):
        given = {**given, "q": _q_of(held["statistics"])}
    posterior = _posterior(given, state["_row"], state.get("_blocking"))
    return {
        "posterior": posterior,
        "log_evidence": _number(fitted["log_evidence"]),
        "statistics": None if held is None else _statistics(held["statistics"]),
        "window_rows": None if kept is None or posterior["form"] == "local" else _rows(kept, held["prior"]),
    }


def _streamed(state: Fields, streamed: Fields) -> Tree:
    prior, statistics, kept = streamed["state"]["prior"], streamed["state"]["statistics"], streamed.get("kept")
    q, blocking, is_local = _q_of(statistics), state.get("_blocking"), prior["row"]["test"] == "local"
    posterior: Tree = {
        "form": "local" if is_local else "inducing",
        "approximation": _approximation(prior["row"]),
        "inducing": _inducing(prior, q),
        "partition": None if blocking is None else _partition(blocking),
    }
    rows = None if kept is None else _rows(kept, prior)
    if is_local:
        posterior["rows"] = rows
    counts = streamed.get("n_arrived", 0), streamed.get("n_rows", 0)
    return {
        "posterior": posterior,
        "log_evidence": _log_evidence(statistics, q),
        "statistics": _statistics(statistics),
        "window_rows": None if is_local else rows,
        "stream": _stream(streamed.get("innovations"), streamed.get("level"), *counts),
    }


def _log_evidence(statistics: Fields, q: Fields) -> float:
    """The collapsed objective of the rows that were summed up."""
    B = q["LB"]["factor"]
    diagonal = B[np.cumsum(np.arange(1, len(q["mean"]) + 1)) - 1]
    explained = float(_array(statistics["shift"]) @ q["mean"])
    fit = statistics["n_rows"] * math.log(2.0 * math.pi) + statistics["noise_logdet"] + statistics["target_sq"]
    return float(-0.5 * (fit - explained + 2.0 * np.log(diagonal).sum()) - statistics["penalty"])


def _noise(process: Fields) -> Tree:
    least, largest = process["limits"]
    return {
        "mean": _number(process["mean"]),
        "inducing": _inducing(process["prior"], process["q"]),
        "least_var": least,
        "largest_var": largest,
    }


def _learned_noise(state: Fields) -> Tree:
    model, n = state["_model"], state["n_samples_seen_"]
    return {
        "kernel": _kernel(model["state"]["prior"]["kernel"]),
        "noise_kernel": _kernel(model["process"]["prior"]["kernel"]),
        "log_evidence": _number(model["bound"]),
        "posterior": _posterior(model["posterior"], state["_row"], state.get("_blocking")),
        "noise": _noise(model["process"]),
        "noise_inference": {
            "jitter": model["jitter"],
            "evaluations": model["ascent_evaluations"],
            "seconds": model["seconds"],
        },
        "statistics": _statistics(model["state"]["statistics"]),
        "stream": _stream(state.get("_innovations"), state.get("_level"), n, n),
    }


def _committee(state: Fields) -> Tree:
    committee = state["_committee"]
    f, *others = committee["processes"]
    noise, row, nearest = (others[0] if others else None), committee["row"], committee.get("nearest")
    common = committee.get("common")
    return {
        "kernel": _kernel(f["kernel"]),
        "noise_kernel": None if noise is None else _kernel(noise["kernel"]),
        "log_evidence": _number(state["log_evidence_"]),
        "committee": {
            "aggregation": {
                "name": row["name"],
                "weighting": WEIGHTINGS[row["weighting"]],
                "base_count": BASE_COUNTS[row["base_count"]],
                "communicates": row["communicates"],
                "reference": row["reference"],
            },
            "experts": [_expert(expert) for expert in committee["experts"]],
            "common": None if common is None else _expert(common),
            "noise_mean": None if noise is None else noise.get("mean", 0.0),
            "skip_tolerance": committee.get("tolerance", 1e-6),
            "n_jobs": committee.get("n_jobs"),
            "nearest": None if nearest is None else _nearest(nearest),
        },
    }


def _nearest(nearest: Fields) -> Tree:
    return {"most": nearest["most"], "centres": _array(nearest["centres"]), "metric": _array(nearest["metric"])}


EXACT_ROW = {
    "name": "exact",
    "components": ({"weight": 1.0, "residual": "none", "alpha": 0.0},),
    "penalty": 0.0,
    "test": "exact",
    "family": "exact",
    "reference": "004 eq. 6",
}


def _expert(expert: Fields) -> Tree:
    posterior = expert["posterior"]
    row = EXACT_ROW if _is(posterior, "ExactPosterior") else None
    found: Tree = {"posterior": _posterior(posterior, row, expert.get("blocks"))}
    if not _is(expert, "NoisyExpert"):
        return {**found, "influence": _influence(expert["reach"])}
    of_f, of_g = expert["reaches"]
    return {
        **found,
        "influence": _influence(of_f),
        "noise": _noise(expert["process"]),
        "noise_influence": _influence(of_g),
    }


def _influence(reach: Fields | None) -> Tree | None:
    if reach is None:
        return None
    echo = reach.get("echo")
    return {
        "box_lower": _array(reach["lower"]),
        "box_upper": _array(reach["upper"]),
        "variance_gain": _number(reach["var_gain"]),
        "mean_gain": _number(reach["mean_gain"]),
        "common_covariance": None if echo is None else _array(echo),
    }
