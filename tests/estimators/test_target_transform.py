"""A model with a target transform is the model of the transformed targets, and its forecasts are carried back."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import lognorm, norm
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sparsegp
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels, serving
from sparsegp.calibration.transform import TRANSFORMS
from sparsegp.errors import FingerprintError
from sparsegp.estimators.importance import Effect
from sparsegp.estimators.summary import summary
from sparsegp.testing import oracle

KERNEL = kernels.Matern32(0.8, [0.9, 1.4])
GIVEN = {"kernel": KERNEL, "noise_var": 0.05, "optimizer": None, "random_state": 0}
QUICK = {"kernel": "se", "n_inducing": 20, "random_state": 0}
ESTIMATORS = {
    "exact": lambda **given: SparseGPRegressor(approximation="exact", **GIVEN, **given),
    "learned, calibrated": lambda **given: SparseGPRegressor(approximation="vfe", **QUICK, **given),
    "in raw units": lambda **given: SparseGPRegressor(approximation="fitc", normalize=False, **GIVEN, **given),
    "pic": lambda **given: SparseGPRegressor(approximation="pic", n_inducing=15, n_blocks=3, **GIVEN, **given),
    "heteroscedastic": lambda **given: HeteroscedasticGPRegressor(
        kernel="se", n_inducing=15, n_noise_inducing=8, optimizer=None, random_state=0, **given
    ),
    "committee": lambda **given: CommitteeGPRegressor(n_experts=3, **GIVEN, **given),
}
every_estimator = pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
every_transform = pytest.mark.parametrize("name", TRANSFORMS)


def rows(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Prices: above zero, skewed."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.exp(0.5 + np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.3 * rng.standard_normal(n))


def learned(name: str, y: np.ndarray) -> np.ndarray:
    return TRANSFORMS[name].targets(y)


def same(got: Any, expected: Any) -> None:
    """Forecasts of the transformed target."""
    for answer in ("mean", "std", "f_std"):
        np.testing.assert_allclose(getattr(got, answer), getattr(expected, answer), rtol=1e-9, err_msg=answer)
    levels = [0.01, 0.5, 0.9]
    np.testing.assert_allclose(got.quantiles(levels), expected.quantiles(levels), rtol=1e-8, atol=1e-10)


@every_estimator
@every_transform
def test_the_model_is_that_of_the_transformed_targets(make: Any, name: str) -> None:
    (X, y), (new, new_y) = rows(), rows(30, seed=1)
    gp, plain = make(target_transform=name).fit(X, y), make().fit(X, learned(name, y))
    same(gp.forecast(new).base, plain.forecast(new))
    assert gp.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-10)
    assert gp.noise_var_ == pytest.approx(plain.noise_var_, rel=1e-10)
    transform, levels = TRANSFORMS[name], [0.05, 0.5, 0.95]
    quantiles = transform.inverse(plain.predict_quantiles(new, levels))
    np.testing.assert_allclose(gp.predict_quantiles(new, levels), quantiles, rtol=1e-9)
    np.testing.assert_allclose(np.transpose(gp.predict_interval(new, 0.9)), quantiles[:, [0, 2]], rtol=1e-9)
    slope = transform.log_slope(learned(name, new_y))
    density = plain.log_density(new, learned(name, new_y)) - slope
    np.testing.assert_allclose(gp.log_density(new, new_y), density, rtol=1e-8)
    for latent_answer, expected in zip(
        gp.predict(new, return_std=True, latent=True), plain.predict(new, return_std=True, latent=True), strict=True
    ):
        np.testing.assert_allclose(latent_answer, expected, rtol=1e-9)
    np.testing.assert_allclose(gp.predict(new, latent=True), plain.predict(new, latent=True), rtol=1e-9)
    cov = gp.predict(new[:5], return_cov=True, latent=True)[1]
    np.testing.assert_allclose(cov, plain.predict(new[:5], return_cov=True, latent=True)[1], rtol=1e-9)
    draws = plain.sample_y(new[:5], 20, random_state=3)
    np.testing.assert_allclose(gp.sample_y(new[:5], 20, random_state=3), transform.inverse(draws), rtol=1e-7)
    mean, std = gp.predict(new, return_std=True)
    np.testing.assert_array_equal(mean, gp.predict(new))
    again, epistemic, aleatoric = gp.predict_components(new)
    np.testing.assert_array_equal(again, mean)
    np.testing.assert_allclose(np.hypot(epistemic, aleatoric), std, rtol=1e-9)


@pytest.mark.parametrize("approximation", ["exact", "vfe", "fitc"])
def test_forecasts_are_those_of_the_dense_oracle(approximation: str) -> None:
    (X, y), (new, new_y), Z = rows(), rows(20, seed=1), rows(9, seed=2)[0]
    gp = SparseGPRegressor(approximation=approximation, inducing=Z, normalize=False, target_transform="log", **GIVEN)
    gp.fit(X, y)

    def k(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        return sparsegp_covariance(A, B)

    mean, cov = oracle.predict(approximation, k, X, np.log(y), Z, 0.05, new)
    std = np.sqrt(cov.diagonal() + 0.05)
    known = lognorm(std, scale=np.exp(mean))
    np.testing.assert_allclose(gp.predict(new), known.mean(), rtol=1e-6)
    np.testing.assert_allclose(gp.predict(new, return_std=True)[1], known.std(), rtol=1e-6)
    np.testing.assert_allclose(gp.predict_quantiles(new, [0.03, 0.7]).T, [known.ppf(0.03), known.ppf(0.7)], rtol=1e-6)
    np.testing.assert_allclose(gp.log_density(new, new_y), known.logpdf(new_y), rtol=1e-5)


def sparsegp_covariance(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Matern 3/2 written out."""
    r = np.sqrt((((A[:, None] - B) / [0.9, 1.4]) ** 2).sum(axis=2))
    return 0.8 * (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)


