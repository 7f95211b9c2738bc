"""All that is learned, as one vector: kernel parameters, log noise variance and inducing inputs."""

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsegp.core.approximations import Approximation
from sparsegp.core.prior import SparsePrior
from sparsegp.core.trend import Trend
from sparsegp.kernels import Kernel

LOG_RANGE = math.log(1e5)

Gradient = tuple[Tensor | None, ...]
"""Of every parameter; None: it has none."""


def added(first: Gradient, second: Gradient) -> Gradient:
    """The sum, parameter by parameter."""
    return tuple(b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class Limits:
    """What learning may not leave: the noise floor and ceiling, and the box of the inducing inputs."""

    noise_var: tuple[float, float]
    lower: Tensor
    upper: Tensor


class Hyperparameters(nn.Module):
    """A private copy of the kernel, the noise variance and the inducing inputs; each learned or fixed.

    A trend has nothing to learn: its coefficients are integrated out.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_var: float,
        inducing: Tensor,
        *,
        learn_noise: bool = True,
        learn_inducing: bool = True,
        trend: Trend | None = None,
    ) -> None:
        super().__init__()
        self.trend = trend
        self.kernel = copy.deepcopy(kernel)
        self.log_noise_var = nn.Parameter(
            torch.tensor(math.log(noise_var), dtype=torch.float64, device=inducing.device),
            requires_grad=learn_noise,
        )
        self.inducing = nn.Parameter(inducing.detach().clone().to(torch.float64), requires_grad=learn_inducing)

    @property
    def noise_var(self) -> Tensor:
        return self.log_noise_var.detach().exp()

    def prior(self, approx: Approximation, least_jitter: float = 0.0) -> SparsePrior:
        """The sparse prior at these values."""
        return SparsePrior.build(self.kernel, self.inducing, self.noise_var, approx, least_jitter, self.trend)

    def box(self, limits: Limits) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`bounds` as lowest and highest vectors, infinite where there is no bound."""
        bounds = np.array(self.bounds(limits), dtype=np.float64).reshape(-1, 2)
        return np.nan_to_num(bounds[:, 0], nan=-np.inf), np.nan_to_num(bounds[:, 1], nan=np.inf)

    @contextmanager
    def inducing_held(self) -> Iterator[None]:
        """Within, the inducing inputs are fixed."""
        learned = self.inducing.requires_grad
        self.inducing.requires_grad_(False)
        try:
            yield
        finally:
            self.inducing.requires_grad_(learned)

    def _learned(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.named_parameters() if p.requires_grad]

    def vector(self) -> NDArray[np.float64]:
        parts = [p.detach().cpu().to(torch.float64).numpy().ravel() for _, p in self._learned()]
        return np.concatenate(parts) if parts else np.zeros(0)

    def load_vector(self, vector: NDArray[np.float64]) -> None:
        values = torch.from_numpy(np.array(vector, dtype=np.float64))
        start = 0
        with torch.no_grad():
            for _, p in self._learned():
                p.copy_(values[start : start + p.numel()].reshape(p.shape))
                start += p.numel()

    def gradient(self) -> NDArray[np.float64]:
        """The accumulated `.grad` of the learned parameters; a parameter the objective ignores has gradient zero."""
        parts = [
            np.zeros(p.numel()) if p.grad is None else p.grad.detach().cpu().to(torch.float64).numpy().ravel()
            for _, p in self._learned()
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def gradients(self) -> Gradient:
        """The accumulated `.grad` of every parameter."""
        return tuple(p.grad for p in self.parameters())

    def add_gradient(self, gradient: Gradient) -> None:
        """Add to the `.grad` of every parameter."""
        for p, total in zip(self.parameters(), added(self.gradients(), gradient), strict=True):
            p.grad = total

    def add_gradients(self, others: "Iterable[Hyperparameters]") -> None:
        """Add the gradients that copies of these hyper-parameters have gathered."""
        for other in others:
            self.add_gradient(other.gradients())

    def clear_gradient(self) -> None:
        for p in self.parameters():
            p.grad = None

    def bounds(self, limits: Limits) -> list[tuple[float | None, float | None]]:
        """Box constraints of the vector: log parameters within a wide range of where they are, see `Limits`."""
        box: list[tuple[float | None, float | None]] = []
        for name, p in self._learned():
            if name == "log_noise_var":
                box.append((math.log(limits.noise_var[0]), math.log(limits.noise_var[1])))
            elif name == "inducing":
                lower = torch.minimum(limits.lower, p.detach().amin(0)).tolist()
                upper = torch.maximum(limits.upper, p.detach().amax(0)).tolist()
                box.extend(list(zip(lower, upper, strict=True)) * p.shape[0])
            elif name.rsplit(".", 1)[-1].startswith("log_"):
                box.extend((value - LOG_RANGE, value + LOG_RANGE) for value in p.detach().ravel().tolist())
            else:
                box.extend([(None, None)] * p.numel())
        return box


Gradients = tuple[NDArray[np.float64] | None, ...]
"""Of every parameter; None: not learned."""


def gradients_of(hyper: Hyperparameters) -> Gradients:
    return tuple(None if p.grad is None else p.grad.cpu().numpy() for p in hyper.parameters())


def add_gradients(hyper: Hyperparameters, gradients: Gradients) -> None:
    for p, part in zip(hyper.parameters(), gradients, strict=True):
        if part is not None:
            gradient = torch.from_numpy(np.array(part)).to(p)
            p.grad = gradient if p.grad is None else p.grad + gradient
