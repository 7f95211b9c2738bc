"""Shape and local scale of a model file as values: for the library and for serving, which has numpy alone."""

import numpy as np

from sparsegp.calibration.mixture import Shape
from sparsegp.calibration.scale import LocalScale
from sparsegp.calibration.trees import Trees
from sparsegp.errors import ModelFileError
from sparsegp.files import schema

MOST_LEVELS = 30


def restored_shape(record: schema.Calibration) -> Shape:
    same = len(record.weights) == len(record.locations) == len(record.widths)
    if not same or not abs(record.weights.sum() - 1.0) < 1e-6:
        raise ModelFileError("the parts of a calibration do not fit together")
    return Shape(record.weights, record.locations, record.widths)


def restored_scale(record: schema.LocalScale, n_columns: int) -> LocalScale:
    """Of a model with so many columns of X; mean and log std of y are two more."""
    n_trees, depth = record.columns.shape
    fits = (
        depth <= MOST_LEVELS
        and record.thresholds.shape == (n_trees, depth)
        and record.leaves.shape == (n_trees, 2**depth)
    )
    columns = record.columns.astype(np.int64)
    if not fits or not ((columns >= 0) & (columns < n_columns + 2)).all() or not record.most >= 1.0:
        raise ModelFileError(f"the local scale is not that of {n_columns} columns")
    trees = Trees(record.base, columns, record.thresholds, record.leaves)
    return LocalScale(trees, record.strength, record.most)
