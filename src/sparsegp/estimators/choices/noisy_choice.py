"""A model with learned noise in the place of a posterior, where `approximation="auto"` has chosen one."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any

from sparsegp.estimators.heteroscedastic import HeteroscedasticGPRegressor
from sparsegp.estimators.incoming import arrivals
from sparsegp.estimators.predicting.latent_predictions import LatentPredictions
from sparsegp.posterior import LatentPosterior

# What a chosen model with learned noise has in common with every other; the rest stays its own.
SHARED_STATE = ("kernel_", "noise_var_", "inducing_", "n_samples_seen_", "_standardizer", "_row", "_blocking")


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

    def state(self, info: dict[str, Any]) -> dict[str, Any]:
        """The fitted attributes of an estimator that has chosen this model, with what else its `info_` has to say."""
        shared = {name: vars(self.model)[name] for name in SHARED_STATE}
        return {**shared, "info_": {**info, **self.model.info_}, "_fitted": self}


def _asked(name: str) -> Any:
    """The method of that name: asked of the chosen model where there is one, with rows as it saw them (columns checked
    and ordered by their names)."""
    own = getattr(LatentPredictions, name)

    @wraps(own)
    def asked(self: "NoisyChoicePredictions", X: Any, *arguments: Any, **named: Any) -> Any:
        chosen = self._chosen
        if chosen is None:
            return own(self, X, *arguments, **named)
        return getattr(chosen, name)(arrivals.new_inputs(self, X), *arguments, **named)

    return asked


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

    _marginals = _asked("_marginals")
    _joint = _asked("_joint")
    predict_quantiles = _asked("predict_quantiles")
    log_density = _asked("log_density")
    sample_y = _asked("sample_y")
