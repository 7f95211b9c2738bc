"""What pictures, reports and advice ask of a fitted model, whichever estimator it is."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.approximations import Approximation
from sparsegp.fit.scaling import Scaling

Array = NDArray[np.float64]


def scaling_of(estimator: Any) -> Scaling:
    """Means and scales of the training rows."""
    scaling: Scaling = estimator.scaling_
    return scaling


def approximation_of(estimator: Any) -> Approximation | None:
    """The approximation that the model is; None for a committee."""
    approx: Approximation | None = estimator.model_.approx
    return approx


def inducing_of(estimator: Any) -> Array | None:
    """Inducing inputs in the units of the data; None for a model without them."""
    found = estimator.model_.inducing
    return None if found is None else estimator.scaling_.raw_inputs(found.cpu().numpy())


def has_blocks(estimator: Any) -> bool:
    return estimator.model_.blocking is not None


def blocks_at(estimator: Any, X: Array) -> NDArray[np.int64] | None:
    """The block in which each row would be; None for a model without blocks."""
    if not has_blocks(estimator):
        return None
    labels: NDArray[np.int64] = estimator.model_.blocking.nearest(scaling_of(estimator).tensor(X)).numpy()
    return labels


def learns_noise(estimator: Any) -> bool:
    """Whether the noise variance is a function of the inputs."""
    return bool(estimator.model_.learns_noise)


def knows_noise(estimator: Any) -> bool:
    """Whether the noise variance of each training row was given."""
    return bool(estimator.model_.known_noise)
