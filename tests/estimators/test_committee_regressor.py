"""CommitteeGPRegressor: what committees become in the limit, what they learn, and what scikit-learn expects."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from problems import agree
from sparsegp import CommitteeGPRegressor, InputError, SparseGPRegressor, kernels, load, processes
from sparsegp.committee import TABLE, shared_learning
from sparsegp.core import approximations
from sparsegp.fit.problem import INTERRUPTED
from sparsegp.learn.neighbourhoods import Rounds

pytestmark = pytest.mark.usefixtures("short_start")


def wave(n: int = 300, seed: int = 0, width: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-width, width, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, -1] + 0.15 * rng.standard_normal(n)


def fixed(**changes: Any) -> CommitteeGPRegressor:
    """Given hyper-parameters, as different from the default ones as can be."""
    settings = {
        "kernel": kernels.SquaredExponential(1.3, [0.9, 1.7]),
        "noise_var": 0.07,
        "optimizer": None,
        "normalize": False,
        "random_state": 0,
    }
    return CommitteeGPRegressor(**{**settings, **changes})


@pytest.mark.parametrize("row", ["exact", "vfe", "fitc", "pitc", "pic", "dtc", "pep", "sod"])
@pytest.mark.parametrize("aggregation", ["poe", "gpoe", "bcm", "grbcm"])
def test_one_expert_is_the_regressor(row: str, aggregation: str) -> None:
    X, y = wave(60)
    Xs = wave(9, seed=1)[0]
    alone = fixed(expert=row, n_experts=1, n_inducing=60, aggregation=aggregation).fit(X, y)
    inner = {"n_blocks": 1} if approximations.get(row).by_block else {}
    peer = SparseGPRegressor(
        kernel=kernels.SquaredExponential(1.3, [0.9, 1.7]),
        approximation=row,
        inducing=X if row not in ("exact", "sod") else "kmeans",
        n_inducing=60,
        noise_var=0.07,
        optimizer=None,
        normalize=False,
        **inner,
    ).fit(X, y)
    agree(alone.predict(Xs, return_cov=True, latent=True), peer.predict(Xs, return_cov=True, latent=True), rtol=1e-6)
    agree(alone.predict(Xs, return_std=True), peer.predict(Xs, return_std=True), rtol=1e-6)
    assert alone.log_evidence_ == pytest.approx(peer.log_evidence_, rel=1e-6)


def test_grbcm_with_two_experts_is_the_exact_model() -> None:
    """The second expert has its own rows and those of the communications expert: all of them, with weight 1."""
    X, y = wave(80)
    Xs = wave(9, seed=1)[0]
    pair = fixed(n_experts=2, aggregation="grbcm").fit(X, y)
    full = fixed(n_experts=1, aggregation="bcm").fit(X, y)
    agree(pair.predict(Xs, return_std=True), full.predict(Xs, return_std=True))
    assert pair.log_evidence_ == pytest.approx(full.log_evidence_, rel=1e-10)


def test_evidence_is_the_sum_over_independent_experts() -> None:
    X, y = wave(90)
    labels = np.arange(90) % 3
    together = fixed(aggregation="rbcm").fit(X, y, blocks=labels)
    apart = [fixed(n_experts=1, aggregation="rbcm").fit(X[labels == k], y[labels == k]) for k in range(3)]
    assert together.log_evidence_ == pytest.approx(sum(gp.log_evidence_ for gp in apart), rel=1e-10)


@pytest.mark.parametrize("aggregation", ["gpoe", "bcm", "rbcm", "grbcm", "tpoe"])
@pytest.mark.parametrize("expert", ["exact", "vfe"])
def test_far_from_the_data_the_prior_is_left(aggregation: str, expert: str) -> None:
    X, y = wave(200)
    gp = fixed(expert=expert, n_experts=5, n_inducing=10, aggregation=aggregation).fit(X, y)
    mean, std = gp.predict(X[:7] + 100.0, return_std=True, latent=True)
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(std, np.sqrt(1.3), rtol=1e-9)


@pytest.mark.parametrize("aggregation", TABLE)
def test_joint_predictions_have_the_marginals_of_single_ones(aggregation: str) -> None:
    X, y = wave(150)
    gp = fixed(n_experts=5, aggregation=aggregation).fit(X, y)
    Xs = np.vstack([wave(8, seed=1)[0], X[:2], X[:2] + 30.0])
    mean, cov = gp.predict(Xs, return_cov=True)
    agree((mean, np.sqrt(np.diag(cov))), gp.predict(Xs, return_std=True), rtol=1e-8)
    assert np.linalg.eigvalsh(cov).min() > 0.0
    close = gp.predict(np.array([[0.5, 0.5], [0.5001, 0.5]]), return_cov=True, latent=True)[1]
    assert close[0, 1] > 0.99 * close[0, 0]
    draws = gp.sample_y(Xs, 4000, random_state=0)
    np.testing.assert_allclose(draws.std(axis=1), np.sqrt(np.diag(cov)), rtol=0.1)


@pytest.mark.parametrize("expert", ["exact", "vfe", "fitc", "pic", "sod", "vshgp", "vhgp"])
def test_learning_explains_the_data(expert: str) -> None:
    X, y = wave(240)
    Xs, ys = wave(200, seed=3)
    gp = CommitteeGPRegressor(expert=expert, n_experts=3, n_inducing=25, n_noise_inducing=8, random_state=0).fit(X, y)
    mean = gp.predict(Xs)
    lower, upper = gp.predict_interval(Xs)
    assert np.sqrt(np.mean((mean - ys) ** 2)) < 0.25
    assert 0.85 <= np.mean((lower < ys) & (ys < upper)) <= 1.0
    assert gp.score(Xs, ys) > 0.9
    assert 0.1 < np.sqrt(gp.noise_var_) < 0.25
    assert gp.info_["n_experts"] >= 2
    assert gp.n_samples_seen_ == 240


@pytest.mark.parametrize("expert", ["vshgp", "vhgp"])
def test_experts_with_learned_noise_see_where_it_is_loud(expert: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (400, 1))
    noise_std = np.where(X[:, 0] > 0, 0.5, 0.05)
    y = np.sin(X[:, 0]) + noise_std * rng.standard_normal(400)
    gp = CommitteeGPRegressor(expert=expert, n_experts=3, n_inducing=15, n_noise_inducing=10, random_state=0).fit(X, y)
    _, _, aleatoric = gp.predict_components(np.array([[-2.0], [2.0]]))
    assert aleatoric[0] == pytest.approx(0.05, rel=0.6)
    assert aleatoric[1] == pytest.approx(0.5, rel=0.4)
    plain = CommitteeGPRegressor(n_experts=3, random_state=0).fit(X, y)
    assert gp.log_density(X, y).mean() > plain.log_density(X, y).mean() + 0.2
    assert gp.noise_mean_ < np.log(0.25)


def test_without_a_noise_process_the_density_is_gaussian() -> None:
    X, y = wave(100)
    gp = fixed(n_experts=3).fit(X, y)
    mean, std = gp.predict(X, return_std=True)
    gaussian = -0.5 * (np.log(2 * np.pi * std**2) + ((y - mean) / std) ** 2)
    np.testing.assert_allclose(gp.log_density(X, y), gaussian, rtol=1e-9)
    np.testing.assert_allclose(gp.predict_quantiles(X, [0.975])[:, 0], mean + 1.959963984540054 * std, rtol=1e-9)


@pytest.mark.parametrize("expert", ["exact", "vfe"])
@pytest.mark.parametrize("aggregation", ["rbcm", "grbcm"])
def test_known_noise_and_weights(expert: str, aggregation: str) -> None:
    """Weight w = the row w times with the same label; known noise replaces the learned one."""
    X, y = wave(90)
    labels, weight = np.arange(90) % 3, np.random.default_rng(1).integers(1, 4, 90)
    gp = fixed(expert=expert, n_inducing=90, aggregation="rbcm")
    weighted = clone(gp).fit(X, y, blocks=labels, sample_weight=weight)
    repeated = clone(gp).fit(*(np.repeat(a, weight, axis=0) for a in (X, y)), blocks=np.repeat(labels, weight))
    Xs = wave(9, seed=1)[0]
    agree(weighted.predict(Xs, return_std=True), repeated.predict(Xs, return_std=True), rtol=1e-6)
    assert weighted.log_evidence_ == pytest.approx(repeated.log_evidence_, rel=1e-6)
    known = fixed(expert=expert, aggregation=aggregation, noise_var=9.0).fit(X, y, noise_var=np.full(90, 0.07))
    agree(known.predict(Xs, return_std=True), fixed(expert=expert, aggregation=aggregation).fit(X, y).predict(Xs, True))


@pytest.mark.usefixtures("brief_learning")
def test_units_do_not_matter() -> None:
    X, y = wave(200)
    plain = CommitteeGPRegressor(n_experts=3, random_state=0).fit(X, y)
    scaled = CommitteeGPRegressor(n_experts=3, random_state=0).fit(X * [1e-9, 1e9], 1e6 * y + 1e7)
    mean, std = plain.predict(X, return_std=True)
    scaled_mean, scaled_std = scaled.predict(X * [1e-9, 1e9], return_std=True)
    np.testing.assert_allclose((scaled_mean - 1e7) / 1e6, mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(scaled_std / 1e6, std, rtol=1e-3)


@pytest.mark.usefixtures("brief_learning")
@pytest.mark.parametrize("expert", ["exact", "pic", "vshgp"])
def test_copies_and_repetitions_predict_the_same(expert: str) -> None:
    X, y = wave(60)
    settings = {"optimizer": None if expert == "pic" else "lbfgs", "learn_inducing": False, "random_state": 4}
    gp = CommitteeGPRegressor(expert=expert, n_experts=2, n_inducing=10, n_noise_inducing=5, **settings).fit(X, y)
    expected = gp.predict(X, return_std=True)
    for other in (pickle.loads(pickle.dumps(gp)), clone(gp).fit(X, y), clone(gp).set_params(n_jobs=2).fit(X, y)):
        for got, reference in zip(other.predict(X, return_std=True), expected, strict=True):
            np.testing.assert_allclose(got, reference, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("brief_learning")
@pytest.mark.parametrize(("expert", "aggregation"), [("vshgp", "rbcm"), ("exact", "grbcm")])
def test_processes_give_the_model_of_threads(expert: str, aggregation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = wave(150)
    settings = {"aggregation": aggregation, "n_experts": 3, "n_inducing": 10, "n_noise_inducing": 5, "random_state": 4}
    gp = CommitteeGPRegressor(expert=expert, n_jobs=2, **settings).fit(X, y)
    asked, Processes = [], processes.Processes
    monkeypatch.setattr(processes, "Processes", lambda n: asked.append(n) or Processes(n))
    other = clone(gp).set_params(backend="processes").fit(X, y)
    assert asked == [2]
    agree(other.predict(X, return_std=True), gp.predict(X, return_std=True), rtol=1e-5)
    assert pickle.loads(pickle.dumps(other)).predict(X[:1]) == other.predict(X[:1])


@pytest.mark.parametrize(("expert", "n_climbs"), [("exact", 1), ("vshgp", 1), ("vshgp", 2)])
def test_an_interrupt_while_experts_learn_leaves_a_model(
    expert: str, n_climbs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = wave(120)
    climb, climbs = shared_learning._climb, []

    def interrupted(*given: Any) -> Any:
        climbs.append(climb(*given))
        if len(climbs) == n_climbs:
            raise KeyboardInterrupt
        return climbs[-1]

    monkeypatch.setattr(shared_learning, "_climb", interrupted)
    gp = CommitteeGPRegressor(expert=expert, n_experts=3, n_inducing=10, n_noise_inducing=5, random_state=0)
    with pytest.warns(UserWarning, match="interrupted"):
        gp.fit(X, y)
    assert len(climbs) == n_climbs
    *before, last = gp.info_["stages"]
    assert last.reason == INTERRUPTED
    assert [stage in before for stage in climbs] == [True] * (n_climbs - 1) + [False]
    assert np.mean((gp.predict(X) - y) ** 2) < 0.2 * y.var()


def test_scikit_learn_conventions() -> None:
    check_estimator(
        CommitteeGPRegressor(n_experts=2, optimizer=None, random_state=0),
        expected_failed_checks={
            "check_sample_weight_equivalence_on_dense_data": "rows are shared out without regard to weights; "
            "equality holds with given labels (test_known_noise_and_weights)",
        },
    )


def flat_in_most_places(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One and the same target in three quarters of the square, a function without noise in the rest."""
    X = np.random.default_rng(seed).uniform(-2, 2, (n, 2))
    return X, np.where((X > 0).all(1), np.sin(4 * X[:, 0]) * np.cos(4 * X[:, 1]), -0.7)


