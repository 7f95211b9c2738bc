"""approximation="auto" and n_inducing="auto"."""

from copy import deepcopy
from time import perf_counter, process_time

import numpy as np
import pytest

from problems import FEW_ROUNDS
from sparsegp import InputError, SparseGPRegressor, load
from sparsegp.cli import options as command_options
from sparsegp.core import approximations
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.fit_options import FitOptions
from sparsegp.fit import auto, kept
from sparsegp.fit.auto import AutoOptions, Question
from sparsegp.fit.learning_options import LearningOptions
from sparsegp.fit.problem import NoiseSpec, Problem, Start
from sparsegp.kernels import SquaredExponential

pytestmark = pytest.mark.usefixtures("short_start")

PLAIN = ("vfe", "fitc", "pic")
LEARNS_NOISE = AutoOptions(
    small_candidates=("exact", "heteroscedastic exact"),
    candidates=("vfe", "pic", "heteroscedastic pic"),
    budget_fraction=0.45,
    trial_seconds=12.0,
)


@pytest.fixture
def quick(options):
    options(auto={"exact_rows": 50, "trial_seconds": 0.5, "trial_rows": 300})


@pytest.fixture
def plain_candidates(options):
    options(auto={"candidates": PLAIN})


def waves(n=400, columns=1):
    rng = np.random.default_rng(3)
    X = rng.uniform(0, 10, (n, columns))
    return X, np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(n)


@pytest.mark.parametrize(
    ("n_blocks", "n_inducing", "expected"),
    [(None, 100, 20), (None, 1600, 10), (7, 100, 7)],
    ids=["rows", "inducing", "own"],
)
def test_blocks_of_pic_are_large_unless_their_number_is_given(n_blocks, n_inducing, expected):
    kernel = SquaredExponential(1.0, [1.0])
    problem = Problem(
        approximations.get("vfe"), Start(kernel, 0.1), "kmeans", 32, np.random.default_rng(0), n_blocks=n_blocks
    )
    question = Question(
        problem, "auto", n_inducing, NoiseSpec(kernel, 5), False, False, 0.5, None, AutoOptions(), perf_counter
    )
    assert auto.candidate(question, "pic", n_inducing, 16_000).n_blocks == expected
    assert auto.candidate(question, "vfe", n_inducing, 16_000).n_blocks == n_blocks


