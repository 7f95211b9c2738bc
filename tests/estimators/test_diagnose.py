"""diagnose(): bounds of the evidence, and every finding where it belongs and only there."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import CHANGES, KERNELS, DenseProblem, get_row, random_problem
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels
from sparsegp.calibration.calibration import Calibration
from sparsegp.calibration.mixture import Shape
from sparsegp.core.block import Block
from sparsegp.core.reasons import INTERRUPTED
from sparsegp.estimators.diagnosis import evidence_bounds, model_evidence_bounds
from sparsegp.estimators.judging import Finding, diagnose
from sparsegp.testing import oracle


def bounds_of(problem):
    return evidence_bounds(problem.prior(get_row("vfe")), problem.block)


@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    kernel=st.sampled_from(sorted(KERNELS)),
    change=st.sampled_from(["none", *sorted(CHANGES)]),
    n_inducing=st.integers(1, 8),
)
def test_the_exact_evidence_lies_between_the_bounds(seed, kernel, change, n_inducing):
    problem = CHANGES.get(change, lambda same: same)(random_problem(seed, kernel, n_inducing=n_inducing))
    dense = DenseProblem.of(problem)
    bounds = bounds_of(problem)
    assert bounds.lower <= oracle.log_evidence("exact", *dense.data) <= bounds.upper
    assert bounds.lower == pytest.approx(oracle.log_evidence("vfe", *dense.data), rel=1e-8)
    assert bounds.n_rows == len(dense.y)


@pytest.mark.parametrize("change", ["row noise", "weights and row noise"])
def test_the_upper_bound_is_that_of_the_derivation(change):
    """E4, term by term with dense matrices."""
    dense = DenseProblem.of(CHANGES[change](random_problem(3)))
    Q = oracle.training_prior("dtc", *dense.data[:2], dense.Z)
    R = np.diag(dense.noise_var)
    tau = np.trace(np.linalg.inv(R) @ (dense.k(dense.X, dense.X) - Q))
    square = dense.y @ np.linalg.solve(Q + (1 + tau) * R, dense.y)
    expected = -0.5 * (len(dense.y) * np.log(2 * np.pi) + np.linalg.slogdet(Q + R)[1] + square)
    bounds = bounds_of(CHANGES[change](random_problem(3)))
    assert bounds.upper == pytest.approx(expected, rel=1e-8)
    assert bounds.unexplained == pytest.approx(tau / len(dense.y), rel=1e-8)


def test_equal_noise_gives_the_published_bound():
    """Noise s2 + tr(K - Q) in the quadratic form (Titsias 2014)."""
    problem = random_problem(4)
    dense = DenseProblem.of(problem)
    Q = oracle.training_prior("dtc", dense.k, dense.X, dense.Z)
    I, trace = np.eye(len(dense.y)), np.trace(dense.k(dense.X, dense.X) - Q)
    square = dense.y @ np.linalg.solve(Q + (dense.noise_var + trace) * I, dense.y)
    logdet = np.linalg.slogdet(Q + dense.noise_var * I)[1]
    expected = -0.5 * (len(dense.y) * np.log(2 * np.pi) + logdet + square)
    assert bounds_of(problem).upper == pytest.approx(expected, rel=1e-8)


def test_the_bounds_meet_where_the_inducing_inputs_are_the_rows():
    problem = random_problem(1)
    bounds = bounds_of(replace(problem, inducing=problem.X))
    assert 0.0 <= bounds.upper - bounds.lower < 1e-4
    assert bounds_of(problem).upper - bounds_of(problem).lower > 1.0


def wave(n=250, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + noise * rng.standard_normal(n)


def fixed(kernel=None, noise_var=0.01, **changes):
    kernel = kernel or kernels.SquaredExponential(1.5, [0.9, 4.0])
    settings = {"approximation": "vfe", "n_inducing": 60, "optimizer": None, "random_state": 0}
    return SparseGPRegressor(kernel=kernel, noise_var=noise_var, **{**settings, **changes})


def found(model, X, y):
    return {finding.what.partition(":")[0]: finding for finding in diagnose(model, X, y)}


def test_a_healthy_model_has_no_findings():
    for model in (fixed(), fixed(approximation="fitc"), fixed(approximation="pic", n_blocks=4)):
        assert diagnose(model.fit(*wave()), *wave(seed=1)) == []


def test_too_few_inducing_inputs():
    X, y = wave()
    model = fixed(n_inducing=4).fit(X, y)
    finding = found(model, X, y)["There are too few inducing inputs"]
    bounds = model_evidence_bounds(model, X, y)
    assert bounds.lower == pytest.approx(model.log_evidence_, rel=1e-8)
    assert finding.severity == "warning"
    assert f"{bounds.lower:,.1f}" in finding.evidence
    assert "n_inducing=8" in finding.try_this
    assert "There are too few inducing inputs" not in found(fixed(n_inducing=4, approximation="pic").fit(X, y), X, y)


def test_noise_at_its_floor_and_nothing_but_noise():
    X, y = wave(noise=0.0)
    assert "The noise is at its floor" in found(fixed(noise_var=1e-9, n_inducing=250).fit(X, y), X, y)
    y = np.random.default_rng(0).standard_normal(len(X))
    silent = fixed(kernels.SquaredExponential(1e-4, 1.0), noise_var=1.0).fit(X, y)
    assert "The model found hardly any signal" in found(silent, X, y)


def test_constant_and_duplicate_columns_are_named():
    X, y = wave()
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "same": 3.0 - 2.0 * X[:, 0], "still": 7.0})
    model = fixed(kernels.SquaredExponential(1.5, [1.2, 4.0, 2.4, 1.0])).fit(table, y)
    findings = found(model, table, y)
    assert diagnose(model, table, y)[0].what.endswith("still")
    assert "a and same" in findings["Two columns say the same"].what
    assert "Two columns say the same" not in found(fixed().fit(X, y), X, y)


def test_a_column_without_effect_is_told_from_one_with_a_slow_effect():
    X, y = wave()
    unused = found(fixed(kernels.SquaredExponential(1.5, [0.9, 1e4])).fit(X, y), X, y)
    assert unused["Columns without effect"].what.endswith("column 1")
    slow = fixed(kernels.SquaredExponential(400.0, [5.0, 60.0])).fit(X, y)  # far beyond the data, but a linear trend
    assert "Columns without effect" not in found(slow, X, y)


def test_lengthscales_below_the_spacing_of_rows():
    X, y = wave()
    what = "The lengthscales are shorter than the distance between rows"
    model = fixed(kernels.Matern32(1.0, 0.01), n_inducing=200).fit(X, y)
    assert what in found(model, X, y)
    assert what not in found(fixed().fit(X, y), X[:20], y[:20])  # few rows of many are far apart


@pytest.mark.parametrize("noise_var", [1e-4, 0.2])
def test_intervals_too_narrow_and_too_wide(noise_var):
    X, y = wave(400)
    findings = found(fixed(noise_var=noise_var).fit(X, y), *wave(seed=1))
    narrow = "The intervals are too narrow" in findings
    assert narrow == (noise_var < 0.01)
    assert narrow != ("The intervals are wider than needed" in findings)


def test_a_target_with_few_or_repeated_values_is_named():
    X, y = wave(400)
    model = fixed(noise_var=0.1)
    steps = np.round(y)
    finding = found(model.fit(X, steps), X, steps)[f"The target has only {len(np.unique(steps))} distinct values"]
    assert finding.severity == "notice"
    assert f"CRPS, which is {model.forecast(X).crps(steps).mean():.4g}" in finding.try_this
    floor = np.maximum(y, np.quantile(y, 0.1))
    assert "Many rows have the same target" in found(model.fit(X, floor), X, floor)
    assert not any("target" in what for what in found(model.fit(X, y), X, y))


def test_the_worst_part_of_the_rows_is_named():
    X, y = wave(600)
    loud = X[:, 1] > 2.4
    y = np.where(loud, y + 0.5 * np.random.default_rng(1).standard_normal(600), y)
    table = pd.DataFrame(X, columns=["place", "carat"])
    model = fixed(noise_var=0.035, calibration=None).fit(table[:200], y[:200])
    diagnosis = model.diagnose(table[200:], y[200:])
    worst = diagnosis.segments.worst
    assert worst.quantity == "carat"
    finding = found(model, table[200:], y[200:])[f"The intervals are too narrow for rows with {worst.name}"]
    assert finding.severity == "warning"
    assert f"{worst.coverage:.1%} of these {worst.n_rows} rows" in finding.evidence
    assert set(diagnosis.segments.by_quantity) >= {"place", "carat", "the forecast", "the std of the forecast"}


def test_intervals_that_are_too_wide_in_a_part_are_a_notice():
    X, y = wave(3000)
    findings = diagnose(fixed(noise_var=0.2, calibration=None).fit(X[:200], y[:200]), X, y)
    assert [finding.severity for finding in findings if "wider than needed" in finding.what] == ["notice"]


@pytest.mark.parametrize("calibration", ["auto", None])
def test_what_is_on_is_not_recommended(calibration):
    X, y = wave(400)
    findings = found(fixed(noise_var=0.2, calibration=calibration).fit(X, y), *wave(seed=1))
    advised = "calibration='auto'" in findings["The intervals are wider than needed"].try_this
    assert advised == (calibration is None)


def test_rows_far_from_the_data():
    X, y = wave()
    model = fixed(kernels.SquaredExponential(1.5, 0.9)).fit(X, y)
    what = "Some rows are far from all that the model has seen"
    assert found(model, X + 50.0, y)[what].severity == "warning"
    assert what not in found(model, X, y)


def test_drift_of_a_stream():
    X, y = wave()
    model = fixed().fit(X, y)
    assert "The data have drifted" not in found(model.partial_fit(*wave(seed=2)), X, y)
    X_new, y_new = wave(seed=1)
    assert "The data have drifted" in found(model.partial_fit(X_new, y_new + 3.0), X, y)


def test_negative_variances_are_a_finding():
    X, y = wave(60)
    model = fixed(approximation="nystrom", n_inducing=20).fit(X, y)
    assert diagnose(model, X, y)[0].severity == "warning"
    assert "negative" in " ".join(finding.what for finding in diagnose(model, X, y))
    assert diagnose(model, X, y).segments is None


def test_every_estimator_can_be_diagnosed():
    X, y = wave(120)
    kernel = kernels.SquaredExponential(1.5, [0.9, 4.0])
    for model in (
        HeteroscedasticGPRegressor(kernel, n_inducing=40, n_noise_inducing=5, noise_mean=-4.6, optimizer=None),
        CommitteeGPRegressor(kernel, n_experts=2, noise_var=0.01, optimizer=None),
        SparseGPRegressor(kernel, approximation="exact", noise_var=0.01, optimizer=None),
    ):
        model.fit(X, y)
        assert found(model, X, y + 5.0)["The intervals are too narrow"].severity == "warning"
        assert model.diagnose(X, y + 5.0) == diagnose(model, X, y + 5.0)


@pytest.mark.parametrize(
    "model", [fixed(), HeteroscedasticGPRegressor(n_inducing=20, n_noise_inducing=5, optimizer=None)]
)
def test_pit_values_undo_quantiles(model):
    X, y = wave(80)
    model.fit(X, y)
    levels = np.array([0.03, 0.4, 0.9])
    for level, quantile in zip(levels, model.predict_quantiles(X, levels).T, strict=True):
        np.testing.assert_allclose(model.forecast(X).cdf(quantile), level, rtol=1e-9)


def test_findings_read_as_sentences():
    assert str(Finding("notice", "A", "b", "Try c.")) == "notice: A (b). Try c."


def test_wrong_rows_are_refused():
    X, y = wave(60)
    model = fixed(n_inducing=20).fit(X, y)
    with pytest.raises(InputError, match="one target for each"):
        diagnose(model, X, y[:-1])
    with pytest.raises(ValueError, match="features"):
        diagnose(model, X[:, :1], y)


def test_bounds_do_not_need_a_prior_of_vfe():
    problem = random_problem(2)
    block = Block(problem.X, problem.y, torch.full_like(problem.y, problem.noise_var))
    assert evidence_bounds(problem.prior(get_row("fitc")), block).lower == pytest.approx(bounds_of(problem).lower)


def test_intervals_below_a_natural_zero_are_pointed_out():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (300, 1))
    y = np.exp(X[:, 0] + 0.4 * rng.standard_normal(300))
    model = fixed(kernel=kernels.SquaredExponential(4.0, 1.0), noise_var=1.0).fit(X[:200], y[:200])
    finding = found(model, X[200:], y[200:])["Some intervals reach below zero, where no target is"]
    share = np.mean(model.predict_interval(X[200:])[0] < 0.0)
    assert f"{share:.1%} of the 95% intervals do" in finding.evidence
    assert "target_transform='log'" in finding.try_this
    some = np.where(np.arange(100) == 3, 0.0, y[200:])
    with_zero = found(model, X[200:], some)["Some intervals reach below zero, where no target is"]
    assert "--target-transform log1p" in with_zero.try_this
    carried = fixed(kernel=kernels.SquaredExponential(1.0, 1.0), noise_var=0.16, target_transform="log")
    assert not any("below zero" in what for what in found(carried.fit(X[:200], y[:200]), X[200:], y[200:]))
    assert not any("below zero" in what for what in found(model, X[200:], y[200:] - 1.0))


def test_a_fit_that_was_cut_short_is_pointed_out():
    X, y = wave(600)
    with pytest.warns(UserWarning, match="time_budget"):
        model = SparseGPRegressor(approximation="vfe", n_inducing=20, time_budget=1e-6, random_state=0).fit(X, y)
    finding = found(model, *wave(seed=1))["The fit ran out of time"]
    assert (finding.severity, "learned little" in finding.evidence) == ("warning", True)
    budget = {**model.info_["budget"], "fraction": 0.3, "reason": INTERRUPTED}
    model.fitted_ = replace(model.fitted_, info={**model.info_, "budget": budget})
    finding = found(model, *wave(seed=1))["The fit was interrupted before it was done"]
    assert finding.severity == "warning"
    assert "rests on 30.0% of its rows" in finding.evidence
    done = SparseGPRegressor(approximation="vfe", n_inducing=20, optimizer=None, random_state=0).fit(X, y)
    assert not any(what.startswith("The fit") for what in found(done, *wave(seed=1)))


def test_bounds_are_of_the_model_also_where_calibration_leaves_no_noise():
    """Forecasts narrower than the model's own f have no noise left, up to rounding."""
    X, y = wave(300)
    model = fixed(noise_var=0.01).fit(X, y)
    expected = model_evidence_bounds(model, X, y)
    narrow = Calibration(Shape.gaussian(1e-3))
    model.fitted_ = replace(model.fitted_, calibration=narrow)
    forecast = model.forecast(X)
    assert (forecast.noise_std >= 0.0).all()
    assert (forecast.noise_std == 0.0).any()
    assert model_evidence_bounds(model, X, y) == expected
    assert "The intervals are too narrow" in found(model, X, y)
