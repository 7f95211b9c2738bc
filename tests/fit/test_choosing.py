"""approximation="auto" and n_inducing="auto"."""

import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch

from sparsegp import HeteroscedasticGPRegressor, InputError, SparseGPRegressor, load
from sparsegp.cli import options as command_options
from sparsegp.core import approximations
from sparsegp.core.block import Block, MemoryRows
from sparsegp.fit import kept, posing
from sparsegp.fit.posing import AskedModel, AutoOptions, settled
from sparsegp.fit.problem import Problem, Start
from sparsegp.kernels import SquaredExponential

pytestmark = pytest.mark.usefixtures("short_start")


@pytest.fixture
def quick(options):
    options(auto={"exact_rows": 50})


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
    start = Start(SquaredExponential(1.0, [1.0]), 0.1)
    problem = Problem(approximations.get("vfe"), start, "kmeans", 32, np.random.default_rng(0), n_blocks=n_blocks)
    X, y = waves(16_000)
    rows = MemoryRows(Block(torch.from_numpy(X), torch.from_numpy(y)))

    def blocks_of(approximation):
        return settled(problem, AskedModel(approximation, 0.5, n_inducing, None), rows, AutoOptions())[0].n_blocks

    assert blocks_of("auto") == expected
    assert blocks_of("vfe") == n_blocks


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
def test_batches_and_steps_are_summed_up(fitted):
    X, y = waves(120)
    gp = fitted(X, y)
    assert gp.get_params()["approximation"] == "auto"
    assert (gp.model_.approx.name, gp.info_["choice"]["approximation"]) == ("vfe", "vfe")
    assert "steps" in gp.info_["choice"]["reason"]
    assert gp.partial_fit(X + 0.01, y).n_samples_seen_ == 240


def test_rows_that_are_too_many_for_memory_have_blocks(options):
    options(opening={"most_entries": 300})
    X, y = waves()
    gp = SparseGPRegressor(n_inducing=12, optimizer=None, random_state=0).fit(X, y)
    assert gp.info_["choice"]["approximation"] == "pic"
    assert gp.n_samples_seen_ == 400
    assert gp.info_["passes"] >= 2


def test_an_iterable_that_fits_into_memory_is_as_good_as_an_array():
    X, y = waves()
    batches = [(X[:250], y[:250]), (X[250:], y[250:])]
    gp = SparseGPRegressor(n_inducing=12, optimizer=None, random_state=0).fit(lambda: iter(batches))
    assert gp.info_["choice"]["approximation"] == "exact"
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


@pytest.mark.usefixtures("quick", "brief_learning")
def test_what_is_chosen_is_what_the_name_gives():
    X, y = waves()
    model = SparseGPRegressor(approximation="auto", n_inducing=15, random_state=0).fit(X, y)
    choice = model.info_["choice"]
    assert choice == {"approximation": "pic", "n_inducing": 15, "reason": choice["reason"]}
    named = SparseGPRegressor(approximation="pic", n_inducing=15, n_blocks=1, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), named.predict(X), rtol=1e-6, atol=1e-8)
    assert model.approximation == "auto"


@pytest.mark.usefixtures("quick")
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
        return posing._n_inducing(n_rows, budget, AutoOptions())

    assert (chosen(100), chosen(2000), chosen(10**6)) == (32, 250, 512)
    assert 32 <= chosen(10**6, 5.0) < chosen(10**6, 60.0) <= 512


def test_only_the_number_of_inducing_inputs_is_chosen_when_the_approximation_is_named():
    X, y = waves(200)
    model = SparseGPRegressor(approximation="vfe", n_inducing="auto", random_state=0).fit(X, y)
    assert len(model.inducing_) == 32
    assert "32 inducing inputs" in model.info_["choice"]["reason"]


def test_labels_of_blocks_need_a_named_approximation():
    X, y = waves(60)
    with pytest.raises(InputError, match="not with 'auto'"):
        SparseGPRegressor(approximation="auto").fit(X, y, blocks=np.zeros(60, int))


@pytest.mark.usefixtures("quick")
def test_a_chosen_model_keeps_the_whole_budget():
    X, y = waves()
    model = SparseGPRegressor(approximation="auto", n_inducing="auto", time_budget=4.0, random_state=0).fit(X, y)
    assert model.info_["budget"]["asked"] == 4.0
    assert model.info_["budget"]["fraction"] == 1.0


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
    """As files of older versions have it: there, "auto" could choose a model that learns the noise."""
    learned = HeteroscedasticGPRegressor(kernel="se", approximation="exact", n_noise_inducing=32, random_state=0)
    model = SparseGPRegressor(approximation="auto", kernel="se", random_state=0)
    model.assign(learned.fit(*noisy_waves(300)).fitted_)
    return model


@pytest.fixture
def noisy_model(chosen_noise):
    return deepcopy(chosen_noise)


def test_a_chosen_model_with_learned_noise_follows_the_noise(noisy_model):
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
@pytest.mark.usefixtures("quick")
def test_a_chosen_fit_can_be_stopped(press, budget):
    steps = {}
    for name, at in (("whole", np.inf), ("stopped", 3)):
        told = Told(at, press and at == 3)
        model = SparseGPRegressor(n_inducing=5, time_budget=budget, random_state=0).set_callbacks(told)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the fit was interrupted
            steps[name] = model.fit(*waves()) and told.steps
    assert steps["stopped"] < steps["whole"]
    assert model.n_samples_seen_ == 400
    assert np.isfinite(model.predict(waves()[0])).all()


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
def test_wrong_parameters_are_refused_before_anything_is_chosen(monkeypatch, wrong):
    monkeypatch.setattr(posing, "settled", None)
    with pytest.raises(InputError, match=repr(next(iter(wrong.values())))):
        SparseGPRegressor(**wrong).fit(*waves())


def test_rows_without_weight_play_no_part_in_the_choice(quick):
    X, y = waves()
    weight = np.zeros(400)
    weight[:40] = 1.0
    model = SparseGPRegressor(n_inducing=10, random_state=0).fit(X, y, sample_weight=weight)
    assert model.info_["choice"]["approximation"] == "exact"
    assert "40 rows" in model.info_["choice"]["reason"]


def test_an_optimizer_by_points_leaves_the_exact_models_out():
    model = SparseGPRegressor(optimizer="srgp", n_inducing=10, time_budget=10.0, random_state=0).fit(*waves(60))
    assert model.info_["choice"]["approximation"] == "vfe"
    assert "srgp" in model.info_["choice"]["reason"]


def test_inducing_inputs_that_are_given_are_used():
    X, y = waves(60)
    model = SparseGPRegressor(inducing=X[::6], optimizer=None, random_state=0).fit(X, y)
    assert model.info_["choice"]["approximation"] == "pic"
    assert "inducing inputs" in model.info_["choice"]["reason"]
    assert len(model.inducing_) == 10


def test_the_size_is_chosen_in_steps_too():
    gp = SparseGPRegressor(n_inducing="auto", optimizer=None)
    *_, last = gp.fit_iter(*waves())
    assert len(gp.inducing_) == 50
    assert last.reason is not None