@pytest.mark.slow
def test_experts_with_equal_targets_do_not_speak_for_the_others(options: Any) -> None:
    """Their noise is at its floor and their f constant."""
    options(learning={"rounds": Rounds()})
    (X, y), (Xs, ys) = flat_in_most_places(600, 0), flat_in_most_places(300, 1)
    model = CommitteeGPRegressor(kernel="matern32", expert="vhgp", n_experts=6, n_noise_inducing=20, random_state=0)
    model.fit(X, y)
    assert np.sqrt(np.mean((model.predict(Xs) - ys) ** 2)) < 0.4 * ys.std()
    lower, upper = model.predict_interval(Xs)
    assert np.mean((ys >= lower) & (ys <= upper)) > 0.85
    assert -model.log_density(Xs, ys).mean() < -2.0


NOISY = {"expert": "vhgp", "n_noise_inducing": 8}


@pytest.mark.parametrize("changes", [*({"aggregation": name} for name in TABLE), NOISY])
def test_the_nearest_experts_are_asked_and_no_others(changes: dict[str, Any], tmp_path: Any) -> None:
    """Each row has its own; a saved model does the same."""
    X, y = wave(160)
    Xs = wave(25, seed=1)[0]
    model = fixed(n_experts=8, most_asked=2, skip_tolerance=0.0, **changes).fit(X, y)
    asked = model.model_.committee.asked(model.scaling_.tensor(Xs))
    assert (asked.sum(1) == 2).all()
    assert asked.any(0).sum() > 2
    agree(model.predict(Xs[:3], return_std=True), [part[:3] for part in model.predict(Xs, return_std=True)], rtol=1e-9)
    mean, cov = model.predict(Xs, return_cov=True, latent=True)
    agree((mean, np.sqrt(np.diag(cov))), model.predict(Xs, return_std=True, latent=True), rtol=1e-7)
    model.save(tmp_path / "model.sgp")
    agree(load(tmp_path / "model.sgp").predict(Xs, return_std=True), model.predict(Xs, return_std=True), rtol=1e-7)


