"""Kernels and noise to learn from, in the model's units: the user's own, or what the data suggest."""

from typing import Any

import numpy as np
from sklearn.base import clone

from sparsegp.data import Block
from sparsegp.errors import InputError
from sparsegp.estimators.choices.kernel_choice import AUTO, CANDIDATES, best_start
from sparsegp.estimators.choices.kernel_judges import Judge
from sparsegp.estimators.families import Start
from sparsegp.estimators.incoming import validation
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.kernels import Kernel, as_kernel
from sparsegp.kernels import get as kernel_class
from sparsegp.learning.starting_values import median_lengthscales, neighbour_noise_var


def starting_point(
    estimator: Any, units: Standardizer, block: Block, rng: np.random.Generator, judge: Judge | None = None
) -> Start:
    """From `kernel`, and `noise_var` where the estimator has it; `judge` decides where the kernel is left to choose.

    A kernel's name starts from median distances; noise that is not given, from the differences between neighbours.
    """
    if is_kernel_asked(estimator):
        named = clone(estimator).set_params(kernel=chosen_kernel(estimator, units, block, rng, judge))
        return starting_point(named, units, block, rng)
    kernel, noise_var = _kernel_and_noise(estimator.kernel, units, block, rng)
    if not isinstance(estimator.kernel, str) and estimator.normalize and estimator.optimizer is not None:
        validation.warn_of_odd_lengthscales(kernel)
    given = getattr(estimator, "noise_var", None)
    if given is not None:
        noise_var = float(given) / units.y_scale**2
    return Start(
        kernel.to(block.X.device), neighbour_noise_var(block.X, block.y, rng) if noise_var is None else noise_var
    )


def is_kernel_asked(estimator: Any) -> bool:
    """Whether the kernel is left to choose."""
    return isinstance(estimator.kernel, str) and estimator.kernel == AUTO


def chosen_kernel(
    estimator: Any, units: Standardizer, block: Block, rng: np.random.Generator, judge: Judge | None = None
) -> str:
    """The name of the best kernel, found in a share of the estimator's time budget if it has one."""
    if estimator.optimizer is None:
        raise InputError("kernel='auto' is chosen by learning, and optimizer=None learns nothing: name the kernel.")
    seed = int(rng.integers(2**31))

    def start(name: str) -> Start:
        named = clone(estimator).set_params(kernel=name)
        return starting_point(named, units, block, np.random.default_rng(seed))

    starts = {name: start(name) for name in CANDIDATES}
    return best_start(starts, block, rng, getattr(estimator, "time_budget", None), judge)


def starting_noise_kernel(kernel: Any, units: Standardizer, block: Block, rng: np.random.Generator) -> Kernel:
    """The kernel of g = log noise variance, which has no units of y."""
    if isinstance(kernel, str):
        return kernel_class(kernel)(variance=1.0, lengthscales=median_lengthscales(block.X, rng))
    return units.standardized_noise_kernel(as_kernel(kernel)[0])


def _kernel_and_noise(
    kernel: Any, units: Standardizer, block: Block, rng: np.random.Generator
) -> tuple[Kernel, float | None]:
    """The kernel, and the noise variance of the white part that a kernel of scikit-learn may have."""
    if isinstance(kernel, str):
        return kernel_class(kernel)(
            variance=block.target_variance, lengthscales=median_lengthscales(block.X, rng)
        ), None
    given, white = as_kernel(kernel)
    return units.standardized_kernel(given), None if white is None else white / units.y_scale**2