@pytest.mark.parametrize("approximation", ["exact", "vfe", "pic"])
def test_left_out_rows_are_carried_back(approximation: str) -> None:
    X, y = rows(60)
    given = {**GIVEN, "approximation": approximation, "n_inducing": 12, "n_blocks": 3}
    gp = SparseGPRegressor(target_transform="log", **given).fit(X, y)
    left, plain = gp.loo(), SparseGPRegressor(**given).fit(X, np.log(y)).loo()
    known = lognorm(plain.std, scale=np.exp(plain.mean))
    np.testing.assert_allclose(left.mean, known.mean(), rtol=1e-9)
    np.testing.assert_allclose(left.std, known.std(), rtol=1e-9)
    np.testing.assert_allclose(left.log_density, known.logpdf(y), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(gp.loo(X, y).log_density, left.log_density, rtol=1e-8, atol=1e-9)


@every_transform
def test_updates_are_exact_on_the_transformed_scale(name: str) -> None:
    X, y = rows()
    given = {"approximation": "vfe", "inducing": rows(15, seed=3)[0], **GIVEN}
    gp, plain = SparseGPRegressor(target_transform=name, **given), SparseGPRegressor(**given)
    for model, target in ((gp, y), (plain, learned(name, y))):
        model.partial_fit(X[:60], target[:60]).partial_fit(X[60:], target[60:]).forget(X[60:80], target[60:80])
    assert gp.n_samples_seen_ == 100
    same(gp.forecast(X).base, plain.forecast(X))
    part = gp.without_rows().partial_fit(X[60:80], y[60:80])
    gp.merge(part)
    plain.partial_fit(X[60:80], learned(name, y)[60:80])
    same(gp.forecast(X).base, plain.forecast(X))


def test_an_update_moves_the_calibration_on_the_transformed_scale() -> None:
    X, y = rows(400)
    given = {"approximation": "vfe", **QUICK}
    gp = SparseGPRegressor(target_transform="log", **given).fit(X[:300], y[:300]).partial_fit(X[300:], y[300:])
    plain = SparseGPRegressor(**given).fit(X[:300], np.log(y[:300])).partial_fit(X[300:], np.log(y[300:]))
    same(gp.forecast(X).base, plain.forecast(X))


def test_models_of_different_targets_are_not_merged() -> None:
    X, y = rows()
    shared = {"approximation": "vfe", "inducing": X[:9], "normalize": False, **GIVEN}
    log, plain = (SparseGPRegressor(target_transform=name, **shared).fit(X, y) for name in ("log", None))
    with pytest.raises(FingerprintError, match="target_transform='log' and None"):
        log.merge(plain)
    with pytest.raises(FingerprintError, match="target_transform=None and 'log'"):
        plain.merge(log)


def test_steps_are_scored_in_units_of_y() -> None:
    (X, y), (new, new_y) = rows(400), rows(50, seed=1)
    gp = SparseGPRegressor(approximation="vfe", target_transform="log", calibration=None, time_budget=20, **QUICK)
    *_, last = gp.fit_iter(X, y, validation=(new, new_y))
    assert last.scores["rmse"] == pytest.approx(np.sqrt(np.mean((gp.predict(new) - new_y) ** 2)))
    assert last.scores["nlpd"] == pytest.approx(-gp.log_density(new, new_y).mean())


@pytest.mark.parametrize("entries", [None, 50], ids=["in memory", "out of core"])
def test_rows_of_a_file_are_transformed_where_they_are_read(entries: int | None, tmp_path: Path, options: Any) -> None:
    X, y = rows(300)
    path = tmp_path / "rows.csv"
    np.savetxt(path, np.column_stack([X, y]), delimiter=",", header="a,b,price", comments="", fmt="%.17g")
    given = {"approximation": "vfe", "inducing": X[:20], **GIVEN}
    if entries is not None:
        options(opening={"most_entries": entries})
    gp = SparseGPRegressor(target_transform="log", **given).fit(path, target="price")
    plain = SparseGPRegressor(**given).fit(X, np.log(y))
    same(gp.forecast(X).base, plain.forecast(X))
    assert gp.scaling_.y_mean == pytest.approx(np.log(y).mean())
    assert (gp.fitted_.digest is None) == (entries is not None)


def test_rows_on_workers_are_transformed_there(dask_client: Any) -> None:
    X, y = rows(300)
    given = {"approximation": "vfe", "inducing": X[:20], **GIVEN}
    gp = SparseGPRegressor(target_transform="sqrt", **given).fit(X, y, client=dask_client)
    plain = SparseGPRegressor(**given).fit(X, np.sqrt(y))
    same(gp.forecast(X).base, plain.forecast(X))
    gp.partial_fit(*rows(60, seed=4), client=dask_client)
    new_X, new_y = rows(60, seed=4)
    same(gp.forecast(X).base, plain.partial_fit(new_X, np.sqrt(new_y)).forecast(X))
    bad = np.where(np.arange(300) == 250, -1.0, y)
    with pytest.raises(InputError, match="target_transform='sqrt' takes targets from zero on"):
        SparseGPRegressor(target_transform="sqrt", **given).fit(X, bad, client=dask_client)


@every_estimator
@every_transform
def test_a_file_keeps_the_transform(make: Any, name: str, tmp_path: Path) -> None:
    (X, y), (new, new_y) = rows(), rows(30, seed=1)
    gp, path = make(target_transform=name).fit(X, y), tmp_path / "model.sgp"
    gp.save(path)
    for other in (sparsegp.load(path), pickle.loads(pickle.dumps(gp)), gp.to_local()):
        assert other.scaling_.transform is gp.scaling_.transform
        forecast, expected = other.forecast(new), gp.forecast(new)
        for answer in ("mean", "std"):
            np.testing.assert_allclose(getattr(forecast, answer), getattr(expected, answer), rtol=1e-9)
        np.testing.assert_allclose(forecast.crps(new_y), expected.crps(new_y), rtol=1e-8)


@pytest.mark.parametrize("make", [ESTIMATORS[name] for name in ("exact", "learned, calibrated", "pic")])
@every_transform
def test_serving_says_the_same(make: Any, name: str, tmp_path: Path) -> None:
    (X, y), (new, new_y) = rows(), rows(30, seed=1)
    gp = make(target_transform=name).fit(X, y)
    gp.save(tmp_path / "model.sgp")
    light = serving.load(tmp_path / "model.sgp")
    for latent in (False, True):
        found, expected = (model.predict(new, return_std=True, latent=latent) for model in (light, gp))
        np.testing.assert_allclose(found, expected, rtol=1e-8)
        np.testing.assert_allclose(light.predict(new, latent=latent), expected[0], rtol=1e-8)
    np.testing.assert_allclose(light.predict_interval(new, 0.8), gp.predict_interval(new, 0.8), rtol=1e-8)
    np.testing.assert_allclose(
        light.predict_quantiles(new, [0.1, 0.7]), gp.predict_quantiles(new, [0.1, 0.7]), rtol=1e-8
    )
    target = np.where(np.arange(30) == 7, 0.0, new_y)
    for answer in ("log_density", "cdf", "crps"):
        found, expected = getattr(light, answer)(new, target), getattr(gp.forecast(new), answer)(target)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-10)
    assert (light.sample(new, 9, random_state=0) >= 0.0).all()


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
def test_targets_without_a_place_are_refused_and_change_nothing(make: Any) -> None:
    X, y = rows()
    bad = np.where(np.arange(len(y)) % 40 == 5, 0.0, y)
    with pytest.raises(InputError, match=r"'log' takes targets above zero; 3 of these 120 are not.*'log1p' and 'sqrt'"):
        make(target_transform="log").fit(X, bad)
    with pytest.raises(InputError, match=r"one of 'log', 'log1p', 'sqrt', None; got 'logarithm'"):
        make(target_transform="logarithm").fit(X, y)