def test_eight_experts_are_asked_unless_somebody_says_otherwise() -> None:
    """Where cells have places: what more would say is little, and a prediction costs the same with any number."""
    X, y = wave(240)
    Xs = wave(25, seed=1)[0]
    usual, everybody = (
        fixed(n_experts=16, skip_tolerance=0.0, aggregation="rbcm", **given) for given in ({}, {"most_asked": None})
    )
    asked = usual.fit(X, y).model_.committee.asked(usual.scaling_.tensor(Xs))
    assert (asked.sum(1) == 8).all()
    assert everybody.fit(X, y).model_.committee.asked(usual.scaling_.tensor(Xs)).all()
    (mean, std), (full, full_std) = (model.predict(Xs, return_std=True) for model in (usual, everybody))
    assert np.abs(mean - full).max() < 0.3 * full_std.min()
    np.testing.assert_allclose(std, full_std, rtol=0.05)
    few = fixed(n_experts=6).fit(X, y)
    assert few.model_.committee.nearest is None
    by_chance = fixed(n_experts=16, partition="random").fit(X, y)
    assert by_chance.model_.committee.nearest is None
    labels = np.arange(len(X)) % 12
    assert fixed().fit(X, y, blocks=labels).model_.committee.nearest is None


@pytest.mark.parametrize("aggregation", [name for name, row in TABLE.items() if not row.communicates])
def test_those_who_are_not_asked_might_as_well_not_be_there(aggregation: str) -> None:
    """Moments and covariances are those of a committee of the nearest experts alone."""
    X, y = wave(160)
    model = fixed(n_experts=8, most_asked=2, skip_tolerance=0.0, aggregation=aggregation).fit(X, y)
    Xs = model.scaling_.tensor(wave(60, seed=1)[0])
    asked = model.model_.committee.asked(Xs)
    alike = (asked == asked[0]).all(1)
    assert alike.sum() > 1
    near = [expert for expert, there in zip(model.model_.committee.experts, asked[0], strict=True) if there]
    alone = replace(model.model_.committee, experts=near, nearest=None)
    (found,), (expected,) = model.model_.committee.moments(Xs[alike]), alone.moments(Xs[alike])
    agree((found.mean, found.var), (expected.mean, expected.var), rtol=1e-10)
    agree(model.model_.committee.joint(Xs[alike]), alone.joint(Xs[alike]), rtol=1e-8)


