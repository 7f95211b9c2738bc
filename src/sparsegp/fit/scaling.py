"""Standardisation of inputs and targets: models work on zero mean and unit scale, users see their own units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsegp.calibration.transform import TargetTransform, carried
from sparsegp.core.predictive import Predictive
from sparsegp.data import Batch, FeatureLayout, Moments
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel

Array = NDArray[np.float64]

SMALLEST_SCALE, LARGEST_SCALE = 1e-140, 1e140
SMALLEST_NOISE = 1e-290  # of the variance of the targets; its logarithm is taken
SMALLEST_INPUT = 1e-290  # lengthscales are of this size, and one over them is a number


@dataclass(frozen=True)
class Scaling:
    """x' = (x - x_mean)/x_scale, y' = (t(y) - y_mean)/y_scale.

    Constant columns keep the scale 1, and indicators their values. t is the identity where there is no `transform`;
    where there is one, "units of y" are those of t(y), up to the forecast that `carried` gives.
    """

    x_mean: Array
    x_scale: Array
    y_mean: float
    y_scale: float
    transform: TargetTransform | None = None

    def __post_init__(self) -> None:
        if not SMALLEST_SCALE <= self.y_scale <= LARGEST_SCALE:
            raise InputError(
                f"The targets vary by {self.y_scale:.3g}, and variances are squares: what varies by less than "
                f"{SMALLEST_SCALE:g} or by more than {LARGEST_SCALE:g} cannot be squared. Give y in another unit, and "
                "look for single targets that are far from all others."
            )
        bad = np.flatnonzero(~np.isfinite(self.x_mean + self.x_scale))
        if len(bad):
            raise InputError(
                f"Column {bad[0]} of the inputs (counted from 0) has numbers so large that their sum overflows. Give "
                "it in another unit, or divide it by one number."
            )

    @classmethod
    def identity(cls, n_features: int, transform: TargetTransform | None = None) -> "Scaling":
        return cls(np.zeros(n_features), np.ones(n_features), 0.0, 1.0, transform)

    @classmethod
    def from_data(cls, X: Array, y: Array, weight: Array | None, transform: TargetTransform | None = None) -> "Scaling":
        y = y if transform is None else transform.targets(y)
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number is refused
            inputs, targets = Moments.of(X, weight), Moments.of(y[:, None], weight)
            return cls(inputs.mean, inputs.scale, float(targets.mean[0]), float(targets.scale[0]), transform)

    @classmethod
    def of(
        cls,
        batch: Batch,
        *,
        normalize: bool,
        layout: FeatureLayout | None = None,
        transform: TargetTransform | None = None,
    ) -> "Scaling":
        if not normalize:
            y = batch.y if transform is None else transform.targets(batch.y)
            _require_size("The targets", y, SMALLEST_SCALE)
            for k, column in enumerate(batch.X.T):
                _require_size(f"The numbers in column {k} of the inputs (counted from 0)", column, SMALLEST_INPUT)
            return cls.identity(batch.X.shape[1], transform)
        found = cls.from_data(batch.X, batch.y, batch.weight, transform)
        return found if layout is None else found.only(layout.standardized)

    def only(self, standardized: Sequence[bool]) -> "Scaling":
        """The same for some of the columns; the others stay as they are."""
        return replace(
            self, x_mean=np.where(standardized, self.x_mean, 0.0), x_scale=np.where(standardized, self.x_scale, 1.0)
        )

    def same_as(self, other: "Scaling") -> bool:
        """Whether both are equal to the last digit."""
        mine, theirs = vars(self), vars(other)
        return all(np.array_equal(mine[name], theirs[name]) for name in mine)

    @property
    def log_noise_shift(self) -> float:
        """What a log noise variance gains on its way from the model's units to the user's."""
        return 2.0 * math.log(self.y_scale)

    def standardized_noise(self, noise_var: float) -> float:
        """A noise variance in standardised units."""
        share = float(noise_var) / self.y_scale**2
        if share < SMALLEST_NOISE:
            raise InputError(
                f"The noise variance {noise_var:g} is below {SMALLEST_NOISE:g} of the variance of the targets, "
                f"{self.y_scale**2:.3g}. Give a larger one: far above that it makes no difference any more."
            )
        return share

    def inputs(self, X: Array) -> Array:
        out: Array = (X - self.x_mean) / self.x_scale
        return out

    def raw_inputs(self, X: Array) -> Array:
        out: Array = X * self.x_scale + self.x_mean
        return out

    def targets(self, y: Array) -> Array:
        z = y if self.transform is None else self.transform.targets(y)
        out: Array = (z - self.y_mean) / self.y_scale
        return out

    def carried(self, forecast: Predictive) -> Predictive:
        """The forecast of y from that of t(y)."""
        found: Predictive = carried(forecast, self.transform)
        return found

    def raw_moments(self, mean: Tensor, cov: Tensor) -> tuple[Array, Array]:
        """Mean and variances, or covariance, of f in the user's units."""
        scaled: Array = cov.double().cpu().numpy() * self.y_scale**2
        return self.raw_mean(mean), scaled

    def raw_mean(self, mean: Tensor) -> Array:
        """Mean of f in the user's units."""
        shifted: Array = mean.double().cpu().numpy() * self.y_scale + self.y_mean
        return shifted

    def standardized_kernel(self, kernel: Kernel) -> Kernel:
        """The same covariance, spoken in standardised units."""
        return kernel.rescaled(*self._to_model, 1.0 / self.y_scale)

    def raw_kernel(self, kernel: Kernel) -> Kernel:
        """The same covariance, spoken in the user's units."""
        return kernel.rescaled(*self._to_user, self.y_scale)

    def standardized_noise_kernel(self, kernel: Kernel) -> Kernel:
        """The same for the log of the noise variance, whose own scale is no unit of y."""
        return kernel.rescaled(*self._to_model, 1.0)

    def raw_noise_kernel(self, kernel: Kernel) -> Kernel:
        return kernel.rescaled(*self._to_user, 1.0)

    @property
    def _to_model(self) -> tuple[Tensor, Tensor]:
        """x' = shift + scale x."""
        scale = torch.from_numpy(1.0 / self.x_scale)
        return -torch.from_numpy(self.x_mean) * scale, scale

    @property
    def _to_user(self) -> tuple[Tensor, Tensor]:
        """x = shift + scale x'."""
        return torch.from_numpy(self.x_mean), torch.from_numpy(self.x_scale)

    def tensor(self, X: Array, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.inputs(X))).to(dtype=dtype, device=device)


def _require_size(what: str, values: Array, smallest: float) -> None:
    """Of numbers that nobody standardises."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest > LARGEST_SCALE:
        raise InputError(
            f"{what} are as large as {largest:g}; squares of numbers above {LARGEST_SCALE:g} overflow. Divide them by "
            "one number, or use normalize=True."
        )
    if 0.0 < largest < smallest:
        raise InputError(
            f"{what} are all below {2.0 * largest:.1g}; it takes larger ones than {smallest:g}. Multiply them by one "
            "number, or use normalize=True."
        )