def test_a_batch_without_a_place_leaves_the_model_as_it_was() -> None:
    X, y = rows()
    gp = SparseGPRegressor(approximation="vfe", n_inducing=15, target_transform="log", **GIVEN).fit(X, y)
    before = gp.predict(X)
    with pytest.raises(InputError, match="The lowest is -2"):
        gp.partial_fit(X[:3], [1.0, -2.0, 3.0])
    np.testing.assert_array_equal(gp.predict(X), before)
    assert gp.n_samples_seen_ == len(y)


@pytest.mark.parametrize("name", ["log1p", "sqrt"])
def test_targets_of_zero_are_learned_and_no_interval_goes_below(name: str) -> None:
    X, z = rows(300)
    y = np.maximum(np.log(z), 0.0)
    gp = SparseGPRegressor(approximation="vfe", target_transform=name, **QUICK).fit(X[:200], y[:200])
    lower, upper = gp.predict_interval(X[200:])
    assert lower.min() == 0.0
    assert (upper > lower).all()
    held = np.mean((lower <= y[200:]) & (y[200:] <= upper))
    assert 0.88 < held <= 1.0
    assert np.isfinite(gp.log_density(X[200:], y[200:])).all()
    plain = SparseGPRegressor(approximation="vfe", **QUICK).fit(X[:200], y[:200])
    assert plain.predict_interval(X[200:])[0].min() < 0.0


