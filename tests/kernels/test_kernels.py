"""Kernels: conformance, the law of `rescaled`, errors, gradients at zero distance."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsegp import kernels
from sparsegp.errors import InputError
from sparsegp.kernels import radial
from sparsegp.testing.kernel_checks import check_kernel


class Cosine(kernels.Kernel):
    """A user's kernel with nothing but forward: variance * cos(w (x - z)) summed over the columns."""

    def __init__(self, frequency: float, active_dims: list[int] | None = None) -> None:
        super().__init__(active_dims)
        self.log_frequency = torch.nn.Parameter(torch.tensor(frequency, dtype=torch.float64).log())

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        angle = self.log_frequency.exp() * (X[:, None, :] - Z[None, :, :])
        return angle.cos().sum(-1)


class Deep(kernels.Kernel):
    """A small network before a squared exponential."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        layers = torch.nn.Linear(n_features, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
        self.net = torch.nn.Sequential(*layers).double()
        self.base = kernels.SquaredExponential(1.3, [0.7, 1.1])

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.base(self.net(X.double()), self.net(Z.double()))


def fixed_variance() -> kernels.Kernel:
    kernel = kernels.Matern32(1.7, [0.5, 0.9])
    kernel.log_variance.requires_grad_(False)
    return kernel


CASES = {
    "se": (lambda: kernels.SquaredExponential(1.5, [0.8, 1.2]), 2),
    "se isotropic": (lambda: kernels.SquaredExponential(0.6, 0.7), 3),
    "matern12": (lambda: kernels.Matern12(0.7, [0.8, 1.2]), 2),
    "matern32": (lambda: kernels.Matern32(2.2, 0.6), 2),
    "matern52": (lambda: kernels.Matern52(0.7, [0.4, 0.9, 2.0]), 3),
    "groups": (lambda: kernels.Matern32(0.7, [0.4, 0.9], groups=[0, 1, 1]), 3),
    "groups of active dims": (
        lambda: kernels.RationalQuadratic(0.7, [0.4, 0.9], active_dims=[2, 0, 1], groups=[1, 0, 1]),
        3,
    ),
    "groups and parts": (lambda: kernels.SquaredExponential(0.7, 0.8, groups=[0, 0, 1]) * kernels.Linear(0.3) + 0.2, 3),
    "rq": (lambda: kernels.RationalQuadratic(0.4, [0.3, 2.0], 0.7), 2),
    "periodic": (lambda: kernels.Periodic(0.5, [0.8, 2.0], [1.3, 3.0]), 2),
    "periodic isotropic": (lambda: kernels.Periodic(0.5, 0.8, 1.3), 3),
    "linear": (lambda: kernels.Linear([0.5, 2.0], [0.3, -1.0]), 2),
    "linear isotropic": (lambda: kernels.Linear(0.5, 0.3), 2),
    "constant": (lambda: kernels.Constant(0.4), 2),
    "great circle": (lambda: kernels.GreatCircle(0.7, 150.0), 2),
    "great circle, rough": (lambda: kernels.GreatCircle(0.7, 90.0, "matern12"), 2),
    "great circle, smooth": (lambda: kernels.GreatCircle(0.7, 200.0, "squared_exponential"), 2),
    "great circle in time": (
        lambda: kernels.GreatCircle(0.7, 150.0, "matern52", active_dims=[2, 0]) * kernels.Matern32(active_dims=[1]),
        3,
    ),
    "fixed": (fixed_variance, 2),
    "sum": (lambda: kernels.SquaredExponential(1.5, [0.8, 1.2]) + kernels.Linear(0.4) + 0.3, 2),
    "product": (lambda: kernels.Matern52(0.4, 0.7) * kernels.Periodic(1.2, 0.8, 2.0), 2),
    "scaled sum": (lambda: 2.0 * (kernels.Matern32(0.3) + kernels.Linear(0.2, 0.5)), 2),
    "power": (lambda: (kernels.Linear(0.4) + kernels.Constant(1.5)) ** 3, 2),
    "active dims": (lambda: kernels.Matern32(0.8, [0.5, 1.4], active_dims=[2, 0]), 3),
    "parts of columns": (
        lambda: (
            kernels.SquaredExponential(active_dims=[0]) * kernels.Linear(0.6, 0.2, active_dims=[2])
            + kernels.Periodic(0.5, 0.8, 1.3, active_dims=[1])
        ),
        3,
    ),
    "nested active dims": (
        lambda: kernels.Sum(
            kernels.Matern52(1.2, [0.3, 0.4]), kernels.Linear(0.3, active_dims=[1]), active_dims=[2, 1]
        ),
        3,
    ),
    "user": (lambda: Cosine(1.4), 2),
    "user on a column": (lambda: Cosine(1.4, [1]) * kernels.Matern52(0.5, 2.0), 2),
    "deep": (lambda: Deep(3), 3),
}


def rows(n: int, n_features: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, n_features, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str) -> None:
    make, n_features = CASES[name]
    torch.manual_seed(3)
    check_kernel(make(), n_features)


@given(
    name=st.sampled_from(sorted(set(CASES) - {"deep"})),
    shift=st.lists(st.floats(-50, 50), min_size=3, max_size=3),
    scale=st.lists(st.floats(0.02, 50), min_size=3, max_size=3),
    y_scale=st.floats(0.01, 100),
)
@settings(max_examples=60, deadline=None)
def test_rescaled_is_the_same_covariance_and_can_be_undone(
    name: str, shift: list[float], scale: list[float], y_scale: float
) -> None:
    make, n_features = CASES[name]
    kernel = make()
    a, s = (torch.tensor(values[:n_features], dtype=torch.float64) for values in (shift, scale))
    X, Z = rows(6, n_features), rows(4, n_features, seed=1)
    new = kernel.rescaled(a, s, y_scale)
    with torch.no_grad():
        torch.testing.assert_close(new(a + s * X, a + s * Z), y_scale**2 * kernel(X, Z), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(new.diagonal(a + s * X), y_scale**2 * kernel.diagonal(X), rtol=1e-7, atol=1e-9)
    back = new.rescaled(-a / s, 1.0 / s, 1.0 / y_scale)
    for (name_back, value), (name_old, old) in zip(back.named_parameters(), kernel.named_parameters(), strict=True):
        assert name_back == name_old
        torch.testing.assert_close(value, old, rtol=1e-10, atol=1e-10)


def test_isotropic_kernel_stays_one_parameter_after_a_change_of_units() -> None:
    scale = torch.tensor([10.0, 0.1, 3.0], dtype=torch.float64)
    new = kernels.Matern52(1.2, 0.7).rescaled(torch.zeros(3, dtype=torch.float64), scale, 2.0)
    assert new.log_lengthscales.shape == (1,)
    torch.testing.assert_close(new.lengthscales.detach(), 0.7 * scale)
    with torch.no_grad():
        new.log_lengthscales += 0.5
    back = new.rescaled(torch.zeros(3, dtype=torch.float64), 1.0 / scale, 0.5)
    torch.testing.assert_close(back.lengthscales.detach(), torch.tensor([0.7 * np.exp(0.5)]))


def test_a_part_used_twice_stays_shared_after_a_change_of_units() -> None:
    part = kernels.Linear(0.7, 0.2)
    ones = torch.ones(2, dtype=torch.float64)
    for combined, n_uses in ((part * part, 2), (part + part, 2)):
        new = combined.rescaled(ones, 2.0 * ones, 3.0)
        assert len(list(new.parameters())) == 1
        X = rows(5, 2)
        torch.testing.assert_close(new(1.0 + 2.0 * X), 9.0 * combined(X))
        assert len(new.parts) == n_uses


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: kernels.SquaredExponential(-1.0), "variance must be greater than zero"),
        (lambda: kernels.SquaredExponential([1.0, 2.0]), "variance must be a single number"),
        (lambda: kernels.Matern12(1.0, [1.0, 0.0]), "lengthscales must be greater than zero"),
        (lambda: kernels.Matern52(1.0, float("nan")), "lengthscales must be one finite number"),
        (lambda: kernels.Matern52(1.0, [[1.0]]), "one for each feature"),
        (lambda: kernels.Matern32(1.0, "long"), "lengthscales must be a number"),
        (lambda: kernels.RationalQuadratic(shape=0.0), "shape must be greater than zero"),
        (lambda: kernels.Periodic(period=-2.0), "period must be greater than zero"),
        (lambda: kernels.Linear(center=float("inf")), "center must be one finite number"),
        (lambda: kernels.Linear(active_dims=[0, 0]), "distinct column numbers"),
        (lambda: kernels.Linear(active_dims=[-1]), "counted from 0"),
        (lambda: kernels.Linear(active_dims=[]), "active_dims"),
        (lambda: kernels.Linear(active_dims=[0.5]), "active_dims"),
        (lambda: kernels.Matern32(1.0, [1.0, 2.0, 3.0], active_dims=[0, 1]), "3 lengthscales but sees 2"),
        (lambda: kernels.Periodic(1.0, 1.0, [1.0, 2.0], active_dims=[0]), "2 periods but sees 1"),
        (lambda: kernels.Linear() ** 0.5, "whole number"),
        (lambda: kernels.Linear() + "se", "a kernel or a positive number"),
        (lambda: kernels.Sum(), "Sum expects kernels"),
        (lambda: kernels.Matern32(1.0, [1.0, 2.0])(rows(4, 3)), "2 lengthscales but sees 3 features"),
        (lambda: kernels.Linear(1.0, [1.0, 2.0]).diagonal(rows(4, 3)), "2 centers but sees 3 features"),
        (lambda: kernels.Matern32(active_dims=[4])(rows(4, 3)), "at least 5 features; the input has 3"),
        (lambda: kernels.Matern32()(rows(4, 3)[0]), r"matrix \[rows, features\]"),
        (lambda: kernels.Matern32()(rows(4, 3).int()), "floating-point"),
        (
            lambda: kernels.Matern32().rescaled(torch.zeros(2), torch.zeros(2), 1.0),
            "x_scale must not be zero",
        ),
        (lambda: Cosine(1.0).rescaled(torch.zeros(2), torch.ones(3), 1.0), "got 2 and 3"),
    ],
)
def test_errors_teach(make: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "curvature"),
    [
        (kernels.SquaredExponential, 1.0),
        (kernels.Matern32, 3.0),
        (kernels.Matern52, 5.0 / 3.0),
        (kernels.RationalQuadratic, 1.0),
    ],
)
def test_gradient_near_zero_distance_follows_the_curvature(make: type, curvature: float) -> None:
    """k = v (1 - c |x - z|^2 / (2 l^2) + ...): its gradient in x is -v c (x - z) / l^2, and 0 at x = z."""
    kernel = make(1.3, 0.8)
    z = rows(1, 2)
    for offset in (0.0, 1e-6):
        x = (z + offset).requires_grad_()
        (gradient,) = torch.autograd.grad(kernel(x, z).sum(), x)
        expected = torch.full_like(x, -1.3 * curvature * offset / 0.8**2)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-13)


def test_matern12_is_exact_at_coincident_and_close_rows_far_from_the_centre() -> None:
    kernel = kernels.Matern12(1.3, 0.8)
    X = 30.0 + rows(6, 3)
    Z = torch.cat([X, X + 1e-7]).requires_grad_()
    K = kernel(X, Z)
    distance = (X[:, None, :] - Z[None, :, :]).square().sum(-1).sqrt()
    torch.testing.assert_close(K, 1.3 * torch.exp(-distance / 0.8), rtol=1e-12, atol=0.0)
    (gradient,) = torch.autograd.grad(K[:, :6].diagonal().sum(), Z)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_shift_of_all_rows_costs_no_digits() -> None:
    X, Z = rows(8, 2), rows(5, 2, seed=1)
    far = 1e6
    for kernel in (kernels.SquaredExponential(1.3, 0.5), kernels.Matern52(1.3, 0.5)):
        torch.testing.assert_close(kernel(X + far, Z + far), kernel(X, Z), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["se isotropic", "matern12", "matern52", "rq"])
def test_tiles_of_rows_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, n_features = CASES[name]
    kernel = make()
    X, Z = rows(50, n_features).requires_grad_(), rows(7, n_features, seed=1).requires_grad_()

    def results() -> list[Tensor]:
        weighted = (kernel(X, Z) * rows(50, 7, seed=2)).sum() + (kernel(X) * rows(50, 50, seed=3)).sum()
        return [kernel(X).detach(), *torch.autograd.grad(weighted, [X, Z, *kernel.parameters()])]

    at_once = results()
    monkeypatch.setattr(radial, "TILE_ENTRIES", 1)
    torch.testing.assert_close(results(), at_once, rtol=1e-11, atol=1e-11)


def test_default_diagonal_needs_no_square_matrix() -> None:
    largest = 0

    class Watched(Cosine):
        def forward(self, X: Tensor, Z: Tensor) -> Tensor:
            nonlocal largest
            largest = max(largest, len(X) * len(Z))
            return super().forward(X, Z)

    kernel, X = Watched(1.4), rows(1000, 2)
    torch.testing.assert_close(kernel.diagonal(X), torch.full((1000,), 2.0, dtype=torch.float64))
    assert largest < 20_000


def test_active_dims_see_their_columns_only() -> None:
    X, Z = rows(6, 3), rows(4, 3, seed=1)
    kernel, whole = (kernels.Matern52(0.8, [0.5, 1.4], active_dims=dims) for dims in ([2, 0], None))
    torch.testing.assert_close(kernel(X, Z), whole(X[:, [2, 0]], Z[:, [2, 0]]))


def test_algebra_of_values() -> None:
    X, Z = rows(6, 2), rows(4, 2, seed=1)
    a, b = kernels.Matern52(0.8, 0.5), kernels.Linear(0.3, 0.1)
    torch.testing.assert_close((a + b * a + 0.2)(X, Z), a(X, Z) + b(X, Z) * a(X, Z) + 0.2)
    torch.testing.assert_close((np.float64(3.0) * a)(X, Z), 3.0 * a(X, Z))
    torch.testing.assert_close(((a + b) ** 2)(X, Z), (a + b)(X, Z).square())
    assert repr(kernels.Matern32(0.5, [1.0, 2.0], groups=[0, 1, 1])).endswith("groups=[0, 1, 1])")
    assert repr(kernels.Matern32(0.5, [1.0, 2.0], groups=[0] + [1] * 99)).endswith("groups=<100>)")
    assert repr(3.0 * a) == "Matern52(variance=2.4, lengthscales=0.5)"
    assert repr(2 * (a + b)).startswith("Constant(variance=2) * (Matern52(")


def test_copies_are_independent_and_keep_fixed_parameters() -> None:
    kernel = fixed_variance() + kernels.Periodic(0.4, 0.8, 1.5, active_dims=[1])
    for twin in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        flags = [p.requires_grad for p in kernel.parameters()]
        assert [p.requires_grad for p in twin.parameters()] == flags
        assert repr(twin) == repr(kernel)
        twin.parts[0].log_variance.data += 1.0
        assert repr(twin) != repr(kernel)


@pytest.mark.parametrize("name", [*CASES, "se on two of three columns"])
def test_columns_computed_once_are_the_kernel(name: str) -> None:
    make, n_features = CASES.get(name, (lambda: kernels.SquaredExponential(1.1, [0.4, 0.8], active_dims=[2, 0]), 3))
    kernel = make()
    generator = torch.Generator().manual_seed(8)
    X, Z = (torch.randn(n, n_features, dtype=torch.float64, generator=generator) for n in (9, 4))
    onto = pickle.loads(pickle.dumps(kernel.onto(Z)))
    torch.testing.assert_close(onto(X), kernel(X, Z), rtol=1e-12, atol=1e-14)
