"""ONNX graphs against the estimators that they were made of, run by onnxruntime."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from sparsegp import InputError, ModelFileError, SparseGPRegressor, kernels  # noqa: E402
from sparsegp.calibration.calibration import Calibration  # noqa: E402
from sparsegp.calibration.mixture import Shape  # noqa: E402
from sparsegp.calibration.scale import LocalScale  # noqa: E402
from sparsegp.calibration.trees import Trees  # noqa: E402
from sparsegp.core.trend import Trend  # noqa: E402
from sparsegp.neighbours.onnx import export  # noqa: E402

KERNELS = {
    "se": kernels.SquaredExponential(1.3, [0.8, 1.7, 2.5]),
    "matern12": kernels.Matern12(1.3, [0.8, 1.7, 2.5]),
    "matern32": kernels.Matern32(1.3, [0.8, 1.7], groups=[0, 1, 1]),
    "matern52": kernels.Matern52(1.3, 1.1),
    "rq": kernels.RationalQuadratic(1.3, 1.1, 0.7),
    "periodic": kernels.Periodic(1.1, 0.9, 1.7, active_dims=[2])
    + kernels.Matern32(0.5, [1.0, 2.0], active_dims=[0, 1]),
    "others": kernels.Linear(0.4) + kernels.SquaredExponential() * kernels.Matern12(active_dims=[1]) + 0.3,
    "great circle": kernels.GreatCircle(1.4, 120.0, "matern52", active_dims=[0, 2]) + kernels.Matern32(0.3, 2.0),
    "power": (kernels.Linear(0.4) + 1.0) ** 3 + kernels.SquaredExponential(),
}


def rows(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 3)) * [1.0, 10.0, 1.0] + [0.0, 100.0, 3.0]
    return X, 50 + 5 * np.sin(X[:, 0]) + 0.3 * (X[:, 1] - 100) + rng.standard_normal(n)


def fitted(kernel, **given):
    kernel = kernel.rescaled(*_units(), 5.0)
    given = {"approximation": "vfe", "n_inducing": 15, "noise_var": 1.0, "optimizer": None, "random_state": 0, **given}
    return SparseGPRegressor(kernel, **given).fit(*rows())


def _units():
    import torch

    return torch.tensor([0.0, 100.0, 3.0]), torch.tensor([1.0, 10.0, 1.0])


def ran(path, X):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["mean", "std"], {"X": X})


def agrees(model, path):
    for X in (rows(200, seed=1)[0], rows(1, seed=2)[0]):
        mean, std = model.predict(X, return_std=True)
        found = ran(path, X)
        assert found[0].shape == found[1].shape == (len(X),)
        np.testing.assert_allclose(found[0], mean, rtol=1e-9)
        np.testing.assert_allclose(found[1], std, rtol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_kernel(kernel, tmp_path):
    model = fitted(kernel)
    assert export(model, tmp_path / "model.onnx") == tmp_path / "model.onnx"
    agrees(model, tmp_path / "model.onnx")


@pytest.mark.parametrize("approximation", ["sor", "dtc", "fitc", "pep"])
def test_approximations_without_rows(approximation, tmp_path):
    model = fitted(KERNELS["matern52"], approximation=approximation)
    export(model, tmp_path / "model.onnx")
    agrees(model, tmp_path / "model.onnx")


@pytest.mark.parametrize("trend", ["linear", "constant"])
def test_trends_and_calibration(trend, tmp_path):
    """A local scale of two trees, a shape of two parts, and a file on the way."""
    model = fitted(KERNELS["se"], trend=trend)
    assert isinstance(model.model_.trend, Trend)
    trees = Trees(
        0.1, np.array([[0, 3], [4, 1]]), np.array([[0.2, -0.1], [-0.5, 0.3]]), np.arange(8.0).reshape(2, 4) / 8
    )
    shape = Shape(np.array([0.7, 0.3]), np.array([-0.3, 0.7]), np.array([0.8, 1.9]))
    model.fitted_ = replace(model.fitted_, calibration=Calibration(shape, LocalScale(trees, strength=0.8, most=1.5)))
    model.save(tmp_path / "model.sgp")
    export(tmp_path / "model.sgp", tmp_path / "model.onnx")
    agrees(model, tmp_path / "model.onnx")


def test_a_model_that_learned_and_calibrated_itself(tmp_path):
    X, y = rows(1500)
    model = SparseGPRegressor("se", approximation="vfe", n_inducing=15, calibration="scale", random_state=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "fit_options", quick(model.fit_options))
        model.fit(X, y * (1 + (X[:, 0] > 0)))
    assert model.calibration_ is not None
    export(model, tmp_path / "model.onnx")
    agrees(model, tmp_path / "model.onnx")


def quick(options):
    points = replace(options.learning.schedules.points, warm_up_iterations=2, first_iterations=3, fewest_iterations=1)
    return replace(
        options, learning=replace(options.learning, schedules=replace(options.learning.schedules, points=points))
    )


def test_models_that_need_their_rows_are_refused(tmp_path):
    model = fitted(KERNELS["se"], approximation="exact")
    with pytest.raises(ModelFileError, match="needs its training rows"):
        export(model, tmp_path / "model.onnx")
    with pytest.raises(InputError, match="or the path of a model file; got int"):
        export(3, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
