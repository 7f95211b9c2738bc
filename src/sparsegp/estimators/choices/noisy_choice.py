"""A model with learned noise in the place of a posterior, where `approximation="auto"` has chosen one."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from sparsegp.estimators.heteroscedastic import HeteroscedasticGPRegressor
from sparsegp.estimators.incoming import arrivals
from sparsegp.estimators.predicting.latent_predictions import LatentPredictions
from sparsegp.estimators.predicting.predictions import Array
from sparsegp.posterior import LatentPosterior


@dataclass(frozen=True)
class NoisyFit:
    """A fitted HeteroscedasticGPRegressor with what other fits offer."""

    model: HeteroscedasticGPRegressor

    @property
    def log_evidence(self) -> float:
        return self.model.log_evidence_

    @property
    def posterior(self) -> LatentPosterior:
        return self.model._model.posterior


class NoisyChoicePredictions(LatentPredictions):
    """Mixin: everything that depends on the noise is asked of the chosen model; without one nothing changes."""

    get_params: Callable[..., dict[str, Any]]

    def plain(self) -> Any:
        """The model itself: the chosen one, with what was noted of its columns and batches; else this estimator."""
        chosen = self._chosen
        if chosen is None:
            return self
        known = vars(chosen).keys() | self.get_params(deep=False).keys() | {"_fitted"}
        model = copy(chosen)
        model.__dict__.update({name: value for name, value in vars(self).items() if name not in known})
        return model

    @property
    def _chosen(self) -> HeteroscedasticGPRegressor | None:
        fitted = vars(self).get("_fitted")
        return fitted.model if isinstance(fitted, NoisyFit) else None

    def _array(self, X: Any) -> Array:
        """Rows as the chosen model saw them: columns checked and ordered by their names."""
        return arrivals.new_inputs(self, X)

    def _marginals(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, Any]:
        chosen = self._chosen
        return super()._marginals(X, blocks) if chosen is None else chosen._marginals(self._array(X), blocks)

    def _joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, Any]:
        chosen = self._chosen
        return super()._joint(X, blocks) if chosen is None else chosen._joint(self._array(X), blocks)

    def predict_quantiles(self, X: Any, q: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Quantiles of y: one column for each level in q."""
        chosen = self._chosen
        if chosen is None:
            return super().predict_quantiles(X, q, blocks)
        return chosen.predict_quantiles(self._array(X), q, blocks)

    def log_density(self, X: Any, y: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Log density of each target under its prediction; minus its mean is the NLPD."""
        chosen = self._chosen
        return super().log_density(X, y, blocks) if chosen is None else chosen.log_density(self._array(X), y, blocks)

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = None,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Array:
        """Joint samples of y (or f) at the rows of X: an array [rows, n_samples]."""
        chosen = self._chosen
        if chosen is None:
            return super().sample_y(X, n_samples, random_state, latent, blocks)
        return chosen.sample_y(self._array(X), n_samples, random_state, latent, blocks)
