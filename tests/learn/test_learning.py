"""Learning: stages, optimisers, limits, failures and starting values."""

import numpy as np
import pytest
import torch

from sparsegp import SparseGPRegressor
from sparsegp.core import approximations
from sparsegp.core.block import Block, MemoryRows
from sparsegp.errors import FactorizationError
from sparsegp.kernels import SquaredExponential
from sparsegp.learn import adam, lbfgs
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.learn.schedules import BLOCKS, POINTS, Schedule, choose_noise, learn
from sparsegp.learn.trace import Terms


def problem(n=400, seed=0, n_blocks=None):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, dtype=torch.float64, generator=generator) * 6 - 3
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(n, dtype=torch.float64, generator=generator)
    offsets = None if n_blocks is None else torch.linspace(0, n, n_blocks + 1).to(torch.int64)
    return MemoryRows(Block(X, y), offsets)


def hyperparameters(rows, M=20, **changes):
    return Hyperparameters(SquaredExponential(1.0, [1.5, 1.5]), 0.3, rows.all.X[:M], **changes)


def limits(rows, floor=1e-6):
    return Limits((floor, 10.0), rows.all.X.amin(0), rows.all.X.amax(0))


@pytest.mark.parametrize("maximize", [lbfgs.maximize, adam.maximize])
def test_optimisers_climb_and_end_at_the_best_point(maximize):
    rows = problem()
    hyper = hyperparameters(rows)
    objective = CollapsedObjective(rows, approximations.get("vfe"))
    start = objective.value(hyper)
    result = maximize(objective, hyper, limits(rows), max_iterations=60)
    assert result.objective > start + 50
    assert objective.value(hyper) == pytest.approx(result.objective, rel=1e-9)
    assert result.evaluations >= result.iterations > 0


def test_inducing_inputs_stay_inside_the_data_and_noise_above_its_floor():
    rows = problem()
    hyper = hyperparameters(rows)
    lbfgs.maximize(CollapsedObjective(rows, approximations.get("fitc")), hyper, limits(rows, 0.02), max_iterations=80)
    assert (hyper.inducing >= rows.all.X.amin(0) - 1e-12).all()
    assert (hyper.inducing <= rows.all.X.amax(0) + 1e-12).all()
    assert float(hyper.noise_var) >= 0.02 * (1 - 1e-12)


def test_a_stopping_callback_ends_every_stage():
    rows = problem(300)
    seen = []
    results = learn(
        rows,
        approximations.get("vfe"),
        hyperparameters(rows),
        Terms(limits(rows), np.random.default_rng(0), on_step=lambda step: bool(seen.append(step)) or len(seen) == 3),
    )
    assert len(seen) == 3
    assert results[-1].stopped


class FailsOnce:
    """An objective whose factorisation fails at its third evaluation."""

    def __init__(self, inner):
        self.inner, self.calls = inner, 0

    @property
    def n_rows(self):
        return self.inner.n_rows

    def value_and_gradient(self, hyper):
        self.calls += 1
        if self.calls == 3:
            raise FactorizationError("for the test")
        return self.inner.value_and_gradient(hyper)


def test_a_failed_factorisation_does_not_end_learning():
    rows = problem()
    objective = CollapsedObjective(rows, approximations.get("vfe"))
    steady, shaken = hyperparameters(rows, learn_inducing=False), hyperparameters(rows, learn_inducing=False)
    expected = lbfgs.maximize(objective, steady, limits(rows)).objective
    assert lbfgs.maximize(FailsOnce(objective), shaken, limits(rows)).objective > expected - 0.5


def test_a_failure_at_the_start_is_told():
    rows = problem(50)
    failing = FailsOnce(CollapsedObjective(rows, approximations.get("vfe")))
    failing.calls = 2
    with pytest.raises(FactorizationError, match="for the test"):
        lbfgs.maximize(failing, hyperparameters(rows), limits(rows))


