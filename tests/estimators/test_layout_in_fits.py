"""Columns that belong together, from the source to the model: one lengthscale a group, indicators as they are."""

import numpy as np
import pytest
import torch

from sparsegp import SparseGPRegressor, kernels
from sparsegp.core import approximations
from sparsegp.core.block import Block, MemoryRows
from sparsegp.data import FeatureLayout
from sparsegp.data.arrays import ArraySource
from sparsegp.data.scan import whole_batch
from sparsegp.estimators import checks
from sparsegp.estimators.fitted import Columns
from sparsegp.fit.scaling import Scaling
from sparsegp.fit.start import median_lengthscales
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective

LAYOUT = FeatureLayout((0, 1, 1, 1), (True, False, False, False))
"""A number and a category of three levels."""


def mixed(n=60, seed=0):
    rng = np.random.default_rng(seed)
    level = rng.integers(0, 3, n)
    x = rng.uniform(-2.0, 5.0, n)
    y = np.sin(x) + np.array([-1.0, 0.0, 2.0])[level] + 0.1 * rng.standard_normal(n)
    return np.column_stack([x, np.eye(3)[level]]), y


def dense_covariance(A, B, variance, lengthscale, tied):
    """By the formula: Matern 3/2 of a distance to which every pair of different levels adds the same."""
    gap = (A[:, None, :1] - B[None, :, :1])[..., 0] / lengthscale
    differ = (A[:, None, 1:] != B[None, :, 1:]).any(-1)
    s = np.sqrt(3.0 * (gap**2 + 2.0 * differ / tied**2))
    return variance * (1.0 + s) * np.exp(-s)


def test_levels_are_exchangeable():
    kernel = kernels.Matern32(1.3, [0.7, 1.9], groups=LAYOUT.groups)
    X, _ = mixed(12)
    given = torch.from_numpy(X)
    expected = dense_covariance(X, X, 1.3, 0.7, 1.9)
    np.testing.assert_allclose(kernel(given).detach().numpy(), expected, atol=1e-13)
    renamed = torch.from_numpy(X[:, [0, 3, 1, 2]])
    np.testing.assert_allclose(kernel(renamed).detach().numpy(), expected, atol=1e-13)


@pytest.mark.parametrize("approximation", ["exact", "vfe", "fitc", "pitc", "pic"])
def test_sparse_models_of_mixed_inputs_are_those_of_the_dense_formula(approximation):
    """At M < N: K is approximated by Q off the diagonal, the blocks, or everywhere."""
    X, y = mixed(40)
    Z, X_new = X[:9].copy(), mixed(7, seed=1)[0]
    variance, lengthscale, tied, noise = 1.3, 0.7, 1.9, 0.05
    labels = np.arange(40) // 10
    kernel = kernels.Matern32(variance, [lengthscale, tied], groups=LAYOUT.groups)
    model = SparseGPRegressor(
        kernel, approximation=approximation, inducing=Z, noise_var=noise, optimizer=None, normalize=False,
        calibration=None, trend=None,
    )  # fmt: skip
    blocks = {"blocks": labels} if approximation in ("pitc", "pic") else {}
    model.fit(X, y, **blocks)

    def k(A, B):
        return dense_covariance(A, B, variance, lengthscale, tied)

    def q(A, B):
        return k(A, Z) @ np.linalg.solve(k(Z, Z), k(Z, B))

    if approximation == "exact":
        prior, cross = k(X, X), k(X_new, X)
    else:
        same = {"vfe": np.zeros((40, 40)), "fitc": np.eye(40)}.get(approximation, labels[:, None] == labels[None])
        prior, cross = np.where(same, k(X, X), q(X, X)), q(X_new, X)
    where = {"labels": np.zeros(7, dtype=int)} if approximation == "pic" else {}
    if approximation == "pic":
        cross[:, labels == 0] = k(X_new, X[labels == 0])
    expected = cross @ np.linalg.solve(prior + noise * np.eye(40), y)
    found = model.predict(X_new, **({"blocks": where["labels"]} if where else {}))
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("approximation", ["vfe", "fitc", "pep"])
def test_the_slope_of_a_tied_lengthscale_is_the_sum_of_the_slopes(approximation):
    X, y = mixed(30)
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    approx = approximations.get(approximation)

    def slope(kernel):
        hyper = Hyperparameters(kernel, 0.07, block.X[:6].clone(), learn_inducing=False)
        objective = CollapsedObjective(MemoryRows(block), approx)
        objective.value_and_gradient(hyper)
        return hyper.kernel.log_lengthscales.grad.numpy().copy()

    apart = slope(kernels.Matern32(1.3, [0.7, 1.9, 1.9, 1.9]))
    together = slope(kernels.Matern32(1.3, [0.7, 1.9], groups=LAYOUT.groups))
    np.testing.assert_allclose(together, [apart[0], apart[1:].sum()], rtol=1e-9)


def test_indicators_are_not_standardised():
    X, y = mixed()
    batch = next(iter(ArraySource.of(X, y)))
    scaling = Scaling.of(batch, normalize=True, layout=LAYOUT)
    plain = Scaling.of(batch, normalize=True)
    np.testing.assert_array_equal(scaling.x_mean, [plain.x_mean[0], 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(scaling.x_scale, [plain.x_scale[0], 1.0, 1.0, 1.0])
    assert Scaling.of(batch, normalize=True, layout=FeatureLayout.plain(4)).same_as(plain)


def test_starting_lengthscales_are_those_of_groups():
    X = torch.from_numpy(mixed(200)[0])
    found = median_lengthscales(X, np.random.default_rng(0), LAYOUT.groups)
    assert found.shape == (2,)
    # two different levels are sqrt(2) apart, and there are two groups
    assert float(found[1]) == pytest.approx(2.0)


class MixedRows(ArraySource):
    """Rows of which somebody knows what belongs together."""

    layout = LAYOUT


def test_a_fit_learns_one_lengthscale_a_group(monkeypatch):
    X, y = mixed(150)
    monkeypatch.setattr(checks, "training_batch", lambda *_, **__: (whole_batch(source), Columns.of_source(source)))
    source = MixedRows.of(X, y)
    model = SparseGPRegressor("matern32", approximation="vfe", n_inducing=20, random_state=0).fit(X, y)
    assert model.kernel_.groups == LAYOUT.groups
    assert model.kernel_.log_lengthscales.shape == (2,)
    np.testing.assert_array_equal(model.scaling_.x_scale[1:], 1.0)
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 0.2
