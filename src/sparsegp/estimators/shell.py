"""What every estimator of the package is to scikit-learn, and what it can do whatever its model: save and diagnose."""

from sklearn.base import BaseEstimator, RegressorMixin

from sparsegp.estimators.diagnosis import DiagnosisMixin
from sparsegp.estimators.persistence import PersistenceMixin
from sparsegp.estimators.progress import CallbackSupportMixin


class Estimator(CallbackSupportMixin, PersistenceMixin, DiagnosisMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn regressor with callbacks, `save` and `diagnose`."""