def test_the_covariance_of_y_is_not_given_and_draws_have_it() -> None:
    X, y = rows()
    gp = ESTIMATORS["exact"](target_transform="log").fit(X, y)
    with pytest.raises(InputError, match="sample_y"):
        gp.predict(X[:4], return_cov=True)
    joint = gp.joint_forecast(X[:4])
    draws = np.log(joint.sample(60_000, np.random.default_rng(0)))
    expected = gp.predict(X[:4], return_cov=True, latent=True)[1] + gp.noise_var_ * np.eye(4)
    np.testing.assert_allclose(np.cov(draws), expected, atol=0.01)
    np.testing.assert_allclose(joint.mean, gp.predict(X[:4]))


@every_estimator
@every_transform
def test_joint_covariances_are_covariances_on_the_transformed_scale_and_refused_on_that_of_y(
    make: Any, name: str
) -> None:
    gp, (new, _) = make(target_transform=name).fit(*rows()), rows(8, seed=1)
    with pytest.raises(InputError, match=f"target_transform='{name}'.*sample_y.*latent=True"):
        gp.predict(new, return_cov=True)
    mean, cov = gp.predict(new, return_cov=True, latent=True)
    same_mean, std = gp.predict(new, return_std=True, latent=True)
    np.testing.assert_allclose(mean, same_mean, rtol=1e-9)
    np.testing.assert_allclose(np.diag(cov), std**2, rtol=1e-7)
    np.testing.assert_array_equal(cov, cov.T)
    assert np.linalg.eigvalsh(cov).min() > -1e-9 * np.trace(cov)


