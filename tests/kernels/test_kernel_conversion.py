"""Kernels from short names and from scikit-learn: the same matrices, noise apart, fixed bounds kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from sparsegp import kernels
from sparsegp.errors import InputError


def rows(n: int, n_features: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, n_features, dtype=torch.float64, generator=generator)


SKLEARN = {
    "rbf": lambda D: sk.ConstantKernel(2.3) * sk.RBF(np.linspace(0.4, 1.9, D)),
    "rbf alone": lambda D: sk.RBF(0.6),
    "matern12": lambda D: sk.Matern(np.linspace(0.4, 1.9, D), nu=0.5),
    "matern32": lambda D: 0.7 * sk.Matern(0.8, nu=1.5),
    "matern52": lambda D: sk.Matern(0.8, nu=2.5) * sk.ConstantKernel(3.0),
    "matern inf": lambda D: sk.Matern(0.8, nu=np.inf),
    "rq": lambda D: 1.4 * sk.RationalQuadratic(0.6, 0.3),
    "dot": lambda D: sk.DotProduct(0.7),
    "dot without offset": lambda D: 0.4 * sk.DotProduct(0.0),
    "scaled dot": lambda D: 0.4 * sk.DotProduct(0.7),
    "constant": lambda D: sk.ConstantKernel(0.3) * sk.ConstantKernel(4.0),
    "sum": lambda D: 0.5 * sk.RBF(0.6) + sk.DotProduct(0.2) + sk.ConstantKernel(0.1),
    "product": lambda D: sk.RBF(0.6) * sk.Matern(1.6, nu=1.5) * 0.9,
    "product of sums": lambda D: 1.3 * (sk.RBF(0.6) + 0.4 * sk.Matern(1.6)) * sk.DotProduct(0.3),
    "exponentiation": lambda D: (0.8 * sk.DotProduct(0.5)) ** 2,
}


@pytest.mark.parametrize("n_features", [1, 2, 3])
@pytest.mark.parametrize("name", SKLEARN)
def test_equals_scikit_learn(name: str, n_features: int) -> None:
    theirs = SKLEARN[name](n_features)
    ours, noise = kernels.from_sklearn(theirs)
    X, Z = rows(9, n_features), rows(5, n_features, seed=1)
    assert noise is None
    np.testing.assert_allclose(ours(X, Z).detach(), theirs(X.numpy(), Z.numpy()), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ours(X).detach(), theirs(X.numpy()), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ours.diagonal(X).detach(), theirs.diag(X.numpy()), rtol=1e-12, atol=1e-14)


def test_periodic_equals_scikit_learn_on_one_feature_and_is_a_product_on_more() -> None:
    theirs = 1.7 * sk.ExpSineSquared(0.6, 1.9)
    ours, _ = kernels.from_sklearn(theirs)
    X, Z = rows(9, 2), rows(5, 2, seed=1)
    columns = [theirs(X[:, [d]].numpy(), Z[:, [d]].numpy()) for d in range(2)]
    np.testing.assert_allclose(ours(X[:, :1], Z[:, :1]).detach(), columns[0], rtol=1e-12)
    np.testing.assert_allclose(ours(X, Z).detach(), columns[0] * columns[1] / 1.7, rtol=1e-12)


def test_white_kernels_become_the_noise() -> None:
    kernel, noise = kernels.from_sklearn(sk.WhiteKernel(0.2) + (0.5 * sk.RBF(0.6) + sk.WhiteKernel(0.3)))
    assert noise == pytest.approx(0.5)
    assert repr(kernel) == "SquaredExponential(variance=0.5, lengthscales=0.6)"


def test_fixed_bounds_become_parameters_that_are_not_learned() -> None:
    fixed_scale, _ = kernels.from_sklearn(2.0 * sk.RBF(0.6, "fixed"))
    assert [p.requires_grad for p in (fixed_scale.log_variance, fixed_scale.log_lengthscales)] == [
        True,
        False,
    ]
    fixed_variance, _ = kernels.from_sklearn(sk.ConstantKernel(2.0, "fixed") * sk.Matern(0.6))
    assert [p.requires_grad for p in (fixed_variance.log_variance, fixed_variance.log_lengthscales)] == [
        False,
        True,
    ]


def test_a_converted_product_learns_one_variance() -> None:
    kernel, _ = kernels.from_sklearn(sk.RBF(0.6) * sk.RationalQuadratic(0.7, 0.4) * sk.ExpSineSquared(0.8, 2.0))
    learned = [name for name, p in kernel.named_parameters() if p.requires_grad]
    assert [name for name in learned if name.endswith("variance")] == ["parts.0.log_variance"]


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (sk.Matern(0.6, nu=2.0), "nu=2.0"),
        (sk.RBF() * sk.WhiteKernel(), "WhiteKernel"),
        (sk.PairwiseKernel(), "PairwiseKernel"),
        (sk.WhiteKernel(), "noise only"),
        (sk.RBF() ** 1.5, "whole number"),
        (3.0, "float"),
    ],
)
def test_unsupported_scikit_learn_kernels_are_named(kernel: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        kernels.from_sklearn(kernel)


def test_names() -> None:
    for name in ("se", "rbf", "squared_exponential"):
        assert kernels.get(name) is kernels.SquaredExponential
    assert [kernels.get(n) for n in ("matern12", "matern32", "matern52", "rq")] == [
        kernels.Matern12,
        kernels.Matern32,
        kernels.Matern52,
        kernels.RationalQuadratic,
    ]
    with pytest.raises(InputError, match="'gauss'; the names are 'se'"):
        kernels.get("gauss")


def test_as_kernel_accepts_names_kernels_and_scikit_learn() -> None:
    own = kernels.Linear(0.3)
    assert kernels.as_kernel(own) == (own, None)
    assert repr(kernels.as_kernel("matern32")[0]) == "Matern32(variance=1, lengthscales=1)"
    assert kernels.as_kernel(sk.RBF() + sk.WhiteKernel(0.2))[1] == 0.2
    with pytest.raises(InputError, match=r"give Matern32\(\)"):
        kernels.as_kernel(kernels.Matern32)
    with pytest.raises(InputError, match="got list"):
        kernels.as_kernel([1.0])
