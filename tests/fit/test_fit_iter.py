"""fit_iter and anytime inference in the estimator: what is published, what it equals, and how it is left."""

import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import check_estimator

from sparsegp import InputError, SparseGPRegressor, metrics
from sparsegp.core import approximations, reasons
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.reasons import INTERRUPTED
from sparsegp.fit import kernel_choice
from sparsegp.fit.inducing_models import Sketcher
from sparsegp.infer import anytime_run, batch
from sparsegp.learn import trace
from sparsegp.parallel import stepwise
from test_regressor import BLOCKED, SPARSE, fixed, wave


@pytest.fixture
def every_step_is_published(monkeypatch, options):
    """The steps shown depend on measured seconds otherwise, and a busy machine may show the first and the last only."""
    monkeypatch.setattr(anytime_run.Pace, "due", True)
    options(steps={"publish_ratio": 1.0})


def some_labels(approximation, n):
    return np.arange(n) % 6 if approximation in BLOCKED else None


@pytest.mark.parametrize("approximation", [*SPARSE, {"dtc": 0.3, "pitc": 0.7}], ids=str)
def test_one_epoch_is_the_exact_model(approximation):
    X, y = wave(500)
    labels = np.arange(500) % 6 if str(approximation) in BLOCKED or isinstance(approximation, dict) else None
    anytime = fixed(approximation, inference="anytime").fit(X, y, blocks=labels)
    exact = fixed(approximation).fit(X, y, blocks=labels)
    new = wave(9, seed=1)[0]
    places = None if labels is None else np.arange(9) % 6
    for got, expected in zip(
        anytime.predict(new, return_cov=True, blocks=places),
        exact.predict(new, return_cov=True, blocks=places),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)
    assert anytime.log_evidence_ == pytest.approx(exact.log_evidence_, rel=1e-8)
    assert anytime.info_["budget"]["reason"] == reasons.EXACT
    assert anytime.n_samples_seen_ == 500


def test_weights_and_known_noise_reach_the_blocks():
    X, y = wave(400)
    rng = np.random.default_rng(3)
    given = {"sample_weight": rng.uniform(0.0, 3.0, 400), "noise_var": rng.uniform(0.02, 0.4, 400)}
    anytime = fixed("fitc", inference="anytime").fit(X, y, **given)
    exact = fixed("fitc").fit(X, y, **given)
    np.testing.assert_allclose(anytime.predict(X), exact.predict(X), rtol=1e-8, atol=1e-10)
    assert anytime.noise_var_ == pytest.approx(exact.noise_var_)


@pytest.mark.usefixtures("brief_learning")
@pytest.mark.parametrize(("approximation", "inference"), [("vfe", "exact"), ("vfe", "anytime"), ("pic", "anytime")])
def test_watching_does_not_change_what_is_learned(approximation, inference):
    X, y = wave(90)
    settings = {"approximation": approximation, "n_inducing": 15, "n_blocks": 3, "random_state": 0}
    *_, last = watched_model(settings | {"inference": inference}, X, y)
    gp, expected = last[0], SparseGPRegressor(**settings).fit(X, y)
    np.testing.assert_allclose(gp.predict(X), expected.predict(X), rtol=1e-6, atol=1e-8)
    assert gp.noise_var_ == pytest.approx(expected.noise_var_, rel=1e-6)


def test_the_first_model_does_not_wait_for_the_choice_of_the_kernel(monkeypatch):
    X, y = wave(600)
    choices = spy(monkeypatch, kernel_choice, "chosen_kernel", lambda *arguments: arguments[1])
    models = SparseGPRegressor(approximation="vfe", n_inducing=15, random_state=0).fit_iter(X, y)
    next(models)
    assert choices == []
    *_, last = models
    assert len(choices) == 1
    unwatched = SparseGPRegressor(approximation="vfe", n_inducing=15, random_state=0).fit(X, y)
    assert type(last.model.kernel) is type(unwatched.kernel_)


def watched_model(settings, X, y, **given):
    gp = SparseGPRegressor(**settings)
    return [(gp, progress) for progress in gp.fit_iter(X, y, **given)]


@pytest.mark.usefixtures("every_step_is_published")
def test_every_step_can_predict_and_is_scored():
    X, y = wave(600)
    Xv, yv = wave(50, seed=1)
    gp = fixed("vfe", inference="anytime")
    seen = []
    for progress in gp.fit_iter(X, y, validation=(Xv, yv)):
        mean, std = gp.predict(Xv, return_std=True)
        assert progress.scores == {"rmse": metrics.rmse(yv, mean), "nlpd": metrics.nlpd(yv, mean, std)}
        assert gp.n_samples_seen_ == progress.rows_seen == pytest.approx(progress.fraction * 600)
        assert gp.log_evidence_ == progress.log_evidence
        assert gp.info_["budget"]["fraction"] == progress.fraction
        seen.append(progress)
    assert len(seen) > 3
    assert [p.reason for p in seen] == [None] * (len(seen) - 1) + [reasons.EXACT]
    assert seen[0].fraction < 0.5
    assert seen[0].error is None
    assert seen[-1].error == 0.0
    assert any(p.error for p in seen[:-1])
    assert all(a.step < b.step and a.seconds <= b.seconds for a, b in pairwise(seen))


