"""Moments of f in the user's units from the posterior of a fitted estimator."""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from sparsegp.approximations import Approximation
from sparsegp.errors import InputError, NegativeVarianceError
from sparsegp.estimators import validation
from sparsegp.estimators.blocking import Blocking
from sparsegp.estimators.families import Fitted
from sparsegp.estimators.frames import as_frame
from sparsegp.estimators.predictions import Array, GaussianPredictions
from sparsegp.estimators.standardizer import Standardizer
from sparsegp.estimators.stream_state import Streamed


class LatentPredictions(GaussianPredictions):
    """Mixin: the two primitives that every prediction is made of."""

    n_features_in_: int
    noise_var_: float
    _fitted: Fitted | Streamed
    _row: Approximation
    _blocking: Blocking | None
    _standardizer: Standardizer

    @abstractmethod
    def _tensor(self, X: Array) -> Tensor:
        """Inputs in the units of the model."""

    def _is_plain(self, X: Any) -> bool:
        """A float64 matrix of the right width after a fit without column names: nothing for scikit-learn to check."""
        plain = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0
        return plain and X.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_")

    def _checked_new(self, X: Any, blocks: ArrayLike | None) -> tuple[Tensor, Tensor | None]:
        check_is_fitted(self)
        if not self._is_plain(X):
            X = validate_data(self, as_frame(X), dtype=np.float64, order="C", ensure_all_finite=False, reset=False)
        validation.require_finite(X, getattr(self, "feature_names_in_", None))
        tensor = self._tensor(X)
        if self._blocking is None:
            if blocks is not None:
                raise InputError(
                    f"blocks= is for approximations with blocks (pitc, pic, block-pep); this is {self._row.name!r}."
                )
            return tensor, None
        return tensor, self._blocking.labels(tensor, blocks) if self._row.is_local else None

    def _marginals(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, float]:
        inputs = self._checked_new(X, blocks)
        mean, var = self._fitted.posterior.marginals(*inputs)
        units = self._standardizer
        return (
            mean.double().cpu().numpy() * units.y_scale + units.y_mean,
            var.double().cpu().numpy() * units.y_scale**2,
            self.noise_var_,
        )

    def _joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, float]:
        inputs = self._checked_new(X, blocks)
        mean, cov = self._fitted.posterior.joint(*inputs)
        units = self._standardizer
        return (
            mean.double().cpu().numpy() * units.y_scale + units.y_mean,
            cov.double().cpu().numpy() * units.y_scale**2,
            self.noise_var_,
        )

    def _nonnegative(self, var: Array) -> Array:
        if (var >= 0).all():
            return var
        raise NegativeVarianceError(
            f"{int((var < 0).sum())} of {len(var)} predictive variances are negative (lowest {var.min():.3g}): the "
            "Nystrom approximation is not a probability model. Look at them with return_cov=True, clip them with "
            "clip_variances=True, or use approximation='dtc', its proper relative."
        )