@pytest.mark.parametrize("kind", ["exact", "heteroscedastic", "committee"])
def test_draws_have_the_moments_that_predict_gives(kind: str) -> None:
    """What the refusal of return_cov advises: the diagonal of the draws' covariance is the square of std."""
    gp, (new, _) = ESTIMATORS[kind](target_transform="log").fit(*rows()), rows(4, seed=1)
    draws = gp.sample_y(new, 40_000, random_state=0)
    mean, std = gp.predict(new, return_std=True)
    np.testing.assert_allclose(draws.mean(axis=1), mean, rtol=0.03)
    np.testing.assert_allclose(np.sqrt(np.diag(np.cov(draws))), std, rtol=0.08)


def test_known_noise_and_weights_are_of_the_transformed_target() -> None:
    X, y = rows()
    noise, weight = np.linspace(0.02, 0.2, len(y)), 1.0 + np.arange(len(y)) % 2
    given = {"approximation": "vfe", "n_inducing": 15, **GIVEN}
    known = {"noise_var": noise, "sample_weight": weight}
    gp = SparseGPRegressor(target_transform="log", **given).fit(X, y, **known)
    same(gp.forecast(X).base, SparseGPRegressor(**given).fit(X, np.log(y), **known).forecast(X))


def test_it_is_a_parameter_like_others() -> None:
    X, y = rows(90)
    gp = SparseGPRegressor(approximation="exact", target_transform="log", **GIVEN)
    assert clone(gp).target_transform == "log"
    search = GridSearchCV(
        SparseGPRegressor(approximation="exact", **GIVEN),
        {"target_transform": [None, "log", "sqrt"]},
        scoring=sparsegp.metrics.nlpd_scorer,
        cv=3,
    ).fit(X, y)
    assert search.best_params_ == {"target_transform": "log"}
    before = gp.fit(X, y).predict(X[:1])
    np.testing.assert_array_equal(gp.set_params(target_transform=None).predict(X[:1]), before)


def test_a_pipeline_becomes_one_estimator_with_the_transform(tmp_path: Path) -> None:
    X, y = rows()
    pipeline = make_pipeline(StandardScaler(), ESTIMATORS["exact"](target_transform="log")).fit(X, y)
    wrapped = sparsegp.wrap(pipeline)
    wrapped.save(tmp_path / "model.sgp")
    np.testing.assert_allclose(sparsegp.load(tmp_path / "model.sgp").predict(X), pipeline.predict(X), rtol=1e-9)
    assert (wrapped.predict_interval(X)[0] > 0.0).all()


