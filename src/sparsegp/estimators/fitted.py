"""What a fit leaves behind in an estimator."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.data import Encoding, FeatureLayout, Source
from sparsegp.data.codes import NUMBER
from sparsegp.data.completion import Completion
from sparsegp.data.digest import RowDigest

if TYPE_CHECKING:
    from sparsegp.calibration.calibration import Calibration
    from sparsegp.fit.scaling import Scaling


@dataclass(frozen=True)
class Columns:
    """The number of columns of X, and their names where they have any, as scikit-learn would keep them.

    `layout`: which of the numbers that the model sees belong together, and which are standardised. `encoding`: how the
    columns become these numbers; None where they are the same.
    """

    n_features: int
    names: NDArray[np.object_] | None
    layout: FeatureLayout
    encoding: Encoding | None = None
    completion: Completion | None = None
    """What a missing number may be, of columns of numbers without gaps; None: no number may be missing."""
    origin: Encoding | None = None
    """Of columns that are the numbers of an encoding: that encoding."""

    @classmethod
    def of_source(cls, source: Source) -> "Columns":
        names, encoding = source.feature_names, source.encoding
        n_features = source.n_features if encoding is None else len(encoding.codes)
        return cls(n_features, None if names is None else np.array(names, dtype=object), source.layout, encoding)

    @classmethod
    def of_numbers(cls, estimator: Any) -> "Columns":
        """The columns of a matrix that scikit-learn has looked at."""
        n_features = estimator.n_features_in_
        return cls(n_features, getattr(estimator, "feature_names_in_", None), FeatureLayout.plain(n_features))

    @property
    def as_numbers(self) -> "Columns":
        """The numbers of the encoding as columns of their own."""
        if self.encoding is None:
            return self
        labels = np.array(self.encoding.labels, dtype=object)
        return Columns(len(labels), labels, self.layout, origin=self.encoding)

    @property
    def words(self) -> dict[str, str] | None:
        """The kind of each column in plain words; None for arrays of numbers."""
        known = self.encoding or self.origin
        if known is not None:
            return known.words
        return None if self.names is None else dict.fromkeys(map(str, self.names), NUMBER)


@dataclass(frozen=True)
class Fitted:
    """All that a fit or an update leaves behind, assigned at once: an interrupt leaves the model before or after.

    `target` is the name of the column of y, where it has one; `batches` are ids of batches that were added. `given` is
    what the user gave to the fit, while the model is that of these rows: no copy of it, and copies do not have it.
    `calibration` None: forecasts are those of the model itself. `digest` tells which rows are in the model; None:
    nobody knows, because they were read in passes or on workers.
    """

    model: Any
    scaling: "Scaling"
    info: dict[str, Any]
    n_samples: int
    columns: Columns
    target: str | None = None
    batches: tuple[str, ...] = ()
    calibration: "Calibration | None" = None
    given: Any = field(default=None, repr=False, compare=False)
    digest: RowDigest | None = field(default=None, repr=False, compare=False)

    def updated(
        self,
        model: Any,
        info: dict[str, Any],
        n_samples: int,
        calibration: "Calibration | None",
        digest: RowDigest | None,
    ) -> "Fitted":
        """After an update. Written out, because `replace` takes several times as long, and rows may come one by one."""
        names = self.columns, self.target, self.batches
        return Fitted(model, self.scaling, info, n_samples, *names, calibration, None, digest)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "given": None}