def test_who_is_asked_depends_on_the_row_alone() -> None:
    """Also where two centres are equally far: on a grid, with square blocks."""
    grid = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), -1).reshape(-1, 2)
    blocks = (4 * (grid[:, 0] // 3) + grid[:, 1] // 3).astype(int)
    kernel = kernels.SquaredExponential(1.0, [4.0, 4.0])
    model = fixed(kernel=kernel, most_asked=2, partition="random").fit(grid, np.sin(grid[:, 0]), blocks=blocks)
    together, apart = model.predict(grid), np.concatenate([model.predict(row[None]) for row in grid])
    agree(together, apart, rtol=1e-9)


def test_the_nearest_are_those_whose_rows_are_centred_nearest() -> None:
    X = np.repeat([[0.0], [1.0], [5.0]], 20, axis=0) + np.linspace(-0.1, 0.1, 60)[:, None]
    kernel = kernels.SquaredExponential(1.0, [0.5])
    model = fixed(kernel=kernel, most_asked=1, skip_tolerance=0.0, aggregation="rbcm")
    model.fit(X, np.sin(X[:, 0]), blocks=np.repeat([0, 1, 2], 20))
    asked = model.model_.committee.asked(model.scaling_.tensor(np.array([[0.2], [0.7], [9.0]])))
    assert asked.tolist() == [[True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.parametrize("most", [6, 100])
def test_a_limit_that_nobody_exceeds_changes_nothing(most: int) -> None:
    X, y = wave(120)
    model, free = (fixed(n_experts=6, most_asked=given, aggregation="rbcm").fit(X, y) for given in (most, None))
    agree(model.predict(X, return_std=True), free.predict(X, return_std=True), rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert": "sor"}, "how little it knows"),
        ({"expert": "nystrom"}, "how little it knows"),
        ({"expert": "best"}, "vfe"),
        ({"aggregation": "mean"}, "'rbcm'"),
        ({"partition": "grid"}, "kmeans"),
        ({"n_experts": 0}, "at least 1"),
        ({"n_jobs": -1}, "at least 1"),
        ({"backend": "mpi"}, "'threads', 'processes'"),
        ({"n_inducing": 2.5}, "whole number"),
        ({"inducing": "grid"}, "greedy"),
        ({"skip_tolerance": -1.0}, "at least 0"),
        ({"most_asked": 0}, "at least 1"),
        ({"most_asked": 3, "partition": "random"}, "none is nearer"),
        ({"optimizer": "sgd"}, "lbfgs"),
        ({"noise_var": 0.0}, "positive"),
        ({"kernel": "sse"}, "matern32"),
    ],
)
def test_parameters_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CommitteeGPRegressor(**changes).fit(*wave(30))


def test_bad_data_is_named() -> None:
    X, y = wave(60)
    with pytest.raises(InputError, match="one block label a row"):
        fixed().fit(X, y, blocks=[])
    with pytest.raises(InputError, match="zero"):
        fixed().fit(X, y, sample_weight=np.zeros(60))
    with pytest.raises(InputError, match="learns the noise"):
        CommitteeGPRegressor(expert="vshgp").fit(X, y, noise_var=np.ones(60))
    with pytest.raises(InputError, match="blocks= is for fit"):
        fixed().fit(X, y).predict(X, blocks=np.zeros(60, int))
    X[17, 1] = np.inf
    with pytest.raises(InputError, match="inf: column 1, row 17"):
        fixed().fit(X, y)
    X[17, 1] = np.nan
    with pytest.raises(InputError, match=r"NaN: column 1, row 17.*In the fit no value was missing"):
        fixed().fit(*wave(30)).predict(X, return_cov=True)


def test_more_experts_than_rows_are_pointed_out() -> None:
    X, y = wave(6)
    with pytest.warns(UserWarning, match="more than the 6 rows"):
        gp = CommitteeGPRegressor(n_experts=50, random_state=0).fit(X, y)
    assert gp.info_["n_experts"] <= 6
    assert np.isfinite(gp.predict(X, return_std=True)).all()


@pytest.mark.parametrize("expert", ["exact", "vfe", "vshgp"])
@pytest.mark.parametrize("kind", ["one row", "two rows", "constant target", "duplicates", "noise-free", "outlier"])
def test_hard_data_give_honest_answers(expert: str, kind: str) -> None:
    """Experts with fewer rows than inducing inputs."""
    X, y = wave({"one row": 1, "two rows": 2}.get(kind, 24))
    if kind == "constant target":
        y = np.full(len(y), 3.3)
    elif kind == "duplicates":
        X, y = np.repeat(X[:6], 4, axis=0), np.repeat(y[:6], 4)
    elif kind == "noise-free":
        y = np.sin(X[:, 0])
    elif kind == "outlier":
        y[3], X[5] = 1e4, 1e3
    n_experts = min(3, len(y))
    gp = CommitteeGPRegressor(expert=expert, n_experts=n_experts, n_inducing=12, n_noise_inducing=12, random_state=0)
    gp.fit(X, y)
    for rows in (X, X + 10.0):
        mean, std = gp.predict(rows, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert (std > 0).all()
        assert (gp.predict(rows, return_std=True, latent=True)[1] > 0).all()


def test_no_warnings_on_ordinary_data() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CommitteeGPRegressor(n_experts=3, random_state=0).fit(*wave(90)).predict(wave(20)[0], return_std=True)


def test_an_unknown_expert_is_told_the_known_ones():
    with pytest.raises(InputError, match=r"expert must be one of vshgp, vhgp, exact.*got 'vgp'"):
        CommitteeGPRegressor(expert="vgp").fit(np.zeros((3, 1)), np.arange(3.0))