def test_stages_grow_to_all_rows():
    assert POINTS.stages(5_000) == [5_000]
    assert POINTS.stages(1_000_000) == [8192, 65536, 1_000_000]
    assert BLOCKS.stages(246_000) == [20_000]
    iterations = [POINTS.iterations(k, 3, 1_000_000) for k in range(3)]
    assert iterations == sorted(iterations, reverse=True)
    assert POINTS.iterations(0, 1, 500) == POINTS.first_iterations


@pytest.mark.parametrize(("name", "n_blocks"), [("vfe", None), ("pitc", 12)])
def test_progressive_learning_ends_where_direct_learning_does(name, n_blocks):
    rows = problem(600, n_blocks=n_blocks)
    row = approximations.get(name)
    terms = Terms(limits(rows), np.random.default_rng(0))
    direct, staged = hyperparameters(rows), hyperparameters(rows)
    long = {"first_iterations": 80, "last_row_visits": 1e6, "fewest_iterations": 80}
    learn(rows, row, direct, terms, Schedule(**long))
    results = learn(rows, row, staged, terms, Schedule(first_rows=75, growth=3, **long))
    assert [r.n_rows for r in results][-1] == 600
    assert len(results) > 3
    objective = CollapsedObjective(rows, row)
    assert objective.value(staged) == pytest.approx(objective.value(direct), abs=0.01 * 600)


def test_blocks_of_a_subset_do_not_move_the_inducing_inputs():
    rows = problem(600, n_blocks=12)
    hyper = hyperparameters(rows)
    before = hyper.inducing.detach().clone()
    schedule = Schedule(first_rows=100, growth=10, most_rows=150, first_iterations=5, fewest_iterations=2)
    learn(rows, approximations.get("pitc"), hyper, Terms(limits(rows), np.random.default_rng(0)), schedule)
    assert torch.equal(hyper.inducing.detach(), before)
    assert hyper.inducing.requires_grad


@pytest.mark.parametrize("seed", [1, 4])
def test_a_smooth_function_is_not_taken_for_noise(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (320, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(320)
    gp = SparseGPRegressor(approximation="vfe", n_inducing=20, random_state=0).fit(X, y)
    assert gp.noise_var_ == pytest.approx(0.01, rel=0.5)


@pytest.mark.parametrize(("start", "raised"), [(1e-6, True), (0.01, False), (0.3, False)])
def test_noise_that_is_far_too_small_is_raised_before_blocks_are_learned(start, raised):
    """The noise of the problem is 0.01; more of it is tried in powers of ten."""
    rows = problem(n_blocks=6)
    hyper = Hyperparameters(SquaredExponential(1.0, [1.5, 1.5]), start, rows.all.X[:20])
    objective = CollapsedObjective(rows, approximations.get("pic"))
    before = objective.value(hyper)
    choose_noise(objective, hyper)
    assert (float(hyper.noise_var) > 1.01 * start) == raised
    assert objective.value(hyper) >= before
    assert float(hyper.noise_var) < 0.5


def test_noise_that_is_known_stays():
    rows = problem(n_blocks=6)
    hyper = Hyperparameters(SquaredExponential(1.0, [1.5, 1.5]), 1e-6, rows.all.X[:20], learn_noise=False)
    choose_noise(CollapsedObjective(rows, approximations.get("pic")), hyper)
    assert float(hyper.noise_var) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("sample_rows", "sizes"), [(None, [100, 800, 5000]), (801, [100, 800, 5000]), (800, [100, 5000]), (60, [60, 5000])]
)
def test_stages_below_all_rows_fit_in_a_sample(sample_rows, sizes):
    schedule = Schedule(first_rows=100, growth=8, warm_up_iterations=7)
    assert schedule.stages(5000, sample_rows) == sizes
    first, *others = schedule.climbs(sizes, 5000)
    assert (first.is_warm_up, first.subset, first.n_rows, first.iterations) == (True, 0, sizes[0], 7)
    assert [(climb.subset, climb.n_rows) for climb in others] == list(enumerate(sizes))
    assert [climb.iterations for climb in others] == [
        schedule.iterations(k, len(sizes), 5000) for k in range(len(sizes))
    ]
