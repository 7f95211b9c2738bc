"""Moments of f in the user's units from the posterior of a fitted estimator."""

from abc import abstractmethod
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.approximations import Approximation
from sparsegp.errors import NegativeVarianceError
from sparsegp.estimators.incoming import arrivals
from sparsegp.estimators.incoming.blocking import Blocking, labels_of_new
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.predicting.predictions import Array, GaussianPredictions


class LatentPredictions(GaussianPredictions):
    """Mixin: the two primitives that every prediction is made of."""

    n_features_in_: int
    noise_var_: float
    _fitted: Any
    _row: Approximation
    _blocking: Blocking | None
    _standardizer: Standardizer

    @abstractmethod
    def _tensor(self, X: Array) -> Tensor:
        """Inputs in the units of the model."""

    def _new_rows(self, X: Any, blocks: ArrayLike | None) -> tuple[Tensor, Tensor | None]:
        """New rows in the model's units, and their blocks where predictions depend on them."""
        inputs = self._tensor(arrivals.new_inputs(self, X))
        return inputs, labels_of_new(self._row, self._blocking, inputs, blocks)

    def _marginals(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, float]:
        inputs, labels = self._new_rows(X, blocks)
        mean, var = self._fitted.posterior.marginals(inputs, labels)
        return *self._standardizer.raw_moments(mean, var), self.noise_var_

    def _joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, float]:
        inputs, labels = self._new_rows(X, blocks)
        mean, cov = self._fitted.posterior.joint(inputs, labels)
        return *self._standardizer.raw_moments(mean, cov), self.noise_var_

    def _nonnegative(self, var: Array) -> Array:
        if (var >= 0).all():
            return var
        raise NegativeVarianceError(
            f"{int((var < 0).sum())} of {len(var)} predictive variances are negative (lowest {var.min():.3g}): the "
            "Nystrom approximation is not a probability model. Look at them with return_cov=True, clip them with "
            "clip_variances=True, or use approximation='dtc', its proper relative."
        )
