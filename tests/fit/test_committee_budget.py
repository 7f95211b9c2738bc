"""Time budgets of committees: what learning leaves for inference, on every executor, and what is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sparsegp import CommitteeGPRegressor, InputError, kernels
from sparsegp.committee import shared_learning
from sparsegp.committee.experts import Recipe
from sparsegp.core import approximations, reasons
from sparsegp.core.block import Block
from sparsegp.core.reasons import ALL_ROWS, OUT_OF_TIME
from sparsegp.fit.posing import FitOptions
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.trace import Deadline, Terms
from sparsegp.parallel import Threads

pytestmark = pytest.mark.usefixtures("short_start")


def wave(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 0.15 * rng.standard_normal(n)


class Clock:
    """Time passes when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(Threads):
    """An executor whose steps take one second for each million multiplications."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(1)
        object.__setattr__(self, "clock", clock)
        object.__setattr__(self, "inferred", [])

    def step(self, fn: Any, placed: Any, *broadcast: Any, each: Any = None) -> Any:
        if fn.__name__ == "evaluated":
            self.clock.now += sum(placed.costs) / 1e6
        return super().step(fn, placed, *broadcast, each=each)

    def map(self, fn: Any, placed: Any, *broadcast: Any, each: Any = None) -> Any:
        if fn.__name__ == "own_inducing":
            self.inferred.append(list(each))
        return super().map(fn, placed, *broadcast, each=each)


def lesson_of(row: str, seconds: float, n_experts: int = 12) -> Any:
    rng = np.random.default_rng(0)
    X, y = (torch.from_numpy(a) for a in wave(40 * n_experts))
    kernel = kernels.SquaredExponential(1.0, [1.0, 2.0])
    recipe = Recipe(approximations.get(row), 6, "random", kernel, torch.ones(2, dtype=torch.float64), rng)
    specs = [recipe.spec(Block(X[k : k + 40], y[k : k + 40])) for k in range(0, len(X), 40)]
    clock = Clock()
    executor = Timed(clock)
    lesson = shared_learning.Lesson(
        Terms(Limits((1e-4, 10.0), X.amin(0), X.amax(0)), rng, deadline=Deadline(seconds, clock)),
        True,
        executor,
        inference_work=shared_learning.inference_work(specs, communicates=False),
    )
    hyper = Hyperparameters(kernel, 0.1, X[:1], learn_inducing=False)
    *_, learned = shared_learning.learn(specs, hyper, lesson)
    return learned, lesson, clock, executor


@pytest.fixture(scope="module", params=["exact", "vfe"])
def unhurried(request: pytest.FixtureRequest) -> Any:
    """A row and its lesson without a limit."""
    return request.param, *lesson_of(request.param, 1e9)


@pytest.mark.parametrize("fraction", [0.3, 0.7])
def test_learning_leaves_time_for_the_inference_of_all_experts(unhurried: Any, fraction: float) -> None:
    """Of the seconds that learning takes without a limit, some: it ends early, and inference fits in the rest."""
    row, free, lesson, clock, _ = unhurried
    needed = lesson.inference_work / 1e6
    short, _, used, _ = lesson_of(row, fraction * clock.now + needed)
    evaluations = [sum(stage.evaluations for stage in learned.results) for learned in (short, free)]
    assert 1 < evaluations[0] < evaluations[1]
    assert used.now + needed <= fraction * clock.now + needed
    assert short.results[-1].reason == OUT_OF_TIME or len(short.results) < len(free.results)


def test_without_time_there_is_one_evaluation_and_no_more() -> None:
    learned, _, clock, _ = lesson_of("exact", 1e-6)
    assert len(learned.results) == 1
    assert clock.now == pytest.approx(8 * 40**3 / 1e6)


def test_inducing_inputs_get_a_part_of_the_time_by_the_work_of_their_experts() -> None:
    learned, lesson, clock, executor = lesson_of("vfe", 1.0)
    (seconds,) = executor.inferred
    assert len(seconds) == 12
    assert 0.0 < sum(seconds) <= lesson.schedule.inducing_fraction * 1.0 + 1e-9
    assert np.ptp(seconds) < 1e-12
    assert len(learned.results) == 3
    assert clock.now <= 1.0


def test_with_communication_inference_is_of_larger_experts() -> None:
    specs = lesson_of("exact", 1e-6)[0].specs
    alone, together = (shared_learning.inference_work(specs, communicates=c) for c in (False, True))
    assert alone == pytest.approx(12 * 0.5 * 40**3)
    assert together == pytest.approx(0.5 * 40**3 + 11 * 0.5 * 80**3)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"expert": "vfe", "n_inducing": 20},
        {"expert": "vshgp", "n_inducing": 15, "n_noise_inducing": 8},
        {"backend": "processes", "n_jobs": 2},
        {"kernel": "auto"},
    ],
    ids=str,
)
def test_a_fit_with_a_budget_is_a_committee_of_all_rows(changes: dict[str, Any]) -> None:
    X, y = wave(900)
    gp = CommitteeGPRegressor(n_experts=4, time_budget=10.0, random_state=0, **changes).fit(X, y)
    report = gp.info_["budget"]
    assert report["asked"] == 10.0
    assert 0.0 < report["used"] == gp.info_["seconds"]
    assert (report["rows_seen"], report["fraction"], report["reason"]) == (900, 1.0, ALL_ROWS)
    assert gp.n_samples_seen_ == 900
    assert gp.score(*wave(200, seed=1)) > 0.9
    gp.partial_fit(*wave(10, seed=2))


def test_without_a_budget_there_is_no_report_of_it() -> None:
    gp = CommitteeGPRegressor(n_experts=2, optimizer=None).fit(*wave(60))
    assert "budget" not in gp.info_


def test_a_budget_that_is_too_short_is_pointed_out() -> None:
    X, y = wave(600)
    gp = CommitteeGPRegressor(n_experts=3, time_budget=1e-4, random_state=0)
    with pytest.warns(UserWarning, match="shorter than the inference of all experts"):
        gp.fit(X, y)
    assert gp.info_["budget"]["reason"] == reasons.TOO_SHORT
    assert np.isfinite(gp.predict(X)).all()


def test_kernels_are_compared_in_a_fraction_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too few seconds for a comparison, the first candidate is taken."""
    options = FitOptions()
    first = replace(options.kernel, candidates=("matern52", "se"))
    monkeypatch.setattr(CommitteeGPRegressor, "fit_options", replace(options, kernel=first))
    gp = CommitteeGPRegressor("auto", n_experts=2, time_budget=1.0, random_state=0).fit(*wave(300))
    assert type(gp.kernel_).__name__ == "Matern52"


@pytest.mark.parametrize("seconds", [0.0, -1.0, "long"])
def test_a_budget_is_a_positive_number(seconds: Any) -> None:
    with pytest.raises(InputError, match="time_budget"):
        CommitteeGPRegressor(time_budget=seconds).fit(*wave(30))
