"""The survey of a source whose shares are read on workers: facts are joined here, rows of the sample fetched."""

from collections.abc import Sequence

import numpy as np

from sparsegp.errors import InputError
from sparsegp.sources import Survey
from sparsegp.sources.batch import Array, Batch, Place
from sparsegp.sources.moments import Moments


def joined_moments(parts: Sequence[Moments]) -> Moments:
    """Of all parts: var = p var_1 + q var_2 + p q (mean_2 - mean_1)^2 with p, q the shares of the weight."""
    whole, *others = parts
    for part in others:
        total = whole.total + part.total
        p, q = whole.total / total, part.total / total
        # Distances between origins first: a large mean does not cancel.
        gap = (part.origin - whole.origin) + (part.offset - whole.offset)
        within = np.hypot(np.sqrt(p) * whole.std, np.sqrt(q) * part.std)
        std = np.hypot(within, np.sqrt(p * q) * np.abs(gap))
        whole = Moments(total, whole.origin, whole.offset + q * gap, std)
    return whole


def sample_sizes(n_rows: Sequence[int], capacity: int, rng: np.random.Generator) -> list[int]:
    """Rows to draw from each share so that the whole is a uniform sample of all rows."""
    if sum(n_rows) <= capacity:
        return list(n_rows)
    return [int(size) for size in rng.multivariate_hypergeometric(n_rows, capacity, method="marginals")]


def joined_survey(parts: Sequence[Survey], n_weightless: int, samples: Sequence[Batch]) -> Survey:
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
    return Survey(
        n_rows,
        n_weightless,
        joined_moments([part.inputs for part in parts]),
        joined_moments([part.targets for part in parts]),
        joined_batches(samples),
        min(least, default=None),
        sum(means) / n_rows if means else None,
    )


def joined_batches(parts: Sequence[Batch]) -> Batch:
    def column(values: Sequence[Array | None]) -> Array | None:
        present = [part for part in values if part is not None]
        return np.concatenate(present) if present else None

    X, y = np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts])
    noise, weight = column([part.noise_var for part in parts]), column([part.weight for part in parts])
    return Batch(X, y, noise, weight, Place("the sample"))
