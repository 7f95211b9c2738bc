"""GPVC: gradients, the dense Gaussian it stands for, noise functions that are known, bad input."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm
from scipy.stats import t as student_t
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from papers import gpvc
from papers.gpvc import (
    NoisePrior,
    Objective,
    Parameters,
    VariableCovarianceRegressor,
    held_out,
    maximize,
    starting_parameters,
)
from sparsegp import InputError, SparseGPRegressor
from sparsegp.testing import oracle

DATA = Path(os.environ.get("SPARSEGP_DATA", Path(__file__).parents[3] / "shared" / "data"))
MOTORCYCLE = DATA / "motorcycle.parquet"


def noise_std(X: np.ndarray) -> np.ndarray:
    return 0.05 + 0.4 / (1.0 + np.exp(-2.0 * X[:, -1]))


def wave(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + noise_std(X) * rng.standard_normal(n)


def anywhere(
    seed: int, n_dims: int = 2, linear: bool = True, n_rows: int = 40, n_basis: int = 6
) -> tuple[Objective, Parameters]:
    """A problem and parameters that are not special: covariances are not round, noise varies."""
    rng = np.random.default_rng(seed)
    X, y = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((n_rows, n_dims), n_rows))
    start = starting_parameters(X, n_basis, linear, rng)
    vector = start.vector()
    return Objective(X, y, NoisePrior(1.3, 0.7), linear), start.from_vector(vector + rng.normal(0.0, 0.3, len(vector)))


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("n_dims", [1, 2, 4])
def test_gradient_is_that_of_differences(n_dims: int, linear: bool) -> None:
    objective, at = anywhere(3, n_dims, linear)
    _, gradient = objective.value_and_gradient(at)
    expected = oracle.gradient(lambda vector: objective.value(at.from_vector(vector)), at.vector(), 1e-5)
    np.testing.assert_allclose(gradient.vector(), expected, rtol=0.0, atol=1e-7 * np.abs(expected).max())


def test_gradient_where_noise_is_at_its_limits() -> None:
    objective, at = anywhere(4)
    floor = np.log(gpvc.NOISE_LIMITS[0])
    low = Parameters(at.centres, at.roots, at.log_alpha, 8.0 * at.noise_weights, torch.tensor(floor).double())
    basis = low.basis(objective.X)
    assert float(gpvc.raw_noise(low, basis).min()) < floor - 1.0
    assert float(gpvc.noise_of(low, basis).min()) >= floor
    _, gradient = objective.value_and_gradient(low)
    expected = oracle.gradient(lambda vector: objective.value(low.from_vector(vector)), low.vector(), 1e-6)
    np.testing.assert_allclose(gradient.vector(), expected, rtol=0.0, atol=1e-6 * np.abs(expected).max())


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000), st.booleans())
def test_evidence_and_predictions_are_those_of_the_dense_gaussian(seed: int, linear: bool) -> None:
    """y ~ N(0, Phi A^-1 Phi^T + R), conditioned on y in the ordinary way."""
    objective, at = anywhere(seed, linear=linear, n_rows=15)
    X = objective.X.numpy()
    gaps = X[:, None, :] - at.centres.numpy()
    Phi = np.exp(-0.5 * np.square(np.einsum("jde,nje->njd", at.roots.numpy(), gaps)).sum(2))
    np.testing.assert_allclose(at.basis(objective.X), Phi, rtol=1e-9, atol=1e-12)
    R = np.diag(np.exp(at.noise_bias.item() + Phi @ at.noise_weights.numpy()))
    features = np.hstack([Phi, X, np.ones((15, 1))]) if linear else Phi
    K = features @ np.diag(np.exp(-at.log_alpha.numpy())) @ features.T
    weights, evidence = objective.infer(at, at.basis(objective.X))
    assert evidence == pytest.approx(multivariate_normal.logpdf(objective.y.numpy(), np.zeros(15), K + R), rel=1e-6)
    gain = K @ np.linalg.inv(K + R)
    mean, var = weights.latent(objective.features(objective.X, at.basis(objective.X)))
    np.testing.assert_allclose(mean, gain @ objective.y.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(var, np.diag(K - gain @ K), rtol=1e-5, atol=1e-7)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, at = anywhere(5)
    value, gradient = objective.value_and_gradient(at)
    monkeypatch.setattr(gpvc, "CHUNK_ROWS", 7)
    again, other = objective.value_and_gradient(at)
    assert again == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(other.vector(), gradient.vector(), rtol=1e-9, atol=1e-10)


def test_the_prior_of_the_noise_weights_is_students_t() -> None:
    """The precision integrated out: differences of log p(u) are those of t with 2 shape degrees of freedom."""
    prior, u = NoisePrior(1.5, 0.4), torch.tensor([0.3, -2.0], dtype=torch.float64)
    students = student_t(df=3.0, scale=np.sqrt(0.4 / 1.5))
    expected = students.logpdf([0.3, -2.0]) - students.logpdf(0.0)
    assert prior.log_density(u) == pytest.approx(expected.sum(), rel=1e-12)
    h = 1e-6
    for k in range(2):
        step = h * torch.eye(2, dtype=torch.float64)[k]
        slope = (prior.log_density(u + step) - prior.log_density(u - step)) / (2 * h)
        assert float(prior.slope(u)[k]) == pytest.approx(slope, rel=1e-6)


def test_learning_climbs_and_stays_in_the_box() -> None:
    X, y = wave(200)
    inputs, target = torch.from_numpy(X), torch.from_numpy(y)
    objective = Objective(inputs, target, NoisePrior(), True)
    start = starting_parameters(inputs, 15, True, np.random.default_rng(0))
    few, n_few = maximize(objective, start, 5)
    many, n_many = maximize(objective, start, 60)
    assert (n_few, n_few < n_many <= 60) == (5, True)
    assert objective.value(start) < objective.value(few) < objective.value(many)
    assert bool((many.log_alpha.abs() <= 20.0).all())


def test_rows_held_out_choose_the_iteration() -> None:
    """And the weights are those of all rows: another judge means other parameters, not fewer rows."""
    objective, at = anywhere(6, n_rows=60)
    learned, judge = held_out(objective, 0.25, np.random.default_rng(0))
    assert (len(learned.y), len(objective.y)) == (45, 60)
    seen: list[float] = []
    assert judge is not None

    def listening(parameters: Parameters) -> float:
        seen.append(judge(parameters))
        return seen[-1]

    best, n_iterations = maximize(learned, at, 40, listening)
    assert len(seen) == n_iterations + 1
    assert judge(best) == pytest.approx(max(seen), rel=1e-9)
    assert max(seen) > seen[-1]
    assert held_out(objective, 0.0, np.random.default_rng(0)) == (objective, None)


def test_the_judge_is_the_log_density_of_held_rows() -> None:
    objective, at = anywhere(7, n_rows=30)
    learned, judge = held_out(objective, 0.2, np.random.default_rng(0))
    assert judge is not None
    held = [i for i in range(30) if not bool((objective.X[i] == learned.X).all(1).any())]
    weights, _ = learned.infer(at, at.basis(learned.X))
    basis = at.basis(objective.X[held])
    mean, var = weights.latent(learned.features(objective.X[held], basis))
    std = (var + gpvc.noise_of(at, basis).exp()).sqrt()
    expected = norm(mean.numpy(), std.numpy()).logpdf(objective.y[held].numpy()).mean()
    assert judge(at) == pytest.approx(expected + 0.5 * np.log(2 * np.pi), rel=1e-9)


def test_it_finds_the_noise_and_is_better_than_constant_noise() -> None:
    X, y = wave()
    Xs, ys = wave(1000, seed=1)
    model = VariableCovarianceRegressor(n_basis=30, random_state=0).fit(X, y)
    mean, latent_std, aleatoric = model.predict_components(Xs)
    assert np.abs(np.log(aleatoric / noise_std(Xs))).mean() < 0.3
    assert np.corrcoef(np.log(aleatoric), np.log(noise_std(Xs)))[0, 1] > 0.9
    truth = np.sin(2 * Xs[:, 0]) + 0.4 * Xs[:, 1]
    assert np.mean((mean - truth) ** 2) < 0.02 * truth.var()
    plain = SparseGPRegressor(approximation="vfe", n_inducing=30, random_state=0).fit(X, y)
    assert model.log_density(Xs, ys).mean() > plain.log_density(Xs, ys).mean() + 0.2
    again, std = model.predict(Xs, return_std=True)
    np.testing.assert_array_equal(again, mean)
    np.testing.assert_allclose(std, np.hypot(latent_std, aleatoric))
    assert 0.9 <= np.mean(np.abs(ys - mean) <= 1.96 * std) <= 0.98
    np.testing.assert_allclose(model.log_density(Xs, ys), norm(mean, std).logpdf(ys), rtol=1e-9)


def test_constant_noise_is_found_to_be_constant() -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-3, 3, (800, 1))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(800)
    _, _, aleatoric = VariableCovarianceRegressor(n_basis=15, random_state=0).fit(X, y).predict_components(X)
    np.testing.assert_allclose(aleatoric, 0.2, rtol=0.35)
    assert aleatoric.mean() == pytest.approx(0.2, rel=0.1)


def test_units_do_not_matter_and_the_same_seed_gives_the_same_model() -> None:
    X, y = wave(200)
    model = VariableCovarianceRegressor(n_basis=10, max_iterations=20, random_state=0)
    first = clone(model).fit(X, y).predict(X[:5], return_std=True)
    second = clone(model).fit(X, y).predict(X[:5], return_std=True)
    np.testing.assert_array_equal(first, second)
    moved = clone(model).fit(16.0 * X - 8.0, 32.0 * y + 64.0).predict(16.0 * X[:5] - 8.0, return_std=True)
    np.testing.assert_allclose(moved[0], 32.0 * first[0] + 64.0, rtol=1e-4)
    np.testing.assert_allclose(moved[1], 32.0 * first[1], rtol=1e-3)


def test_far_away_only_the_linear_part_is_left() -> None:
    X, y = wave(200)
    far = np.array([[400.0, 400.0], [800.0, 800.0], [1200.0, 1200.0]])
    linear = VariableCovarianceRegressor(n_basis=10, random_state=0).fit(X, y)
    steps = np.diff(linear.predict(far))
    assert steps[0] == pytest.approx(steps[1], rel=1e-9)
    without = VariableCovarianceRegressor(n_basis=10, linear_mean=False, random_state=0).fit(X, y)
    mean, latent_std, _ = without.predict_components(far)
    np.testing.assert_allclose(mean, y.mean(), rtol=1e-9)
    assert (latent_std == 0.0).all()


def test_few_rows_constant_targets_and_columns_that_do_not_vary() -> None:
    X, y = wave(8)
    for inputs, targets in ((X, y), (X, np.full(8, 3.0)), (np.zeros((8, 2)), y), (X[:1], y[:1])):
        model = VariableCovarianceRegressor(n_basis=50, max_iterations=10, random_state=0).fit(inputs, targets)
        mean, std = model.predict(inputs, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0.0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_basis": 0}, "n_basis must be a whole number of at least 1; got 0"),
        ({"n_basis": 2.5}, "n_basis must be a whole number"),
        ({"max_iterations": True}, "max_iterations must be"),
        ({"held_fraction": 1.0}, "held_fraction must be at least 0 and below 1; got 1.0"),
    ],
)
def test_bad_parameters_are_explained(changes: dict[str, object], message: str) -> None:
    X, y = wave(20)
    with pytest.raises(InputError, match=message):
        VariableCovarianceRegressor(**changes).fit(X, y)


def test_bad_input_is_explained() -> None:
    X, y = wave(20)
    with pytest.raises(InputError, match="shape and rate"):
        NoisePrior(0.0, 1.0)
    model = VariableCovarianceRegressor(n_basis=5, max_iterations=2, random_state=0)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 2.0, np.nan, X), y)
    model.fit(X, y)
    with pytest.raises(InputError, match=r"one target for each row of X: expected shape \(20,\), got \(19,\)"):
        model.log_density(X, y[:-1])
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :1])


@pytest.mark.slow
def test_scikit_learn_conformance() -> None:
    check_estimator(VariableCovarianceRegressor(n_basis=10, max_iterations=20, random_state=0))


@pytest.mark.skipif(not MOTORCYCLE.exists(), reason="the motorcycle data are not here")
def test_motorcycle_noise_grows_after_the_impact() -> None:
    table = pd.read_parquet(MOTORCYCLE).to_numpy(dtype=float)
    model = VariableCovarianceRegressor(n_basis=15, random_state=0).fit(table[:, :1], table[:, 1])
    _, _, aleatoric = model.predict_components([[5.0], [32.0]])
    assert aleatoric[1] > 4.0 * aleatoric[0]