@pytest.mark.usefixtures("every_step_is_published")
def test_learning_is_shown_and_gets_better():
    X, y = wave(400)
    stages = watched_model({"n_inducing": 30, "random_state": 0}, X, y, validation=wave(100, seed=1))
    learning = [p for _, p in stages if p.stage == "learning"]
    assert len(learning) > 3
    assert learning[-1].log_evidence > learning[0].log_evidence
    assert stages[-1][1].scores["rmse"] < learning[0].scores["rmse"]
    assert stages[-1][1].stage == "inference"


@pytest.mark.parametrize("approximation", ["exact", "sod"])
def test_dense_models_publish_once(approximation):
    X, y = wave(80)
    ((gp, progress),) = watched_model({"approximation": approximation, "n_inducing": 30, "random_state": 0}, X, y)
    expected = SparseGPRegressor(approximation=approximation, n_inducing=30, random_state=0).fit(X, y)
    np.testing.assert_allclose(gp.predict(X), expected.predict(X))
    assert progress.fraction == 1.0


def test_readings_of_an_unfinished_fit():
    X, y = wave(600)
    readings = {}
    for reading in ("all", "seen"):
        gp = fixed("dtc", inference="anytime", reading=reading)
        next(gp.fit_iter(X, y))
        readings[reading] = gp
    seen = readings["seen"]
    assert seen.n_samples_seen_ == readings["all"].n_samples_seen_ < 100
    std = {name: gp.predict(X, return_std=True, latent=True)[1] for name, gp in readings.items()}
    assert (std["seen"] > std["all"]).all()


@pytest.mark.usefixtures("every_step_is_published")
def test_stop_error_ends_the_fit_early():
    X, y = wave(2000)
    gp = fixed("vfe", inference="anytime", stop_error=0.9).fit(X, y)
    assert gp.info_["budget"]["reason"] == reasons.ACCURATE
    assert gp.info_["budget"]["fraction"] < 1.0
    full = fixed("vfe").fit(X, y)
    mean, std = full.predict(X, return_std=True)
    assert np.abs(gp.predict(X) - mean).max() < 4 * 0.9 * std.max()


@pytest.mark.parametrize("approximation", ["dtc", "fitc", "pic"])
def test_a_sketch_is_its_rows_counted_until_they_are_all(approximation, monkeypatch, options):
    options(steps={"first_rows": 200})
    sketched = spy(monkeypatch, batch, "statistics_of", lambda prior, rows: rows)
    X, y = wave(1000)
    gp = fixed(approximation, n_blocks=20, inference="anytime")
    sketch = next(gp.fit_iter(X, 5.0 * y))
    prior = SparsePrior.build(
        gp.kernel_, torch.from_numpy(gp.inducing_), gp.noise_var_, approximations.get(approximation)
    )
    statistics = 5.0 * batch.statistics_of(prior, sketched[0])
    assert statistics.n_rows == 1000.0
    q = InducingPosterior.from_statistics(statistics)
    assert sketch.log_evidence == pytest.approx(log_evidence(statistics, q), rel=1e-9)
    if approximation != "pic":  # in a block, a row counted five times is not five blocks
        rows = sketched[0].all
        weighted = fixed(approximation).fit(rows.X.numpy(), rows.y.numpy(), sample_weight=np.full(200, 5.0))
        assert sketch.log_evidence == pytest.approx(weighted.log_evidence_, rel=1e-9)
        np.testing.assert_allclose(gp.predict(X), weighted.predict(X), rtol=1e-7, atol=1e-9)


def spy(monkeypatch, owner, name, noted):
    """What is to be noted of all calls of a function from now on."""
    results, original = [], getattr(owner, name)

    def watched(*arguments):
        results.append(noted(*arguments))
        return original(*arguments)

    monkeypatch.setattr(owner, name, watched)
    return results


@pytest.mark.parametrize("approximation", ["dtc", "pic"])
def test_a_sketch_of_large_data_stands_for_all_rows(approximation, options):
    options(steps={"first_rows": 200})
    X, y = wave(1000)
    gp = fixed(approximation, n_blocks=20, inference="anytime")
    sketch, *_, last = gp.fit_iter(X, 5.0 * y)
    assert sketch.fraction == pytest.approx(0.2)
    assert last.reason == reasons.EXACT
    exact = gp.predict(X, return_std=True, latent=True)
    next(gp.fit_iter(X, 5.0 * y))
    mean, std = gp.predict(X, return_std=True, latent=True)
    assert np.sqrt(np.mean((mean - exact[0]) ** 2)) < 0.3 * exact[0].std()
    if approximation == "dtc":
        np.testing.assert_allclose(std, exact[1], rtol=0.2)


