"""Predictions without torch: the same numbers, from the same files, with the same errors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import sparsegp
from sparsegp import HeteroscedasticGPRegressor, InputError, SparseGPRegressor, kernels, serving
from sparsegp.errors import ModelFileError
from sparsegp.files import container

FIXTURES = Path(__file__).parents[1] / "fixtures"
LIGHT_ROWS = ("vfe", "dtc", "sor", "fitc", "fic", "pep", "pitc", "block-pep", "pic", "exact", "sod")
KERNELS = {
    "se": kernels.SquaredExponential(1.3, [0.7, 1.9]),
    "groups": kernels.Matern52(1.7, [0.9, 1.6], groups=[1, 0]) + kernels.RationalQuadratic(0.3, 1.2, groups=[0, 0]),
    "matern12": kernels.Matern12(0.8, 1.1),
    "matern32": kernels.Matern32(1.7, [0.9, 0.4]),
    "matern52": kernels.Matern52(1.7, [0.9, 1.6]),
    "rq": kernels.RationalQuadratic(1.2, [0.8, 2.0], 1.7),
    "sum": kernels.Matern52(1.7, [0.9], active_dims=[1]) + kernels.SquaredExponential(0.4, 2.0) + 0.3,
    "product": kernels.Matern32(1.1, 0.8, active_dims=[0]) * kernels.SquaredExponential(1.4, 1.2, active_dims=[1]),
    "linear": kernels.Matern52(1.7, [0.9, 1.6]) + kernels.Linear([0.2, 0.5], center=[12.0, 13.0]),
    "power": kernels.Matern52(1.1, 0.9) ** 2,
    "great circle": kernels.GreatCircle(1.4, 120.0) + kernels.Matern32(0.3, 2.0, active_dims=[1]),
    "periodic": kernels.Periodic(1.0, [1.3, 0.8], [2.2, 3.1]) + kernels.Constant(0.2),
}


class Own(kernels.Kernel):
    """A kernel that is not of the package."""

    def forward(self, X, Z):
        return torch.exp(-torch.cdist(X, Z))

    def diag(self, X):
        return torch.ones_like(X[:, 0])


def wave(n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(10, 16, (n, 2))
    return X, 40.0 + 3.0 * np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(n)


def fitted(kernel="se", approximation="vfe", **changes):
    chosen = {"n_inducing": 25, "n_blocks": 4, "noise_var": 0.3, "optimizer": None, "random_state": 0, **changes}
    return SparseGPRegressor(kernel, approximation, **chosen).fit(*wave())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.sgp"


def same_predictions(light, model):
    X = wave(40, seed=1)[0] * [1.0, 1.4]
    for latent in (False, True):
        for got, expected in zip(
            light.predict(X, return_std=True, latent=latent),
            model.predict(X, return_std=True, latent=latent),
            strict=True,
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_array_equal(light.predict(X), light.predict(X, return_std=True)[0])
    for got, expected in zip(light.predict_interval(X, 0.8), model.predict_interval(X, 0.8), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-8)


@pytest.mark.parametrize("approximation", LIGHT_ROWS)
def test_every_approximation_says_the_same(approximation, path):
    model = fitted(approximation=approximation)
    model.save(path)
    same_predictions(serving.load(path), model)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_says_the_same(kernel, path):
    model = fitted(KERNELS[kernel])
    model.save(path)
    same_predictions(serving.load(path), model)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("far", [0.0, 1e4])
def test_covariances_are_those_of_torch(kernel, far, path):
    fitted(KERNELS[kernel], normalize=False).save(path)
    X, Z = wave(30)[0] + far, wave(20, seed=2)[0] + far
    form = serving.load(path)._kernel
    expected = KERNELS[kernel](torch.from_numpy(X), torch.from_numpy(Z)).detach().numpy()
    np.testing.assert_allclose(serving.covariance.matrix(form, X, Z), expected, rtol=1e-7, atol=1e-12)
    own = KERNELS[kernel].diagonal(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(serving.covariance.diagonal(form, X), own, rtol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"half_life": 50.0}, {"window": 100}])
def test_a_model_that_took_rows_in_says_the_same(changes, path):
    model = fitted(**changes).partial_fit(*wave(60, seed=3))
    model.save(path)
    same_predictions(serving.load(path), model)


@pytest.mark.parametrize("approximation", ["pic", "exact"])
@pytest.mark.parametrize("trend", [None, "constant", "linear"])
def test_rows_with_trend_noise_and_weights_say_the_same(approximation, trend, path):
    X, y = wave()
    rng = np.random.default_rng(2)
    model = SparseGPRegressor("matern32", approximation, n_inducing=20, n_blocks=4, optimizer=None, trend=trend)
    noise, weight = rng.uniform(0.05, 0.5, len(y)), rng.uniform(0.5, 3.0, len(y))
    model.fit(X, y, noise_var=noise, sample_weight=weight).save(path)
    assert (model.model_.trend is None) == (trend is None)
    same_predictions(serving.load(path), model)


def test_a_local_model_that_took_and_gave_back_rows_says_the_same(path):
    model = fitted(approximation="pic").partial_fit(*wave(60, seed=3)).forget(*wave(60, seed=3))
    model.save(path)
    same_predictions(serving.load(path), model)


def test_blocks_of_the_user_and_blocks_without_rows_say_the_same(path):
    X, y = wave()
    labels = 10 * (X[:, 0] > 13).astype(int) + (X[:, 1] > 13)
    model = SparseGPRegressor("se", "pic", n_inducing=20, optimizer=None).fit(X, y, blocks=labels)
    gone = labels == 11
    model.forget(X[gone], y[gone], blocks=labels[gone]).save(path)
    same_predictions(serving.load(path), model)


def test_a_calibrated_local_model_says_the_same(path):
    X, y = wave(400)
    y = y + np.random.default_rng(5).standard_t(3, len(y)) * (0.1 + (X[:, 0] > 13))
    kernel = kernels.Matern52(9.0, [1.0, 2.0])
    given = {"n_inducing": 20, "n_blocks": 3, "noise_var": 0.5, "optimizer": None, "random_state": 0}
    model = SparseGPRegressor(kernel, "pic", calibration="scale", **given).fit(X, y)
    assert model.calibration_ is not None
    model.save(path)
    light = serving.load(path)
    same_predictions(light, model)
    ends, target = wave(30, seed=6)
    for name in ("log_density", "cdf", "crps"):
        got, expected = getattr(light, name)(ends, target), getattr(model.forecast(ends), name)(target)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)


def test_large_blocks_are_kept_in_float32_where_that_is_right(path):
    """Means are not, and standard deviations are right to a ten thousandth."""
    X, y = wave(600)
    model = SparseGPRegressor("se", "pic", n_inducing=20, n_blocks=2, optimizer=None, noise_var=0.3).fit(X, y)
    model.save(path)
    light, Xs = serving.load(path), wave(200, seed=1)[0]
    for latent in (False, True):
        (mean, std), expected = (m.predict(Xs, return_std=True, latent=latent) for m in (light, model))
        np.testing.assert_allclose(mean, expected[0], rtol=1e-9)
        np.testing.assert_allclose(std, expected[1], rtol=2e-4)
    kinds = {light._posterior._kept.blocks[k].A.dtype for k in range(2)}
    assert kinds == {np.dtype(np.float32)}


def test_a_model_chosen_without_trials_is_light(path):
    model = SparseGPRegressor(n_inducing=20, optimizer=None).partial_fit(*wave())
    model.save(path)
    same_predictions(serving.load(path), model)


HEAVY = {
    "noise": lambda: HeteroscedasticGPRegressor(n_inducing=10, n_noise_inducing=5, optimizer=None).fit(*wave()),
    "float32": lambda: fitted(dtype="float32"),
    "nystrom": lambda: fitted(approximation="nystrom", clip_variances=True),
    "own kernel": lambda: fitted(Own()),
    "own part": lambda: fitted(kernels.Matern52(1.1, 0.9) + Own()),
}


@pytest.mark.parametrize("name", HEAVY)
def test_other_models_are_left_to_torch(name, path):
    HEAVY[name]().save(path)
    assert serving.load_if_light(path) is None
    with pytest.raises(ModelFileError, match=r"use sparsegp\.load"):
        serving.load(path)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["vfe", "window", "pic"])
def test_files_of_every_version_are_read(name, version):
    light, model = (load(FIXTURES / f"model_v{version}_{name}.sgp") for load in (serving.load, sparsegp.load))
    X = np.random.default_rng(0).uniform(-2, 2, (20, light.n_features_in_))
    np.testing.assert_allclose(light.predict(X), model.predict(X), rtol=1e-9)
    np.testing.assert_allclose(light.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1], rtol=1e-8)
    assert (light.n_samples_seen_, light.noise_var_) == (model.n_samples_seen_, model.noise_var_)


def test_columns_are_known_by_name(path):
    X, y = wave()
    frame = pd.DataFrame(X, columns=["a", "b"])
    SparseGPRegressor(approximation="vfe", n_inducing=20, optimizer=None).fit(frame, y).save(path)
    light = serving.load(path)
    np.testing.assert_array_equal(light.predict(frame), light.predict(X))
    np.testing.assert_array_equal(light.predict(frame[["b", "a"]]), light.predict(X))
    with pytest.raises(InputError, match="column 'b' of the fit is not a column of the table"):
        light.predict(frame[["a"]])


@pytest.mark.parametrize(
    ("X", "said"),
    [
        (np.zeros(2), "2 columns"),
        (np.zeros((3, 5)), "2 columns"),
        (np.array([[0.0, np.inf]]), "not finite"),
        ([["a", "b"]], "matrix of numbers"),
        ("rows.parquet", "matrix of numbers"),
    ],
)
def test_what_cannot_be_predicted_is_said(X, said, path):
    fitted().save(path)
    light = serving.load(path)
    with pytest.raises(InputError, match=said):
        light.predict(X)
    with pytest.raises(InputError, match="probability"):
        light.predict_interval(wave(3)[0], 1.0)
    assert light.predict(np.empty((0, 2))).shape == (0,)


def nested(depth):
    form = []
    for _ in range(depth):
        form = [form]
    return form


SPOILT = {
    "no posterior": lambda d, a: d.update(posterior={"form": "inducing"}),
    "no inducing values": lambda d, a: d["posterior"].pop("inducing"),
    "no scaling": lambda d, a: d.pop("scaling"),
    "missing array": lambda d, a: a.pop("posterior.inducing.mean"),
    "unknown tag": lambda d, a: d["info"].update(note={"$pickle": "gASV"}),
    "unknown field": lambda d, a: d["posterior"].update(run="rm"),
    "shapes": lambda d, a: a.update({name: value[:-1] for name, value in a.items() if value.ndim == 1}),
    "newer": lambda d, a: d.update(schema_version=99),
    "no parameters": lambda d, a: d.update(parameters=[1, 2]),
    "no dtype": lambda d, a: d["parameters"].pop("dtype"),
    "kernel without values": lambda d, a: d["kernel"]["nodes"][0].pop("log_variance"),
    "kernel in circles": lambda d, a: d["kernel"]["nodes"].append({"kind": "sum", "parts": [1]}),
    "nested without end": lambda d, a: d["info"].update(note=nested(900)),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_file_is_refused(name, path):
    fitted().save(path)
    description, arrays = container.read(path)
    SPOILT[name](description, arrays)
    container.write(path, description, arrays)
    with pytest.raises(ModelFileError, match=r"cannot be used|schema"):
        serving.load(path)


def test_a_shape_whose_variance_overflows_is_refused(path):
    """A checksum that fits is no proof: the spread of forecasts is tried out with everything else."""
    X, y = wave(300)
    SparseGPRegressor("se", "vfe", n_inducing=8, random_state=0).fit(X, y).save(path)
    description, arrays = container.read(path)
    assert "calibration.locations" in arrays
    arrays["calibration.locations"][0] = 1e308
    container.write(path, description, arrays)
    with pytest.raises(ModelFileError, match="rows of its own"):
        serving.load(path)


def test_it_says_what_it_is_in_a_line(path):
    fitted().save(path)
    assert repr(serving.load(path)).startswith("Predictor(n_features_in_=2, feature_names_in_=None, noise_var_=")
    assert len(repr(serving.load(path))) < 200


def test_an_altered_file_is_refused(path):
    fitted().save(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="altered"):
        container.read(path)


@pytest.mark.parametrize("name", ["v1_vfe", "v2_vfe", "v2_pic"])
def test_neither_torch_nor_scikit_learn_is_imported(name):
    path = FIXTURES / f"model_{name}.sgp"
    code = (
        "import sys; from sparsegp import serving; "
        f"serving.load({str(path)!r}).predict([[1.0, 2.0]], return_std=True); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_predicts_without_torch(path, tmp_path):
    fitted().save(path)
    pd.DataFrame(wave(5)[0], columns=["a", "b"]).to_csv(tmp_path / "rows.csv", index=False)
    code = (
        "import sys; from sparsegp.cli.main import app; "
        f"app(['predict', {str(path)!r}, {str(tmp_path / 'rows.csv')!r}], standalone_mode=False); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6


def test_a_prediction_that_overflows_on_its_way_back_to_y_is_refused(tmp_path):
    """The logarithm is a number, its exponential is none."""
    description, arrays = container.read(FIXTURES / "prices_v2.sgp")
    description["scaling"]["target_mean"] = 800.0
    container.write(tmp_path / "forged.sgp", description, arrays)
    with pytest.raises(ModelFileError, match="not a finite number"):
        sparsegp.load(tmp_path / "forged.sgp")
    model = serving.load(tmp_path / "forged.sgp").of_numbers()
    X = np.zeros((3, model.n_features_in_))
    for call in (model.predict, model.predict_interval, lambda X: model.predict_quantiles(X, [0.5])):
        with pytest.raises(InputError, match="not a finite number"):
            call(X)
