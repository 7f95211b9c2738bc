"""Optimisations off, same answer: threads, chunks, rows read in passes, negligible covariances, single precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch

from sparsegp import SparseGPRegressor, kernels
from sparsegp.core import block, posterior
from sparsegp.estimators.estimator import Estimator
from sparsegp.kernels import radial
from torture.campaign import Campaign, Case

NAMES = ("sor", "vfe", "fitc", "pitc", "pic", "pep", "exact", "nystrom")
FAR = 60.0


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def chunks_of(n_rows: int) -> Iterator[None]:
    with mock.patch.object(posterior, "CHUNK_ROWS", n_rows), mock.patch.object(block, "CHUNK_ROWS", n_rows):
        yield


@contextmanager
def read_in_passes() -> Iterator[None]:
    options = Estimator.fit_options
    small = replace(options, opening=replace(options.opening, most_entries=40))
    with mock.patch.object(Estimator, "fit_options", small):
        yield


@contextmanager
def nothing_negligible() -> Iterator[None]:
    with mock.patch.dict(radial.NEGLIGIBLE, dict.fromkeys(radial.NEGLIGIBLE, 0.0)):
        yield


SWITCHES: dict[str, tuple[Callable[[], Any], float]] = {
    "once more": (nullcontext, 1e-9),
    "one thread": (lambda: threads(1), 1e-9),
    "two threads": (lambda: threads(2), 1e-9),
    "chunks of 7 rows": (lambda: chunks_of(7), 1e-9),
    "chunks of 64 rows": (lambda: chunks_of(64), 1e-9),
    "nothing is negligible": (nothing_negligible, 1e-9),
}


def prepare(folder: Path) -> Case:
    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        X = rng.uniform(-3.0, 3.0, (90, 2)) * np.where(rng.random() < 0.5, 1.0, FAR)
        y = np.sin(X[:, 0]) + 0.3 * X[:, 1] / np.abs(X).max() + 0.1 * rng.normal(size=90)
        test = rng.uniform(-3.0, 3.0, (150, 2))
        kernel = (kernels.SquaredExponential, kernels.Matern52, kernels.RationalQuadratic)[rng.integers(3)]
        name = str(rng.choice(NAMES))
        made = {
            "kernel": kernel(rng.uniform(0.5, 2.0), rng.uniform(0.5, 1.5, 2)),
            "approximation": name,
            "n_inducing": 9,
            "noise_var": 0.05,
            "optimizer": None,
            "clip_variances": True,
            "random_state": seed,
        }
        if name in ("pitc", "pic"):
            made["n_blocks"] = 4

        def answers(**changed: Any) -> tuple[np.ndarray, ...]:
            model = SparseGPRegressor(**{**made, **changed}).fit(X, y)
            return *model.predict(test, return_std=True), np.array(model.log_evidence_)

        expected = answers()
        word = str(rng.choice([*SWITCHES, "float32", "read in passes"]))
        if word == "float32":
            got, rtol = answers(dtype="float32"), 2e-3
        elif word == "read in passes":
            if name in ("pitc", "pic", "exact", "nystrom"):
                return "rows stay in memory"
            made["inducing"], rtol = X[:9], 1e-8
            expected, got = answers(), _from_file(folder / "rows.parquet", made, X, y, test)
        else:
            switch, rtol = SWITCHES[word]
            with switch():
                got = answers()
        for value, reference in zip(got, expected, strict=True):
            scale = np.abs(reference).max()
            np.testing.assert_allclose(value, reference, rtol=rtol, atol=rtol * scale, err_msg=f"{word}, {name}")
        return word

    return case


def _from_file(path: Path, made: dict[str, Any], X: Any, y: Any, test: Any) -> tuple[np.ndarray, ...]:
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(path, row_group_size=20)
    with read_in_passes():
        model = SparseGPRegressor(**made).fit(path, target="y")
    frame = pd.DataFrame(test, columns=["a", "b"])
    return *model.predict(frame, return_std=True), np.array(model.log_evidence_)


CAMPAIGN = Campaign("switches", prepare, share=0.05, goal=1000)
