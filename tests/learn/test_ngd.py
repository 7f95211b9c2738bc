"""optimizer="ngd": natural gradients with Adam behind the estimator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from problems import get_row
from sparsegp import SparseGPRegressor
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.reasons import OUT_OF_TIME
from sparsegp.errors import FactorizationError, InputError
from sparsegp.fit.in_steps import optimizer_within
from sparsegp.fit.problem import Problem, Start
from sparsegp.kernels import SquaredExponential
from sparsegp.learn import natural, schedules, stochastic
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective, ExactObjective
from sparsegp.learn.trace import Deadline

Climb = tuple[CollapsedObjective, Hyperparameters, Limits]


def wave(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (n_rows, 2))
    return X, np.sin(3.0 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(n_rows)


def climb(n_rows: int = 600) -> Climb:
    X, y = wave(n_rows)
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    hyper = Hyperparameters(SquaredExponential(1.0, [2.0, 2.0]), 0.5, block.X[:25].clone())
    return (
        CollapsedObjective(MemoryRows(block), get_row("vfe")),
        hyper,
        Limits((1e-6, 100.0), block.X.amin(0), block.X.amax(0)),
    )


@pytest.mark.usefixtures("short_start")
@pytest.mark.parametrize("name", ["vfe", "fitc", "pep", "pic"])
def test_the_regressor_learns_by_ngd(name: str) -> None:
    X, y = wave(900)
    model = SparseGPRegressor(approximation=name, n_inducing=30, optimizer="ngd", random_state=0).fit(X[:700], y[:700])
    assert np.sqrt(np.mean((model.predict(X[700:]) - y[700:]) ** 2)) < 0.13
    assert 0.005 < model.noise_var_ < 0.02


def test_an_iteration_is_an_epoch() -> None:
    objective, hyper, limits = climb()
    before = objective.value(hyper)
    result = natural.maximize(objective, hyper, limits, max_iterations=30)
    assert result.iterations == 30 * 5  # blocks of 128
    assert objective.value(hyper) > before + 100.0


def test_it_ends_before_the_deadline() -> None:
    objective, hyper, limits = climb(200)
    before, now = objective.value(hyper), [0.0]

    def clock() -> float:
        now[0] += 0.02
        return now[0]

    result = natural.maximize(objective, hyper, limits, max_iterations=10_000, deadline=Deadline(8.0, clock))
    assert now[0] < 8.2
    assert result.iterations > 50
    assert objective.value(hyper) > before


def test_without_time_nothing_moves() -> None:
    objective, hyper, limits = climb(200)
    start = hyper.vector()
    result = natural.maximize(objective, hyper, limits, deadline=Deadline(0.0))
    assert (result.reason, result.iterations) == (OUT_OF_TIME, 0)
    np.testing.assert_array_equal(hyper.vector(), start)


def test_an_end_worse_than_the_start_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, hyper, limits = climb()
    natural.maximize(objective, hyper, limits, max_iterations=60)
    learned = hyper.vector()
    monkeypatch.setattr(stochastic.Rates, "cooled", lambda rates, progress: 8.0)  # steps far too long
    result = natural.maximize(objective, hyper, limits, max_iterations=12)
    np.testing.assert_array_equal(hyper.vector(), learned)
    assert (result.reason, result.stopped) == (natural.NO_BETTER, False)
    watched = natural.maximize(objective, hyper, limits, max_iterations=12, on_step=lambda step: step.evaluations > 50)
    assert (watched.reason, watched.stopped) == (natural.NO_BETTER, True)


def test_a_start_that_cannot_be_factorised_in_blocks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, hyper, limits = climb(200)
    start = hyper.vector()

    def failing(*arguments: object, **options: object) -> None:
        raise FactorizationError("made up")

    monkeypatch.setattr(stochastic, "learn", failing)
    assert natural.maximize(objective, hyper, limits).reason == "made up"
    np.testing.assert_array_equal(hyper.vector(), start)


def test_the_first_subset_of_many_rows_is_for_warming_up_only() -> None:
    schedule = schedules.Schedules().of(get_row("vfe"), "ngd")
    sizes = schedule.stages(200_000)
    found = list(schedules.staged(lambda k: climb(100)[0], sizes, 200_000, schedule, get_row("vfe")))
    assert sizes == [8192, 200_000]
    assert [(stage.n_rows, stage.holds_inducing) for stage in found] == [(1024, True), (1024, False)]


@pytest.mark.parametrize("name", ["exact", "sod"])
def test_models_without_inducing_values_refuse_it(name: str) -> None:
    with pytest.raises(InputError, match="optimizer='ngd'"):
        SparseGPRegressor(approximation=name, optimizer="ngd").fit(None, None)


def test_an_objective_without_rows_to_sample_is_refused() -> None:
    _, hyper, limits = climb(100)
    block = Block(torch.zeros(5, 2), torch.zeros(5))
    with pytest.raises(InputError, match="optimizer='ngd' learns from samples of the rows"):
        natural.maximize(ExactObjective(block), hyper, limits)


def block_problem(optimizer: str, row: str = "pic") -> Problem:
    start = Start(SquaredExponential(), 0.1)
    return Problem(get_row(row), start, "kmeans", 10, np.random.default_rng(0), optimizer=optimizer)


@pytest.mark.parametrize(
    ("optimizer", "row", "seconds", "expected"),
    [
        ("auto", "pic", 10.0, "ngd"),  # an evaluation on 20,000 rows takes 2 s: five of them
        ("auto", "pic", 100.0, "lbfgs"),
        ("auto", "vfe", 10.0, "auto"),
        ("lbfgs", "pic", 10.0, "lbfgs"),
    ],
)
def test_blocks_learn_in_steps_where_the_time_has_few_evaluations(
    optimizer: str, row: str, seconds: float, expected: str
) -> None:
    deadline = Deadline(seconds, lambda: 0.0, seconds_per_row=1e-4)
    assert optimizer_within(deadline, block_problem(optimizer, row=row), 30_000) == expected


def test_without_a_deadline_the_optimizer_stays() -> None:
    assert optimizer_within(None, block_problem("auto"), 30_000) == "auto"
