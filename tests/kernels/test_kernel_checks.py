"""check_kernel names what is wrong with a wrong kernel."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from sparsegp import kernels
from sparsegp.testing import check_kernel


class Cosine(kernels.Kernel):
    """A right kernel, from which each wrong one departs in one respect."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.log_frequency = torch.nn.Parameter(torch.tensor(frequency, dtype=torch.float64).log())

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        angle = self.log_frequency.exp() * (X[:, None, :] - Z[None, :, :])
        return angle.cos().sum(-1)


class Asymmetric(Cosine):
    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return super().forward(X, Z) + 0.01 * X[:, :1]


class Indefinite(Cosine):
    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return -super().forward(X, Z)


class WrongDiagonal(Cosine):
    def diag(self, X: Tensor) -> Tensor:
        return super().diag(X) * 1.001


class WrongGradient(Cosine):
    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return super().forward(X.detach(), Z)


class UnsafeGradient(Cosine):
    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return (-(X[:, None, :] - Z[None, :, :]).square().sum(-1).sqrt() * self.log_frequency.exp()).exp()


class Overwriting(Cosine):
    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return super().forward(X.sub_(1.0), Z.sub_(1.0))


class WrongRescaled(Cosine):
    def rescaled(self, x_shift: Tensor, x_scale: Tensor, y_scale: float) -> kernels.Kernel:
        return copy.deepcopy(self)


class DoubleOnly(Cosine):
    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        weights = torch.eye(X.shape[1], dtype=torch.float64)
        return super().forward(X @ weights, Z @ weights)


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (Asymmetric(1.4), "symmetry"),
        (Indefinite(1.4), "positive semi-definite"),
        (WrongDiagonal(1.4), "diagonal"),
        (WrongGradient(1.4), "gradient of 'X'"),
        (UnsafeGradient(1.4), "coincident rows"),
        (Overwriting(1.4), "inputs unchanged"),
        (WrongRescaled(1.4), "rescaled"),
        (DoubleOnly(1.4), "float32"),
    ],
)
def test_names_the_failed_property(kernel: kernels.Kernel, named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        check_kernel(kernel, 2)


def test_accepts_a_right_kernel() -> None:
    check_kernel(Cosine(1.4), 2)
