"""Time budgets, by a clock that only computations advance: the deadline holds, and more time gives more."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
import torch

from sparsegp import InputError, SparseGPRegressor, load
from sparsegp.core import approximations, reasons
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.reasons import OUT_OF_TIME
from sparsegp.fit import affordable
from sparsegp.fit.budget import Budget, Fractions
from sparsegp.infer import anytime, batch
from sparsegp.kernels import SquaredExponential
from sparsegp.learn import lbfgs, neighbourhoods, schedules
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import CollapsedObjective
from sparsegp.learn.trace import Deadline, OutOfTime, Terms
from test_regressor import fixed, wave

N_ROWS = 1200
SECONDS_PER_ROW = 0.01
PASS_SECONDS = N_ROWS * SECONDS_PER_ROW


class FakeTime:
    """Inference of a row takes SECONDS_PER_ROW, an evaluation with gradient three times as long per row."""

    def __init__(self, monkeypatch, options):
        self.now = 0.0
        self._patch(monkeypatch, batch, "statistics_of", lambda prior, rows: len(rows))
        self._patch(
            monkeypatch, anytime.NaturalAscent, "fold", lambda engine, state, draw, parts: sum(p.n_rows for p in parts)
        )
        self._patch(monkeypatch, CollapsedObjective, "value_and_gradient", lambda own, _: 3 * own.n_rows)
        few = [replace(schedule, least_first_rows=20) for schedule in (schedules.POINTS, schedules.BLOCKS)]
        options(
            clock=lambda: self.now,
            steps={"first_rows": 100, "sketch_rows": 150},
            learning={"schedules": schedules.Schedules(*few)},
        )

    def _patch(self, monkeypatch, owner, name, rows_of):
        original = getattr(owner, name)

        def timed(*arguments):
            self.now += SECONDS_PER_ROW * rows_of(*arguments)
            return original(*arguments)

        monkeypatch.setattr(owner, name, timed)


@pytest.fixture
def time(monkeypatch, options):
    return FakeTime(monkeypatch, options)


def limited(seconds, **changes):
    return SparseGPRegressor(
        **{"approximation": "vfe", "n_inducing": 12, "random_state": 0, "time_budget": seconds, **changes}
    )


@pytest.mark.parametrize("inference", ["exact", "anytime"])
@pytest.mark.parametrize("seconds", [0.3, 2.0, 7.0, 15.0, 30.0, 100.0])
@pytest.mark.parametrize("approximation", ["vfe", "fitc"])
def test_a_fit_returns_in_time_with_a_valid_model(approximation, seconds, inference, time):
    X, y = wave(N_ROWS)
    gp = limited(seconds, approximation=approximation, inference=inference)
    if seconds < 1.0:
        with pytest.warns(UserWarning, match="shorter than one step"):
            gp.fit(X, y)
    else:
        gp.fit(X, y)
    report = gp.info_["budget"]
    assert report["used"] == time.now <= 1.1 * seconds + 1.0
    assert report["asked"] == seconds
    assert np.isfinite(gp.predict(X, return_std=True)).all()
    assert 0.0 < report["fraction"] <= 1.0
    assert gp.n_samples_seen_ == round(report["fraction"] * N_ROWS)


def test_more_time_gives_more_rows_and_more_learning(time):
    X, y = wave(N_ROWS)
    reports, evaluations = [], []
    for seconds in (7.0, 15.0, 60.0, 4000.0):
        time.now = 0.0
        gp = limited(seconds, calibration=None).fit(X, y)
        reports.append(gp.info_["budget"])
        evaluations.append(gp.info_["evaluations"])
    assert [r["reason"] for r in reports[:2]] == [reasons.TIME_IS_UP] * 2
    assert [r["reason"] for r in reports[2:]] == [reasons.ONE_PASS] * 2
    assert reports[0]["fraction"] < reports[1]["fraction"] < reports[2]["fraction"] == reports[3]["fraction"] == 1.0
    # more rows may take the seconds of some evaluations
    assert max(evaluations[:2]) < evaluations[3]


@pytest.mark.usefixtures("brief_learning")
def test_an_ample_budget_changes_nothing(time):
    X, y = wave(N_ROWS)
    with_budget = limited(1e6).fit(X, y)
    without = limited(None).fit(X, y)
    np.testing.assert_allclose(with_budget.predict(X), without.predict(X), rtol=1e-6, atol=1e-8)
    assert with_budget.info_["budget"]["used"] < 1e6


def test_a_budget_without_learning_goes_to_inference(time):
    X, y = wave(N_ROWS)
    settings = {"inference": "exact", "time_budget": 1.5 * PASS_SECONDS}
    exact = fixed("vfe", **settings).fit(X, y)
    np.testing.assert_allclose(exact.predict(X), fixed("vfe").fit(X, y).predict(X), rtol=1e-8, atol=1e-10)
    time.now = 0.0
    partial = fixed("vfe", **settings | {"time_budget": 0.5 * PASS_SECONDS}).fit(X, y)
    assert partial.info_["budget"]["reason"] == reasons.TIME_IS_UP
    assert 0.25 < partial.info_["budget"]["fraction"] < 0.5


def test_the_time_of_the_reader_counts(time):
    X, y = wave(N_ROWS)
    gp = limited(20.0, inference="anytime")
    seconds = []
    for progress in gp.fit_iter(X, y):
        time.now += 4.0
        seconds.append(progress.seconds)
    assert time.now <= 1.1 * 20.0 + 1.0 + 4.0
    assert seconds[-1] < 20.0 - 4.0 * (len(seconds) - 2)


@pytest.mark.parametrize("rows", [N_ROWS, 300])
def test_blocks_are_made_of_the_rows_within_reach(rows, time, monkeypatch, options):
    X, y = wave(N_ROWS)
    fractions = options(budget={"fractions": Fractions(fewest_start_seconds=np.inf)}).budget.fractions
    passes, blocks_a_row = fractions.partition_passes, 24 / N_ROWS
    seconds = fractions.blocks * 38.0 / (passes * blocks_a_row * rows**2)
    monkeypatch.setattr(affordable, "_pair_seconds", lambda *_: 0.9 * seconds)
    gp = limited(40.0, approximation="pic", n_blocks=24, calibration=None).fit(X, y)
    report = gp.info_["budget"]
    assert time.now <= 1.1 * 40.0 + 1.0
    assert np.isfinite(gp.predict(X)).all()
    if rows == N_ROWS:
        assert (report["reason"], report["fraction"]) == (reasons.ONE_PASS, 1.0)
    else:
        assert report["reason"] == reasons.TIME_IS_UP
        assert report["fraction"] == pytest.approx(rows / N_ROWS)


@pytest.mark.parametrize("approximation", ["exact", "sod"])
def test_dense_models_stop_learning_at_the_deadline(approximation, options):
    now = [0.0]

    def clock():
        now[0] += 0.5
        return now[0]

    options(clock=clock)
    X, y = wave(60)
    gp = limited(6.0, approximation=approximation, n_inducing=30).fit(X, y)
    assert gp.info_["stages"][-1].reason == OUT_OF_TIME
    options(clock=perf_counter)
    full = SparseGPRegressor(approximation=approximation, n_inducing=30, random_state=0).fit(X, y)
    assert gp.info_["evaluations"] < full.info_["evaluations"]
    assert gp.info_["budget"]["fraction"] == 1.0
    assert np.isfinite(gp.predict(X)).all()


def test_all_rows_with_fewer_inducing_inputs_come_before_a_part_of_the_rows(monkeypatch, options):
    """A row costs as much as its inducing inputs squared: 60 s are enough for all rows with some of them."""
    now = [0.0]
    original = batch.statistics_of

    def timed(prior, rows):
        now[0] += len(rows) * prior.n_inducing**2 * 1e-4
        return original(prior, rows)

    monkeypatch.setattr(batch, "statistics_of", timed)
    options(budget={"fractions": Fractions(fewest_inducing=4)})
    options(clock=lambda: now[0], steps={"first_rows": 20, "sketch_rows": 20})
    X, y = wave(N_ROWS)
    gp = limited(60.0, n_inducing=40, optimizer=None, kernel=SquaredExponential(1.0, [1.0, 1.0]), noise_var=0.1)
    report = gp.fit(X, y).info_["budget"]
    assert (report["fraction"], report["reason"]) == (1.0, reasons.ONE_PASS)
    assert 4 < len(gp.inducing_) < 40
    assert now[0] <= 60.0


def test_a_pass_that_slows_down_ends_in_time_and_says_so(monkeypatch, options):
    """Other processes start when the pass has begun: rows then take ten times as long."""
    now, passed = [0.0], [0]
    original = batch.statistics_of

    def timed(prior, rows):
        passed[0] += len(rows)
        now[0] += SECONDS_PER_ROW * len(rows) * (10.0 if passed[0] > 400 else 1.0)
        return original(prior, rows)

    monkeypatch.setattr(batch, "statistics_of", timed)
    options(clock=lambda: now[0], steps={"first_rows": 100, "sketch_rows": 150})
    X, y = wave(N_ROWS)
    gp = fixed("vfe", time_budget=2.0 * PASS_SECONDS)
    with pytest.warns(UserWarning, match=r"rests on [\d,]+ of 1,200 rows"):
        gp.fit(X, y)
    report = gp.info_["budget"]
    assert report["reason"] == reasons.TIME_IS_UP
    assert 0.2 < report["fraction"] < 1.0
    assert now[0] <= 1.1 * 2.0 * PASS_SECONDS + 1.0
    assert "Updates add to those" in report["says"]


@pytest.mark.parametrize("approximation", ["vfe", "pic"])
def test_a_model_of_a_part_of_its_rows_goes_on_from_those(approximation, time, tmp_path):
    X, y = wave(N_ROWS)
    gp = fixed(approximation, time_budget=0.5 * PASS_SECONDS, reading="seen")
    with pytest.warns(UserWarning, match="rests on"):
        gp.fit(X, y)
    assert 0.0 < gp.info_["budget"]["fraction"] < 1.0
    gp.save(tmp_path / "part.sgp")
    again = load(tmp_path / "part.sgp")
    np.testing.assert_allclose(again.predict(X), gp.predict(X), rtol=1e-6, atol=1e-8)
    seen, new = gp.model_.n_rows, wave(30, seed=7)
    for model in (gp, again):
        model.partial_fit(*new)
        assert model.model_.n_rows == seen + 30
    np.testing.assert_allclose(again.predict(X), gp.predict(X), rtol=1e-6, atol=1e-8)
    if approximation == "pic":
        whole = fixed(approximation).fit(X, y).partial_fit(*new)
        np.testing.assert_allclose(gp.predict(X), whole.predict(X), rtol=1e-4, atol=1e-5)


def test_a_part_of_a_budget_and_its_deadlines():
    now = [0.0]
    budget = Budget(100.0, 0.0, lambda: now[0])
    now[0] = 20.0
    part = budget.sub(0.5)
    assert (part.remaining, budget.remaining) == (40.0, 80.0)
    assert part.deadline_of_rest(1.0).at == part.deadline(1.0).at == 60.0
    assert Budget(None).sub(0.5).remaining == np.inf


def test_what_a_pass_costs_is_read_from_the_evaluations_as_they_come():
    now = [0.0]
    budget = Budget(100.0, 0.0, lambda: now[0], row_seconds=0.01)
    deadline = budget.learning_deadline(1000, 0.0)
    assert deadline.left == pytest.approx(100.0 - budget.pass_seconds(1000))
    with deadline.evaluation(100):
        now[0] += 6.0
    assert deadline.left == pytest.approx(94.0 - 3.0 * 13.0)
    budget.learned(deadline)
    assert budget.pass_seconds(1000) == pytest.approx(3.0 * 13.0)


def test_neighbourhoods_are_judged_by_fewer_rows_and_rounds_when_time_is_short(monkeypatch):
    now, judged = [0.0], []
    original = neighbourhoods.held_out_log_density

    def timed(block, hyper, rows, n_neighbours):
        now[0] += 0.1 * len(rows)
        judged.append(len(rows))
        return original(block, hyper, rows, n_neighbours)

    monkeypatch.setattr(neighbourhoods, "held_out_log_density", timed)
    objective, hyper, limits = problem()
    rounds = neighbourhoods.Rounds(counts=(2, 2, 2), n_rows=40, iterations=2, n_neighbours=20)
    terms = Terms(limits, np.random.default_rng(0), deadline=Deadline(30.0, lambda: now[0]))
    neighbourhoods.learn(objective.rows.all, hyper, terms, rounds)
    assert now[0] < 30.0
    assert judged[0] == 16
    assert max(judged) == 32


@pytest.mark.parametrize("bad", [0, 0.0, -1.0, np.nan, np.inf, "a minute"])
def test_budgets_must_be_positive(bad):
    X, y = wave(30)
    for fit in (limited(bad).fit, limited(bad).fit_iter):
        with pytest.raises(InputError, match="time_budget"):
            fit(X, y)


def test_nystrom_has_no_budget():
    with pytest.raises(InputError, match="time budget"):
        limited(3.0, approximation="nystrom").fit(*wave(30))


def problem():
    X, y = wave(200)
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    hyper = Hyperparameters(SquaredExponential(1.0, [1.0, 1.0]), 0.1, block.X[:10], learn_inducing=False)
    limits = Limits((1e-6, 100.0), block.X.amin(0), block.X.amax(0))
    return CollapsedObjective(MemoryRows(block), approximations.get("vfe")), hyper, limits


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam", "srgp"])
def test_optimizers_end_before_the_deadline_at_the_best_point_met(optimizer):
    objective, hyper, limits = problem()
    before = objective.value(hyper)
    now = [0.0]

    def clock():
        now[0] += 0.5
        return now[0]

    deadline = Deadline(8.0, clock)
    result = schedules.OPTIMIZERS[optimizer](objective, hyper, limits, deadline=deadline)
    assert result.reason == OUT_OF_TIME
    assert now[0] < 9.0
    assert objective.value(hyper) == pytest.approx(result.objective, rel=1e-9)
    assert result.objective > before


def test_a_deadline_measures_evaluations():
    now = [0.0]
    deadline = Deadline(10.0, lambda: now[0])
    with deadline.evaluation(100):
        now[0] += 2.0
    assert deadline.seconds_per_row == pytest.approx(0.02)
    assert deadline.allows(100, 3)
    assert not deadline.allows(100, 4)
    with pytest.raises(OutOfTime), deadline.evaluation(500):
        raise AssertionError


def test_short_deadlines_begin_with_fewer_rows():
    ample, short = Deadline(1e9, lambda: 0.0, 1e-3), Deadline(20.0, lambda: 0.0, 1e-3)
    assert schedules.POINTS.within(ample) is schedules.POINTS
    assert schedules.POINTS.within(short).first_rows == 1024
    objective, hyper, limits = problem()
    no_time = Deadline(-1.0, lambda: 0.0)
    assert lbfgs.maximize(objective, hyper, limits, deadline=no_time).evaluations == 1
    assert (
        schedules.learn(
            objective.rows,
            objective.approx,
            hyper,
            Terms(limits, np.random.default_rng(0), deadline=no_time),
        )
        == []
    )