def test_after_learning_no_model_rests_on_fewer_rows_than_the_one_before(options):
    options(steps={"first_rows": 100, "sketch_rows": 250})
    X, y = wave(1000)
    models = watched_model({"n_inducing": 15, "inference": "anytime", "random_state": 0}, X, y)
    rows = [p.rows_seen for _, p in models if p.stage == "inference"]
    assert rows == sorted(rows)
    assert rows[0] == 250


@pytest.mark.usefixtures("every_step_is_published")
def test_closing_keeps_the_model_and_ends_the_work():
    X, y = wave(300)
    gp = SparseGPRegressor(approximation="vfe", n_inducing=30, random_state=0)
    steps = gp.fit_iter(X, y)
    first, second = next(steps), next(steps)
    before = gp.predict(X)
    steps.close()
    assert first.stage == second.stage == "learning"
    np.testing.assert_array_equal(gp.predict(X), before)
    assert list(steps) == []


def test_ctrl_c_in_fit_keeps_the_best_model(monkeypatch):
    X, y = wave(300)
    interrupt_after(monkeypatch, 5)
    with pytest.warns(UserWarning, match="interrupted"):
        gp = SparseGPRegressor(approximation="vfe", n_inducing=30, random_state=0).fit(X, y)
    assert gp.info_["stages"][-1].reason == INTERRUPTED
    assert np.isfinite(gp.predict(X)).all()
    interrupt_after(monkeypatch, 5)
    with pytest.warns(UserWarning, match="interrupted"):
        gp = SparseGPRegressor(approximation="vfe", n_inducing=30, inference="anytime", random_state=0).fit(X, y)
    assert gp.info_["budget"]["reason"] == INTERRUPTED
    assert np.isfinite(gp.predict(X)).all()


def interrupt_after(monkeypatch, evaluations):
    evaluate, count = trace.Recorder.__call__, [0]

    def interrupted(self, vector):
        count[0] += 1
        if count[0] == evaluations:
            raise KeyboardInterrupt
        return evaluate(self, vector)

    monkeypatch.setattr(trace.Recorder, "__call__", interrupted)


