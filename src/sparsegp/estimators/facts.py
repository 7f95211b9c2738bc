"""What pictures, reports and advice ask of a fitted model, whichever estimator it is."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.approximations import Approximation
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.incoming.standardizer import Standardizer

Array = NDArray[np.float64]


def scaling_of(model: Any) -> Standardizer:
    """Means and scales of the training rows."""
    scaling: Standardizer = model._standardizer
    return scaling


def approximation_of(model: Any) -> Approximation | None:
    """The row of the table that the model is; None for a committee."""
    found = vars(model).get("_row")
    return found if isinstance(found, Approximation) else None


def inducing_of(model: Any) -> Array | None:
    """Inducing inputs in the units of the data; None for a model without them."""
    found = vars(model).get("inducing_")
    return None if found is None else np.asarray(found)


def has_blocks(model: Any) -> bool:
    return isinstance(vars(model).get("_blocking"), Blocking)


def blocks_at(model: Any, X: Array) -> NDArray[np.int64] | None:
    """The block in which each row would be; None for a model without blocks."""
    blocking = vars(model).get("_blocking")
    if not isinstance(blocking, Blocking):
        return None
    labels: NDArray[np.int64] = blocking.labels(scaling_of(model).tensor(X), None).numpy()
    return labels


def learns_noise(model: Any) -> bool:
    """Whether the noise variance is a function of the inputs."""
    return "noise_kernel_" in vars(model)


def knows_noise(model: Any) -> bool:
    """Whether the noise variance of each training row was given."""
    return bool(vars(model).get("_known_noise", False))
