"""All that a heteroscedastic model learns, as one vector: the parameters of f and those of the noise process g."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sparsegp.core.trend import Trend
from sparsegp.kernels import Kernel
from sparsegp.learn.hyperparameters import Hyperparameters, Limits

# A prior of g wider than this puts most of E exp(g) into values that no row has shown: g running away.
LARGEST_NOISE_KERNEL_VARIANCE = 9.0


def _lengthscale_ranges(kernel: Kernel, factor: float) -> dict[str, list[tuple[float, float]]]:
    """The box of each parameter of f that holds log lengthscales."""
    room = math.log(factor)
    return {
        f"kernel.{name}": [(value - room, value + room) for value in p.detach().ravel().tolist()]
        for name, p in kernel.named_parameters()
        if name.endswith("log_lengthscales")
    }


class JointHyperparameters(Hyperparameters):
    """Kernel and inducing inputs of f, and kernel, inducing inputs and mean of g = log noise variance.

    A trend is one of f. `lengthscale_factor` is how far the lengthscales of f may go from where they are now.
    """

    def __init__(
        self,
        kernel: Kernel,
        inducing: Tensor,
        noise_kernel: Kernel,
        noise_inducing: Tensor,
        noise_mean: float,
        *,
        learn_inducing: bool = True,
        lengthscale_factor: float | None = None,
        trend: Trend | None = None,
    ) -> None:
        super().__init__(kernel, 1.0, inducing, learn_noise=False, learn_inducing=learn_inducing, trend=trend)
        self._ranges = {} if lengthscale_factor is None else _lengthscale_ranges(self.kernel, lengthscale_factor)
        self.noise_kernel = copy.deepcopy(noise_kernel)
        self.noise_inducing = nn.Parameter(
            noise_inducing.detach().clone().to(torch.float64), requires_grad=learn_inducing
        )
        self.noise_mean = nn.Parameter(torch.tensor(noise_mean, dtype=torch.float64))

    @contextmanager
    def inducing_held(self) -> Iterator[None]:
        """Within, the inducing inputs of f and of g are fixed."""
        learned = self.noise_inducing.requires_grad
        self.noise_inducing.requires_grad_(False)
        try:
            with super().inducing_held():
                yield
        finally:
            self.noise_inducing.requires_grad_(learned)

    def bounds(self, limits: Limits) -> list[tuple[float | None, float | None]]:
        """As for f; the mean of g stays between noise floor and ceiling, its inducing inputs in the box of the data."""
        box = super().bounds(limits)
        start = 0
        for name, p in self._learned():
            if name == "noise_mean":
                box[start] = (math.log(limits.noise_var[0]), math.log(limits.noise_var[1]))
            elif name == "noise_inducing":
                lower = torch.minimum(limits.lower, p.detach().amin(0)).tolist()
                upper = torch.maximum(limits.upper, p.detach().amax(0)).tolist()
                box[start : start + p.numel()] = list(zip(lower, upper, strict=True)) * p.shape[0]
            elif name.startswith("noise_kernel.") and name.endswith("log_variance"):
                highest = max(math.log(LARGEST_NOISE_KERNEL_VARIANCE), float(p.detach()))
                box[start] = (box[start][0], highest)
            elif name in self._ranges:
                box[start : start + p.numel()] = self._ranges[name]
            start += p.numel()
        return box