@pytest.mark.usefixtures("every_step_is_published")
def test_ctrl_c_during_inference_keeps_the_model_published_last(monkeypatch):
    X, y = wave(600)
    publish, count = anytime_run._Publisher.publish, [0]

    def interrupted(*arguments):
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        return publish(*arguments)

    monkeypatch.setattr(anytime_run._Publisher, "publish", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        gp = fixed("fitc", inference="anytime").fit(X, y)
    assert gp.info_["budget"]["reason"] == INTERRUPTED
    assert 0.0 < gp.info_["budget"]["fraction"] < 1.0
    assert np.isfinite(gp.predict(X)).all()
    seen = gp.n_samples_seen_
    gp.partial_fit(X[:5], y[:5])
    assert gp.n_samples_seen_ == gp.model_.n_rows == seen + 5


def test_ctrl_c_in_a_loop_propagates_and_leaves_a_valid_model():
    X, y = wave(300)
    gp = SparseGPRegressor(approximation="vfe", n_inducing=30, random_state=0)

    def impatient():
        for _ in gp.fit_iter(X, y):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        impatient()
    assert np.isfinite(gp.predict(X)).all()


def test_a_failed_refit_leaves_the_model_before_it(monkeypatch):
    X, y = wave(200)
    gp = fixed("vfe").fit(X, y)
    before = gp.predict(X)

    def failing(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Sketcher, "model", failing)
    gp.set_params(time_budget=5.0)
    with pytest.raises(KeyboardInterrupt):
        gp.fit(3.0 * X, 5.0 * y)
    np.testing.assert_array_equal(gp.predict(X), before)


def test_updates_after_an_exact_anytime_fit():
    X, y = wave(500)
    gp = fixed("fitc", inference="anytime").fit(X[:400], y[:400]).partial_fit(X[400:], y[400:])
    np.testing.assert_allclose(gp.predict(X), fixed("fitc").fit(X, y).predict(X), rtol=1e-7, atol=1e-9)
    gp.forget(X[400:], y[400:])
    np.testing.assert_allclose(gp.predict(X), fixed("fitc").fit(X[:400], y[:400]).predict(X), rtol=1e-6, atol=1e-8)


def test_callbacks_can_stop_a_loop():
    pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")

    class StopAtOnce:
        torn_down = 0

        def setup(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context, **_):
            pass

        def on_fit_task_end(self, estimator, context, **_):
            return True

        def teardown(self, estimator, context):
            self.torn_down += 1

    X, y = wave(600)
    stop = StopAtOnce()
    gp = fixed("vfe", inference="anytime").set_callbacks(stop).fit(X, y)
    assert gp.info_["budget"]["reason"] == reasons.STOPPED
    assert gp.info_["budget"]["fraction"] < 1.0
    *_, last = gp.fit_iter(X, y)
    assert last.reason == reasons.STOPPED
    assert stop.torn_down == 2


def test_work_and_reader_take_turns():
    log, work_thread = [], []

    def work(report):
        work_thread.append(threading.current_thread())
        for k in range(5):
            log.append(("work", k))
            if report(k):
                log.append("asked to stop")
                return "stopped"
        return "done"

    steps = stepwise(work)
    for k in steps:
        log.append(("read", k))
        if k == 2:
            break
    steps.close()
    work_thread[0].join()
    assert log == [(who, k) for k in range(3) for who in ("work", "read")] + ["asked to stop"]


def test_errors_of_the_work_reach_the_reader():
    def work(report):
        report(1)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(stepwise(work))


@pytest.mark.parametrize(
    "validation",
    [
        (np.zeros((4, 3)), np.zeros(4)),
        (np.zeros((4, 2)), np.zeros(5)),
        (np.zeros(4), np.zeros(4)),
        (np.zeros((0, 2)), np.zeros(0)),
    ],
)
def test_a_validation_set_of_another_shape_is_refused_at_once(validation):
    X, y = wave(50)
    with pytest.raises(InputError, match="2 columns"):
        SparseGPRegressor(approximation="vfe").fit_iter(X, y, validation=validation)
    with pytest.raises(InputError, match="pair"):
        SparseGPRegressor(approximation="vfe").fit_iter(X, y, validation=np.zeros(7))


def test_bad_parameters_are_refused_at_once():
    X, y = wave(50)
    for bad, words in (
        ({"inference": "svi"}, "inference"),
        ({"reading": "half"}, "reading"),
        ({"stop_error": 0.0}, "stop_error"),
        ({"inference": "anytime", "approximation": "exact"}, "statistics"),
        ({"inference": "anytime", "approximation": "nystrom"}, "statistics"),
        ({"approximation": "nystrom"}, "in steps"),
    ):
        with pytest.raises(InputError, match=words):
            SparseGPRegressor(**bad).fit_iter(X, y)


@pytest.mark.parametrize("labels", ["one row each", "more names than rows"])
def test_awkward_blocks(labels):
    X, y = wave(12)
    given = np.arange(12) if labels == "one row each" else np.random.default_rng(0).choice(10**6, 12, replace=False)
    for approximation in ("pitc", "pic"):
        anytime = fixed(approximation, inference="anytime").fit(X, y, blocks=given)
        np.testing.assert_allclose(
            anytime.predict(X), fixed(approximation).fit(X, y, blocks=given).predict(X), rtol=1e-8
        )


def test_more_blocks_than_rows():
    X, y = wave(12)
    gp = fixed("pic", n_blocks=40, inference="anytime").fit(X, y)
    assert gp.info_["n_blocks"] <= 12
    assert np.isfinite(gp.predict(X)).all()


@pytest.mark.usefixtures("brief_learning")
def test_anytime_passes_the_checks_of_scikit_learn():
    check_estimator(
        SparseGPRegressor(approximation="vfe", n_inducing=20, inference="anytime", random_state=0),
        expected_failed_checks={
            "check_sample_weight_equivalence_on_dense_data": "the k-means start sees rows, not weights; "
            "equality holds with given inducing inputs (test_weights_and_known_noise_reach_the_blocks)",
        },
    )


def test_a_fit_that_was_killed_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    X, y = wave(300)
    path = tmp_path / "learning.npz"
    settings = {"approximation": "vfe", "n_inducing": 15, "random_state": None}

    class Killed(Exception):
        pass

    evaluate, count, values = trace.Recorder.__call__, [0], []

    def dying(self, vector):
        count[0] += 1
        if count[0] == 12:
            raise Killed
        values.append(evaluate(self, vector)[0])
        return evaluate(self, vector)

    monkeypatch.setattr(trace.Recorder, "__call__", dying)
    with pytest.raises(Killed):
        SparseGPRegressor(**settings).fit(X, y, checkpoint=path)
    left = float(np.load(path)["value"])
    with pytest.raises(InputError, match="other data"):
        SparseGPRegressor(**settings).fit(X[:-1], y[:-1], checkpoint=path)
    resumed = SparseGPRegressor(**settings).fit(X, y, checkpoint=path)
    assert resumed.log_evidence_ >= left - 1e-9 * abs(left)
    assert not path.exists()