def test_few_rows_are_fitted_exactly():
    X, y = waves(90)
    model = SparseGPRegressor(trend=None, calibration=None, random_state=0).fit(X[:60], y[:60])
    assert model.info_["choice"]["approximation"] == "exact"
    assert "60 rows" in model.info_["choice"]["reason"]
    fixed = {"kernel": model.kernel_, "noise_var": model.noise_var_, "optimizer": None, "normalize": False}
    exact = SparseGPRegressor(approximation="exact", **fixed)
    for n in (60, 90):
        expected = exact.fit(X[:n] - 5.0, y[:n] - y[:60].mean()).predict(X - 5.0, return_std=True)
        mean, std = model.predict(X, return_std=True)
        np.testing.assert_allclose(mean - y[:60].mean(), expected[0], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(std, expected[1], rtol=1e-6)
        if n == 60:
            model.partial_fit(X[60:], y[60:])
    assert model.forget(X[60:], y[60:]).n_samples_seen_ == 60


def _by_batches(X, y):
    return SparseGPRegressor(n_inducing=12, optimizer=None).partial_fit(X, y)


def _in_steps(X, y):
    gp = SparseGPRegressor(n_inducing=12, optimizer=None)
    for _ in gp.fit_iter(X, y):
        pass
    return gp


@pytest.mark.parametrize("fitted", [_by_batches, _in_steps])
def test_where_no_trials_are_held_auto_is_vfe(fitted):
    X, y = waves(120)
    gp = fitted(X, y)
    assert gp.get_params()["approximation"] == "auto"
    assert (gp.model_.approx.name, gp.info_["choice"]["approximation"]) == ("vfe", "vfe")
    assert "untried" in gp.info_["choice"]["reason"]
    assert gp.partial_fit(X + 0.01, y).n_samples_seen_ == 240


def test_rows_that_are_too_many_for_memory_are_tried_on_a_sample(quick, plain_candidates, options):
    options(opening={"most_entries": 300})
    X, y = waves()
    gp = SparseGPRegressor(n_inducing=12, optimizer=None, random_state=0).fit(X, y)
    choice = gp.info_["choice"]
    assert [trial["approximation"] for trial in choice["trials"]] == list(PLAIN)
    assert all(trial["n_rows"] == 240 for trial in choice["trials"])  # 60 of the 300 are held out
    assert gp.n_samples_seen_ == 400
    assert gp.info_["passes"] >= 2


def test_an_iterable_that_fits_into_memory_is_tried(quick, plain_candidates):
    X, y = waves()
    batches = [(X[:250], y[:250]), (X[250:], y[250:])]
    gp = SparseGPRegressor(n_inducing=12, optimizer=None, random_state=0).fit(lambda: iter(batches))
    assert [trial["approximation"] for trial in gp.info_["choice"]["trials"]] == ["vfe", "fitc", "pic"]
    assert gp.n_samples_seen_ == 400


@pytest.mark.parametrize("fading", [{"window": 300}, {"half_life": 100.0}])
def test_rows_that_fade_are_left_to_a_model_that_forgets(quick, fading):
    X, y = waves()
    gp = SparseGPRegressor(n_inducing=12, optimizer=None, random_state=0, **fading).fit(X, y)
    assert gp.info_["choice"]["approximation"] == "vfe"
    assert "fade" in gp.info_["choice"]["reason"]
    gp.partial_fit(X[:50], y[:50])


def test_many_rows_have_blocks(quick):
    X, y = waves()
    gp = SparseGPRegressor(n_inducing=12, optimizer=None, random_state=0).fit(X, y)
    assert gp.info_["choice"]["approximation"] == "pic"
    assert "400 rows" in gp.info_["choice"]["reason"]


def test_a_block_that_grows_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(kept, "MOST_BLOCK_ROWS", 100)
    X, y = waves(80)
    gp = SparseGPRegressor(random_state=0, optimizer=None).fit(X, y)
    with pytest.raises(InputError, match=r"101 rows.*'vfe'"):
        gp.partial_fit(X[:21], y[:21])
    assert gp.partial_fit(X[:20], y[:20]).n_samples_seen_ == 100


@pytest.mark.usefixtures("quick", "plain_candidates", "brief_learning")
def test_the_best_of_the_held_out_densities_is_taken():
    X, y = waves()
    model = SparseGPRegressor(approximation="auto", n_inducing=15, random_state=0).fit(X, y)
    choice = model.info_["choice"]
    assert [trial["approximation"] for trial in choice["trials"]] == list(PLAIN)
    best = next(trial for trial in choice["trials"] if trial["approximation"] == choice["approximation"])
    assert best["nlpd"] < min(trial["nlpd"] for trial in choice["trials"]) + 0.1
    assert best["approximation"] in choice["reason"]
    settings = {"approximation": best["approximation"], "n_inducing": 15, "random_state": 0}
    settings |= {"n_blocks": 1} if best["approximation"] == "pic" else {}  # half of the rows of a block
    chosen = SparseGPRegressor(**settings).fit(X, y)
    np.testing.assert_allclose(model.predict(X), chosen.predict(X), rtol=1e-6, atol=1e-8)
    assert model.approximation == "auto"


@pytest.mark.usefixtures("quick", "plain_candidates")
def test_a_chosen_model_is_saved_updated_and_predicts_by_name(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = waves(200, columns=2)
    frame = pandas.DataFrame(X, columns=["a", "b"])
    model = SparseGPRegressor(approximation="auto", n_inducing=10, random_state=0).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    model.save(tmp_path / "model.sgp")
    np.testing.assert_allclose(load(tmp_path / "model.sgp").predict(frame), model.predict(frame), rtol=1e-12)
    model.partial_fit(frame[:20] + 0.01, y[:20])
    assert model.n_samples_seen_ == 220


def test_the_number_of_inducing_inputs_follows_rows_and_budget():
    def chosen(n_rows, budget=None):
        return auto._n_inducing(n_rows, budget, AutoOptions())

    assert (chosen(100), chosen(2000), chosen(10**6)) == (32, 250, 512)
    assert 32 <= chosen(10**6, 5.0) < chosen(10**6, 60.0) <= 512


def test_only_the_number_of_inducing_inputs_is_chosen_when_the_row_is_named():
    X, y = waves(200)
    model = SparseGPRegressor(approximation="vfe", n_inducing="auto", random_state=0).fit(X, y)
    assert len(model.inducing_) == 32
    assert model.info_["choice"]["trials"] == ()
    assert "32 inducing inputs" in model.info_["choice"]["reason"]


def test_labels_of_blocks_need_a_named_approximation():
    X, y = waves(60)
    with pytest.raises(InputError, match="not with 'auto'"):
        SparseGPRegressor(approximation="auto").fit(X, y, blocks=np.zeros(60, int))


@pytest.mark.usefixtures("quick", "plain_candidates")
def test_a_budget_covers_the_trials_too():
    X, y = waves()
    model = SparseGPRegressor(approximation="auto", n_inducing="auto", time_budget=4.0, random_state=0).fit(X, y)
    spent = sum(trial["seconds"] for trial in model.info_["choice"]["trials"])
    assert model.info_["budget"]["asked"] <= 4.0
    assert model.info_["seconds"] >= spent


def test_the_command_line_takes_auto_or_a_number():
    typer = pytest.importorskip("typer")
    assert command_options.count_or_auto("auto") == "auto"
    assert command_options.count_or_auto("64") == 64
    with pytest.raises(typer.BadParameter, match="whole number or 'auto'; got 'many'"):
        command_options.count_or_auto("many")


def noisy_waves(n=500, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10, (n, 1))
    return X, np.sin(X[:, 0]) + (0.02 + 0.1 * X[:, 0]) * rng.standard_normal(n)


@pytest.fixture(scope="module")
def chosen_noise():
    with pytest.MonkeyPatch.context() as patch:
        given = FitOptions(auto=LEARNS_NOISE, clock=process_time, learning=LearningOptions(rounds=FEW_ROUNDS))
        patch.setattr(Estimator, "fit_options", given)
        return SparseGPRegressor(approximation="auto", kernel="se", random_state=0).fit(*noisy_waves(300))


@pytest.fixture
def noisy_model(chosen_noise):
    return deepcopy(chosen_noise)


def test_noise_that_varies_is_chosen_where_it_predicts_better(noisy_model):
    choice = noisy_model.info_["choice"]
    assert choice["approximation"] == "heteroscedastic exact"
    assert [trial["approximation"] for trial in choice["trials"]] == ["exact", "heteroscedastic exact"]
    X = np.array([[0.5], [9.5]])
    _, _, aleatoric = noisy_model.predict_components(X)
    assert aleatoric[1] > 3 * aleatoric[0]
    assert noisy_model.log_evidence_ == noisy_model.model_.bound


def test_a_chosen_model_with_learned_noise_is_the_same_after_reload(noisy_model, tmp_path):
    X, y = noisy_waves(20, seed=4)
    noisy_model.save(tmp_path / "model.sgp")
    other = load(tmp_path / "model.sgp")
    assert isinstance(other, SparseGPRegressor)
    assert other.get_params()["approximation"] == "auto"
    np.testing.assert_array_equal(noisy_model.predict(X, return_std=True), other.predict(X, return_std=True))
    np.testing.assert_allclose(noisy_model.predict(X, return_cov=True)[1], other.predict(X, return_cov=True)[1])
    np.testing.assert_allclose(noisy_model.predict_interval(X, 0.9), other.predict_interval(X, 0.9))
    np.testing.assert_allclose(noisy_model.log_density(X, y), other.log_density(X, y))
    np.testing.assert_allclose(
        noisy_model.sample_y(X, 2, random_state=1), other.sample_y(X, 2, random_state=1), rtol=1e-6, atol=1e-8
    )
    assert noisy_model.diagnose(X, y) == other.diagnose(X, y)
    assert other.partial_fit(X, y).n_samples_seen_ == 320


def test_a_chosen_model_with_learned_noise_leaves_nothing_behind(noisy_model, tmp_path):
    X, y = noisy_waves(20)
    noisy_model.set_params(approximation="vfe", n_inducing=10).fit(X, y)
    assert not noisy_model.model_.learns_noise
    noisy_model.save(tmp_path / "model.sgp")
    np.testing.assert_allclose(load(tmp_path / "model.sgp").predict(X), noisy_model.predict(X))
    assert noisy_model.partial_fit(X + 0.1, y).n_samples_seen_ == 40


def test_known_noise_is_not_learned():
    X, y = noisy_waves(300)
    known = (0.02 + 0.1 * X[:, 0]) ** 2
    model = SparseGPRegressor(approximation="auto", random_state=0).fit(X, y, noise_var=known)
    assert model.info_["choice"]["approximation"] == "exact"


@pytest.mark.usefixtures("quick")
def test_learned_noise_must_fit_into_the_budget(options):
    options(auto={"inference_margin": 1e6, "candidates": LEARNS_NOISE.candidates})
    X, y = noisy_waves(400)
    model = SparseGPRegressor(approximation="auto", n_inducing=15, time_budget=8.0, random_state=0).fit(X, y)
    *_, noisy = model.info_["choice"]["trials"]
    assert "all rows would take" in noisy["error"]
    assert "all rows would take" in model.info_["choice"]["reason"]
    assert not model.info_["choice"]["approximation"].startswith(auto.LEARNED_NOISE)


class Told:
    """A callback of scikit-learn that asks to stop at a step, or presses Ctrl-C there."""

    def __init__(self, at, press=False):
        self.at, self.press, self.steps = at, press, 0

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context, *, metadata=None):
        self.steps += metadata is not None
        if self.press and self.steps == self.at:
            self.at = np.inf  # pressed once
            raise KeyboardInterrupt
        return self.steps >= self.at


@pytest.mark.parametrize("press", [False, True], ids=["callback", "Ctrl-C"])
@pytest.mark.parametrize("budget", [None, 30.0])
def test_a_fit_stopped_during_the_trials_is_the_best_trial(quick, plain_candidates, options, press, budget):
    options(auto={"trial_seconds": 60.0})
    X, y = waves()
    model = SparseGPRegressor(n_inducing=15, time_budget=budget, random_state=0)
    with pytest.warns(UserWarning, match="interrupted: the model is of 300 rows"):
        model.set_callbacks(told := Told(3, press)).fit(X, y)
    assert told.steps <= 4
    assert model.n_samples_seen_ == 300
    assert model.info_["budget"]["fraction"] == 0.75
    assert model.info_["choice"]["reason"].startswith("stopped during the trials: vfe")
    assert len(model.info_["choice"]["trials"]) == 1
    assert np.isfinite(model.predict(X)).all()


def test_a_chosen_fit_can_be_stopped_after_the_trials(quick, plain_candidates, options, monkeypatch):
    options(auto={"trial_seconds": 60.0})
    steps, choose = {}, auto.choose
    for name, at in (("whole", np.inf), ("stopped", None)):
        told = Told(steps.get("trials", 0) + 2 if at is None else at)

        def counted(*given, told=told):
            choice = choose(*given)
            steps["trials"] = told.steps
            return choice

        monkeypatch.setattr(auto, "choose", counted)
        model = SparseGPRegressor(n_inducing=5, random_state=0).set_callbacks(told).fit(*waves())
        steps[name] = told.steps
    assert steps["trials"] < steps["stopped"] < steps["whole"]
    assert model.n_samples_seen_ == 400


@pytest.mark.parametrize(
    "wrong",
    [
        {"time_budget": -1},
        {"time_budget": True},
        {"time_budget": "10"},
        {"n_inducing": 0},
        {"kernel": "foo"},
        {"optimizer": "sgd"},
    ],
    ids=str,
)
def test_wrong_parameters_are_refused_before_the_trials(quick, monkeypatch, wrong):
    monkeypatch.setattr(auto, "choose", None)
    with pytest.raises(InputError, match=repr(next(iter(wrong.values())))):
        SparseGPRegressor(**wrong).fit(*waves())


def test_a_chosen_model_with_learned_noise_reports_its_budget(options):
    options(auto={"small_candidates": LEARNS_NOISE.small_candidates, "trial_seconds": 60.0})
    model = SparseGPRegressor(time_budget=600.0, random_state=0).fit(*noisy_waves(300))
    assert model.info_["choice"]["approximation"] == "heteroscedastic exact"
    budget = model.info_["budget"]
    assert (budget["asked"], budget["fraction"], budget["rows_seen"]) == (600.0, 1.0, 300)
    assert budget["reason"] == "all rows were visited"


def test_rows_without_weight_play_no_part_in_the_trials(quick, plain_candidates):
    X, y = waves()
    weight = np.zeros(400)
    weight[:60] = 1.0
    model = SparseGPRegressor(n_inducing=10, random_state=0).fit(X, y, sample_weight=weight)
    assert all(trial["n_rows"] == 48 for trial in model.info_["choice"]["trials"])


def test_an_optimizer_by_points_leaves_the_exact_models_out():
    model = SparseGPRegressor(optimizer="srgp", n_inducing=10, time_budget=10.0, random_state=0).fit(*waves(60))
    assert model.info_["choice"]["approximation"] == "vfe"


def test_the_size_is_chosen_in_steps_too():
    gp = SparseGPRegressor(n_inducing="auto", optimizer=None)
    *_, last = gp.fit_iter(*waves())
    assert len(gp.inducing_) == 50
    assert last.reason is not None
