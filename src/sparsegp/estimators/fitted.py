"""What a fit leaves behind in an estimator."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.calibration.calibration import Calibration
from sparsegp.data import FeatureLayout, Source
from sparsegp.data.digest import RowDigest
from sparsegp.fit.scaling import Scaling


@dataclass(frozen=True)
class Columns:
    """The number of columns of X, and their names where they have any, as scikit-learn would keep them.

    `layout`: which of the columns that the model sees belong together, and which are standardised.
    """

    n_features: int
    names: NDArray[np.object_] | None
    layout: FeatureLayout

    @classmethod
    def of_source(cls, source: Source) -> "Columns":
        names = source.feature_names
        return cls(source.n_features, None if names is None else np.array(names, dtype=object), source.layout)

    @classmethod
    def of_numbers(cls, estimator: Any) -> "Columns":
        """The columns of a matrix that scikit-learn has looked at."""
        n_features = estimator.n_features_in_
        return cls(n_features, getattr(estimator, "feature_names_in_", None), FeatureLayout.plain(n_features))


@dataclass(frozen=True)
class Fitted:
    """All that a fit or an update leaves behind, assigned at once: an interrupt leaves the model before or after.

    `target` is the name of the column of y, where it has one; `batches` are ids of batches that were added. `given` is
    what the user gave to the fit, while the model is that of these rows: no copy of it, and copies do not have it.
    `calibration` None: forecasts are those of the model itself. `digest` tells which rows are in the model; None:
    nobody knows, because they were read in passes or on workers.
    """

    model: Any
    scaling: Scaling
    info: dict[str, Any]
    n_samples: int
    columns: Columns
    target: str | None = None
    batches: tuple[str, ...] = ()
    calibration: Calibration | None = None
    given: Any = field(default=None, repr=False, compare=False)
    digest: RowDigest | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "given": None}
