"""The survey of a source whose shares are read on workers: facts are joined here, rows of the sample fetched."""

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from sparsegp.errors import InputError
from sparsegp.sources import Batch, Scan


def sample_sizes(n_rows: Sequence[int], capacity: int, rng: np.random.Generator) -> list[int]:
    """Rows to draw from each share so that the whole is a uniform sample of all rows."""
    if sum(n_rows) <= capacity:
        return list(n_rows)
    return [int(size) for size in rng.multivariate_hypergeometric(n_rows, capacity, method="marginals")]


def joined_survey(parts: Sequence[Scan], n_weightless: int, samples: Sequence[Batch]) -> Scan:
    """The survey of all rows from those of the shares that have any."""
    if not parts:
        raise InputError(
            "Every sample_weight is zero: there is nothing to learn from."
            if n_weightless
            else "The data have no rows: every file, row group or partition is empty."
        )
    n_rows = sum(part.n_rows for part in parts)
    least = [part.least_noise_var for part in parts if part.least_noise_var is not None]
    means = [part.mean_noise_var * part.n_rows for part in parts if part.mean_noise_var is not None]
    return Scan(
        n_rows,
        n_weightless,
        reduce(add, (part.inputs for part in parts)),
        reduce(add, (part.targets for part in parts)),
        Batch.concat(samples),
        min(least, default=None),
        sum(means) / n_rows if means else None,
    )