def test_findings_are_those_of_the_model_that_was_learned() -> None:
    (X, y), (new, new_y) = rows(300), rows(100, seed=1)
    given = {"approximation": "vfe", **QUICK}
    gp = SparseGPRegressor(target_transform="log", **given).fit(X, 1e6 * y)
    plain = SparseGPRegressor(**given).fit(X, np.log(1e6 * y))
    found, expected = (
        [finding.what for finding in model]
        for model in (gp.diagnose(new, 1e6 * new_y), plain.diagnose(new, np.log(1e6 * new_y)))
    )
    assert found == expected
    with pytest.raises(InputError, match="above zero"):
        gp.diagnose(new, new_y - 1.0)


def test_effects_are_in_units_of_y() -> None:
    X, y = rows()
    gp, plain = ESTIMATORS["exact"](target_transform="log").fit(X, y), ESTIMATORS["exact"]().fit(X, np.log(y))
    found, expected = Effect.of(gp, X, 0), Effect.of(plain, X, 0)
    for answer in ("mean", "lower", "upper"):
        np.testing.assert_allclose(getattr(found, answer), np.exp(getattr(expected, answer)), rtol=1e-9)


def test_a_notebook_says_what_was_learned() -> None:
    X, y = rows()
    words = summary(SparseGPRegressor(approximation="exact", kernel="se", target_transform="log").fit(X, y))
    assert "log(y)" in words["Target"]
    assert words["Scores"].startswith("RMSE of log(y) ")
    assert "Target" not in summary(ESTIMATORS["exact"]().fit(X, y))


def test_coverage_is_kept_by_the_transform() -> None:
    """Intervals of the Gaussian that the data come from hold what they promise, on either scale."""
    (X, y), (new, new_y) = rows(400), rows(2000, seed=1)
    gp = SparseGPRegressor(approximation="exact", kernel="se", target_transform="log", random_state=0).fit(X, y)
    lower, upper = gp.predict_interval(new, 0.9)
    held = np.mean((lower < new_y) & (new_y < upper))
    assert abs(held - 0.9) < 4 * np.sqrt(0.09 / 2000) + 0.02
    below = gp.forecast(new).cdf(new_y)
    np.testing.assert_allclose(norm.ppf(below).std(), 1.0, atol=0.12)


@pytest.mark.filterwarnings("ignore:Values that the fit has not met")
@every_transform
def test_rows_with_gaps_are_carried_back_as_a_whole(name: str, tmp_path: Path) -> None:
    """A row with a gap has a mixture of what it may be on the transformed scale: that is carried back, once."""
    X, y = rows(200)
    new = rows(12, seed=1)[0]
    new[::3, 1] = np.nan
    given = {"approximation": "vfe", "n_inducing": 15, **GIVEN}
    gp = SparseGPRegressor(target_transform=name, **given).fit(X, y)
    plain = SparseGPRegressor(**given).fit(X, learned(name, y))
    inverse, levels = TRANSFORMS[name].inverse, [0.05, 0.5, 0.95]
    quantiles = inverse(plain.predict_quantiles(new, levels))
    np.testing.assert_allclose(gp.predict_quantiles(new, levels), quantiles, rtol=1e-8)
    np.testing.assert_allclose(gp.predict(new, latent=True), plain.predict(new, latent=True), rtol=1e-9)
    gp.save(tmp_path / "model.sgp")
    light = serving.load(tmp_path / "model.sgp")
    for latent in (False, True):
        found, expected = (model.predict(new, return_std=True, latent=latent) for model in (light, gp))
        np.testing.assert_allclose(found, expected, rtol=1e-7)
        np.testing.assert_allclose(light.predict(new, latent=latent), expected[0], rtol=1e-7)
    np.testing.assert_allclose(light.predict_quantiles(new, levels), quantiles, rtol=1e-7, atol=1e-12)
    target = rows(12, seed=1)[1]
    np.testing.assert_allclose(light.crps(new, target), gp.forecast(new).crps(target), rtol=1e-6)
