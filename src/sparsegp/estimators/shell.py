"""What every estimator of the package is to scikit-learn, and what it can do whatever its model: save and diagnose."""

import os
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from sparsegp.estimators import records
from sparsegp.estimators.diagnosis import DiagnosisMixin
from sparsegp.estimators.progress import CallbackSupportMixin
from sparsegp.files import model_file

Own = TypeVar("Own")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def all_or_nothing(
    method: Callable[Concatenate[Own, Given], Result],
) -> Callable[Concatenate[Own, Given], Result]:
    """A method that leaves its object as it was if an error or an interrupt ends it."""

    @wraps(method)
    def guarded(self: Own, /, *arguments: Given.args, **named: Given.kwargs) -> Result:
        before = dict(vars(self))
        try:
            return method(self, *arguments, **named)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return guarded


class Estimator(CallbackSupportMixin, DiagnosisMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn regressor with callbacks, `save`, `diagnose` and `to_local`."""

    kind: ClassVar[str]
    """What a model file calls it."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file that `sparsegp.load` reads: data only, no code, no pickle.

        The file replaces an older one in a single step. It has no training rows unless predictions need them ("exact",
        "sod", "pic", "nystrom", exact or local experts of a committee) or the model forgets them later (`window`).
        """
        model_file.write(path, records.describe(self))

    def plain(self) -> Any:
        """The estimator whose fitted state this one's predictions come from: itself, unless it has chosen another."""
        return self

    def to_local(self) -> Self:
        """A fitted copy for this process alone: it needs no cluster and no dask, wherever it was fitted."""
        check_is_fitted(self)
        return deepcopy(self)
