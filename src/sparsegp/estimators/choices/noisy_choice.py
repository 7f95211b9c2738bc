"""A model with learned noise in the place of a posterior, where `approximation="auto"` has chosen one."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from sparsegp.estimators.heteroscedastic import HeteroscedasticGPRegressor
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

    def with_notes(self, owner: Mapping[str, Any], parameters: Mapping[str, Any]) -> HeteroscedasticGPRegressor:
        """A copy of the model with what the estimator that has chosen it noted of its columns and batches."""
        known = {*vars(self.model), *parameters, "_fitted"}
        model = copy(self.model)
        for name in owner.keys() - known:
            setattr(model, name, owner[name])
        return model
