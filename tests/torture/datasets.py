"""Hostile datasets: a fit gives a sound model or an error of ours."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

import sparsegp
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, SparseGPError, SparseGPRegressor
from torture.campaign import Campaign, Case, expected

Rng = np.random.Generator
Table = dict[str, Any]
APPROXIMATIONS = ("exact", "sod", "sor", "dtc", "vfe", "fitc", "fic", "pitc", "pic", "pep", "block-pep", "nystrom")
SHORTEST_MESSAGE = 20
KERNELS = ("se", "matern12", "matern32", "matern52", "rq")


def table(rng: Rng) -> Table:
    """Arguments of a fit."""
    n, d = int(rng.choice([1, 2, 3, 8, 30, 60])), int(rng.choice([1, 2, 5]))
    X = rng.normal(size=(n, d))
    return {"X": X, "y": np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=n)}


def _scaled_inputs(rng: Rng, t: Table) -> None:
    t["X"] = t["X"] * 10.0 ** rng.uniform(-300, 300, t["X"].shape[1])


def _scaled_targets(rng: Rng, t: Table) -> None:
    t["y"] = t["y"] * 10.0 ** rng.uniform(-320, 307)


def _shifted(rng: Rng, t: Table) -> None:
    t["X"] = t["X"] + 10.0 ** rng.uniform(0, 17)
    t["y"] = t["y"] + 10.0 ** rng.uniform(0, 17)


def _constant(rng: Rng, t: Table) -> None:
    t["X"][:, 0] = rng.choice([0.0, 1.0, 1e200, -1e-300])
    if rng.random() < 0.5:
        t["y"] = np.full(len(t["y"]), rng.choice([0.0, 3.0, 1e150]))


def _copies(rng: Rng, t: Table) -> None:
    rows = rng.integers(0, max(1, len(t["y"]) // 4), len(t["y"]))
    t["X"], t["y"] = t["X"][rows], t["y"][rows]


def _bad_value(rng: Rng, t: Table) -> None:
    where = "X" if rng.random() < 0.5 else "y"
    t[where].flat[rng.integers(t[where].size)] = rng.choice([np.nan, np.inf, -np.inf, 1e200, 1.7e308, 5e-324])


def _weights(rng: Rng, t: Table) -> None:
    weight = 10.0 ** rng.uniform(-14, 14) * rng.uniform(0.5, 2.0, len(t["y"]))
    weight[rng.random(len(weight)) < 0.3] = rng.choice([0.0, -1.0, np.nan, 1e300, 1e-300, 0.0, 0.0])
    t["sample_weight"] = weight if rng.random() < 0.9 else weight[:-1]


def _noise(rng: Rng, t: Table) -> None:
    noise = 10.0 ** rng.uniform(-20, 20) * rng.uniform(0.5, 2.0, len(t["y"]))
    if rng.random() < 0.2:
        noise[0] = rng.choice([0.0, -1.0, np.nan, np.inf])
    t["noise_var"] = noise


def _type_of_inputs(rng: Rng, t: Table) -> None:
    kinds = ("float32", "float16", "int8", "bool", "object", "complex128", "datetime64[s]", ">f8", "U8", "longdouble")
    kind = str(rng.choice(kinds))
    with np.errstate(all="ignore"):
        t["X"] = (
            np.nan_to_num(np.asarray(t["X"]), posinf=0, neginf=0).astype("int64").astype(kind)
            if (kind == "datetime64[s]")
            else t["X"].astype(kind)
        )


def _type_of_targets(rng: Rng, t: Table) -> None:
    choice = int(rng.integers(6))
    y = t["y"]
    t["y"] = (y.astype(str), y[:, None], np.column_stack([y, y]), y.astype(object), y[:-1], y.astype(complex))[choice]


def _masked(rng: Rng, t: Table) -> None:
    t["X"] = np.ma.masked_array(t["X"], rng.random(t["X"].shape) < rng.choice([0.0, 0.2]))


def _sparse(rng: Rng, t: Table) -> None:
    kind = (scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_array)[rng.integers(3)]
    t["X"] = kind(t["X"])


def _frame(rng: Rng, t: Table) -> None:
    d = t["X"].shape[1]
    names: list[Any] = [f"c{k}" for k in range(d)]
    choice = int(rng.integers(6))
    if choice == 1:
        names[-1] = 7
    elif choice == 2:
        names = ["same"] * d
    elif choice == 3:
        names = [(k, "pair") for k in range(d)]
    elif choice == 4:
        names[0] = "a[/red]\x1b[31m\n"
    frame = pd.DataFrame(t["X"])
    frame.columns = pd.Index(names, tupleize_cols=False)
    t["X"] = frame.iloc[:, :0] if choice == 5 else frame


def _layout(rng: Rng, t: Table) -> None:
    X = t["X"]
    choice = int(rng.integers(5))
    if choice == 4:
        X.setflags(write=False)
    t["X"] = (np.asfortranarray(X), X[::-1], np.repeat(X, 2, 0)[::2], X.tolist(), X)[choice]


def _wrong_shape(rng: Rng, t: Table) -> None:
    X = t["X"]
    t["X"] = (X[:0], X[:, :0], X.ravel(), X[None], X[0, 0], None, "text")[int(rng.integers(7))]


NUMBERS: tuple[Callable[[Rng, Table], None], ...] = (
    _scaled_inputs, _scaled_targets, _shifted, _constant, _copies, _bad_value, _weights, _noise,
)  # fmt: skip
FORMS: tuple[Callable[[Rng, Table], None], ...] = (
    _type_of_inputs, _type_of_targets, _masked, _sparse, _frame, _layout, _wrong_shape,
)  # fmt: skip


def estimator(rng: Rng) -> Any:
    seed, kind = int(rng.integers(2**31)), rng.random()
    learning: dict[str, Any] = {"optimizer": None}
    if rng.random() < 0.25:
        learning = {"time_budget": 0.2}
    shared = {"kernel": str(rng.choice(KERNELS)), "n_inducing": int(rng.integers(1, 13)), "random_state": seed}
    if kind < 0.1:
        return CommitteeGPRegressor(n_experts=int(rng.integers(1, 4)), **shared, **learning)
    if kind < 0.2:
        return HeteroscedasticGPRegressor(n_noise_inducing=4, **shared, optimizer=None)
    name = "auto" if learning.get("time_budget") and rng.random() < 0.3 else str(rng.choice(APPROXIMATIONS))
    more = {"normalize": bool(rng.random() < 0.9), "clip_variances": True}
    return SparseGPRegressor(approximation=name, **shared, **learning, **more)


def prepare(folder: Path) -> Case:
    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        given = table(rng)
        for spoil in rng.choice(len(NUMBERS), rng.integers(0, 4), replace=False):
            with np.errstate(all="ignore"):
                NUMBERS[spoil](rng, given)
        if rng.random() < 0.4:
            FORMS[rng.integers(len(FORMS))](rng, given)
        model = estimator(rng)
        if isinstance(model, HeteroscedasticGPRegressor):
            given.pop("noise_var", None)  # it learns the noise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model.fit(**given)
            except SparseGPError as error:
                return "refused" if len(str(error)) > SHORTEST_MESSAGE else unhelpful(error)
            require_sound(model, given["X"], folder / "model.sgp")
        return "predicted"

    return case


def unhelpful(error: Exception) -> str:
    raise AssertionError(f"an error that does not say what to do: {error!r}")


def require_sound(model: Any, X: Any, path: Path) -> None:
    """Finite, positive, ordered and consistent at these rows; the same after it was saved and loaded."""
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all(), "mean"
    assert np.isfinite(std).all(), "std"
    assert (std > 0).all(), "std is not positive"
    lower, upper = model.predict_interval(X, 0.9)
    quantiles = model.predict_quantiles(X, [0.05, 0.3, 0.5, 0.9])
    assert np.isfinite(lower).all(), "lower"
    assert np.isfinite(upper).all(), "upper"
    assert (lower <= upper).all(), "crossing ends"
    assert (np.diff(quantiles, axis=1) >= 0).all(), "crossing quantiles"
    with expected(SparseGPError) as refused:
        cov = model.predict(X, return_cov=True)[1]
    if not refused:
        np.testing.assert_allclose(np.diag(cov), std**2, rtol=1e-8, err_msg="cov is not std squared")
    model.save(path)
    again = sparsegp.load(path).predict(X, return_std=True)
    for got, before in zip(again, (mean, std), strict=True):
        assert np.array_equal(got, before), f"loaded differs by {np.abs(got - before).max()}"
    assert math.isfinite(model.noise_var_)


CAMPAIGN = Campaign("datasets", prepare, share=0.2, goal=10_000)
