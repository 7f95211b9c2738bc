"""Sequences of verbs on one model against the dense oracle: the rows that are in it decide, not how they came there.

Hypothesis draws table, parameters and verbs, and makes a case that fails as small as it can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import sparsegp
from problems import covariance
from sparsegp import InputError, SparseGPRegressor, kernels
from sparsegp.testing import oracle
from torture.campaign import Campaign, Case

APPROXIMATIONS = ("sor", "dtc", "vfe", "fitc", "fic", "pep", "pitc", "pic", "block-pep")
BY_BATCH = ("pitc", "block-pep")
KERNELS = ("SquaredExponential", "Matern32", "Matern52", "RationalQuadratic")
VERBS = ("add", "add", "forget", "merge", "save", "predict", "forget what is not there")
POWER = 0.4
RTOL = 1e-7


@dataclass(frozen=True)
class Program:
    """What hypothesis draws. The verbs have a number each, from which everything else about them follows."""

    approximation: str
    kernel: str
    table: int
    weighted: bool
    known_noise: bool
    verbs: tuple[tuple[str, int], ...]


PROGRAMS = st.builds(
    Program,
    st.sampled_from(APPROXIMATIONS),
    st.sampled_from(KERNELS),
    st.integers(0, 2**20),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 2**20)), max_size=8).map(tuple),
)


@dataclass
class Batch:
    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    noise: np.ndarray | None
    block: int

    def named(self) -> dict[str, Any]:
        return {name: v for name, v in (("sample_weight", self.weight), ("noise_var", self.noise)) if v is not None}


@dataclass
class Play:
    """The model under test and the batches that must be in it."""

    program: Program
    folder: Path
    batches: list[Batch] = field(default_factory=list)
    n_blocks: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.program.table)
        self.Z = np.column_stack([np.linspace(-2.0, 2.0, 6), rng.uniform(-2.0, 2.0, 6)])
        self.kernel = getattr(kernels, self.program.kernel)(rng.uniform(0.5, 2.0), rng.uniform(0.6, 1.5, 2))
        self.noise_var = float(rng.uniform(0.05, 0.3))
        self.model = self.fitted(self.batch(rng, 12))

    def fitted(self, batch: Batch) -> SparseGPRegressor:
        model = SparseGPRegressor(
            self.kernel, self.program.approximation, inducing=self.Z, noise_var=self.noise_var, optimizer=None,
            normalize=False, power=POWER, calibration=None, trend=None,
        )  # fmt: skip
        blocks = {} if self.program.approximation not in (*BY_BATCH, "pic") else {"blocks": self.labels(batch)}
        if self.program.known_noise:
            model.set_params(noise_var=None)
        return model.fit(batch.X, batch.y, **batch.named(), **blocks)

    def labels(self, batch: Batch) -> np.ndarray:
        """Blocks of pic are places; of the others, batches."""
        return (batch.X[:, 0] > 0).astype(int) if self.program.approximation == "pic" else np.full(len(batch.y), 0)

    def batch(self, rng: np.random.Generator, n: int) -> Batch:
        X = rng.uniform(-2.0, 2.0, (n, 2))
        if n >= 2:
            X[:2, 0] = -1.0, 1.0  # a row in each block of pic
        y = np.sin(2.0 * X[:, 0]) + 0.4 * X.sum(1) + 0.2 * rng.normal(size=n)
        weight = rng.integers(1, 4, n).astype(float) if self.program.weighted else None
        noise = rng.uniform(0.05, 0.4, n) if self.program.known_noise else None
        made = Batch(X, y, weight, noise, self.n_blocks)
        self.n_blocks += 1
        self.batches.append(made)
        return made

    def play(self) -> None:
        self.compare()
        for verb, number in self.program.verbs:
            getattr(self, verb.replace(" ", "_"))(np.random.default_rng(number))
            self.compare()

    def more(self, batch: Batch) -> dict[str, Any]:
        blocks = {"blocks": self.labels(batch)} if self.program.approximation == "pic" else {}
        return {**batch.named(), **blocks}

    def add(self, rng: np.random.Generator) -> None:
        batch = self.batch(rng, int(rng.integers(1, 7)))
        self.model.partial_fit(batch.X, batch.y, **self.more(batch))

    def forget(self, rng: np.random.Generator) -> None:
        if len(self.batches) < 2:
            return
        batch = self.batches.pop(int(rng.integers(len(self.batches))))
        self.model.forget(batch.X, batch.y, **self.more(batch))

    def forget_what_is_not_there(self, rng: np.random.Generator) -> None:
        batch = self.batch(rng, int(rng.integers(1, 4)))
        self.batches.pop()
        batch.y += 0.5  # a verb with the same number may have added these rows
        try:
            self.model.forget(batch.X, batch.y, **self.more(batch))
        except InputError:
            return
        raise AssertionError("rows that were never added were forgotten")

    def merge(self, rng: np.random.Generator) -> None:
        if self.program.approximation == "pic" or self.program.known_noise:
            return  # blocks of pic are its own; with known noise each fit has a mean of its own
        self.model.merge(self.fitted(self.batch(rng, int(rng.integers(2, 9)))))

    def save(self, rng: np.random.Generator) -> None:
        path = self.folder / "model.sgp"
        self.model.save(path)
        self.model = sparsegp.load(path)

    def predict(self, rng: np.random.Generator) -> None:
        X = rng.uniform(-3.0, 3.0, (3, 2))
        assert np.isfinite(self.model.predict(X, return_std=True)).all()

    def compare(self) -> None:
        """Mean, covariance and evidence of the model and of the oracle."""
        test = np.array([[-1.5, 0.3], [0.2, -0.4], [1.1, 1.9]])
        counts = [np.ones(len(b.y)) if b.weight is None else b.weight for b in self.batches]
        X, y, labels = (np.concatenate(part) for part in zip(*(self.dense(b) for b in self.batches), strict=True))
        noise: Any = self.noise_var
        if self.program.known_noise:
            noise = np.concatenate([b.noise for b in self.batches if b.noise is not None])
            noise = np.repeat(noise, np.concatenate(counts).astype(int))
        X, y, labels = oracle.repeat_rows(X, y, np.concatenate(counts), labels)
        data = covariance(self.model.kernel_), X, y, self.Z, noise
        test_labels = (test[:, 0] > 0).astype(int)
        mean, cov = oracle.predict(self.program.approximation, *data, test, labels, test_labels, POWER)
        blocks = {"blocks": test_labels} if self.program.approximation == "pic" else {}
        got = self.model.predict(test, return_cov=True, latent=True, **blocks)
        evidence = oracle.log_evidence(self.program.approximation, *data, labels, POWER)
        for value, reference in zip((*got, self.model.log_evidence_), (mean, cov, evidence), strict=True):
            np.testing.assert_allclose(value, reference, rtol=RTOL, atol=RTOL * (1 + np.abs(reference).max()))
        assert self.model.n_samples_seen_ == sum(len(b.y) for b in self.batches)

    def dense(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        place = self.labels(batch) if self.program.approximation == "pic" else np.full(len(batch.y), batch.block)
        return batch.X, batch.y, place


def prepare(folder: Path) -> Case:
    def case(number: int) -> str:
        phases = (Phase.explicit, Phase.generate, Phase.shrink)
        quiet = settings(
            max_examples=20, deadline=None, database=None, phases=phases, suppress_health_check=list(HealthCheck)
        )

        @seed(number)
        @quiet
        @given(PROGRAMS)
        def check(program: Program) -> None:
            Play(program, folder).play()

        check()
        return "as the oracle"

    return case


CAMPAIGN = Campaign("verbs", prepare, share=0.15, goal=500, steps=20)
