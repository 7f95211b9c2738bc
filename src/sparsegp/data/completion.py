"""What a missing number may be, from the other numbers of its row, where a model was fitted to complete columns.

Columns go together as a Gaussian copula: each is a monotone function of a standard normal score, and the scores have a
correlation. The scores of missing numbers, given those of the others, are Gaussian, too; some of their values stand for
all. Needs numpy alone, because models are served without the rest.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from sparsegp.data.batches import Array
from sparsegp.errors import InputError

KNOTS = np.linspace(-3.0, 3.0, 65)
"""Scores at which the values of a column are known."""
SHARES = np.array([NormalDist().cdf(knot) for knot in KNOTS])
"""Of the rows below each of them."""
N_DRAWS = 31
"""How many values stand for all that a missing number may be: a prime, so that its multiples are a lattice."""
MULTIPLIER, EXPONENTS = 12, (1, 7, 11, 13, 17, 19, 23, 29)
MOST_ROWS = 10_000
MOST_COLUMNS = 256
"""With more columns each is taken alone: there are as many correlations as pairs of columns."""


@dataclass(frozen=True, eq=False)
class Completion:
    """`values` [knots, columns]: what each column is at the scores `KNOTS`. `correlation` of the scores; None: none."""

    values: Array
    correlation: Array | None

    @classmethod
    def of(cls, X: Array) -> "Completion":
        """Of rows without gaps, or of evenly spaced ones where there are many."""
        rows = X[:: -(-len(X) // MOST_ROWS)]
        found = cls(np.quantile(rows, SHARES, axis=0, method="inverted_cdf"), None)
        return found if rows.shape[1] > MOST_COLUMNS else cls(found.values, _correlation(found.scores(rows)))

    @property
    def n_columns(self) -> int:
        return int(self.values.shape[1])

    def scores(self, X: Array) -> Array:
        """The score of each number; of a value that a column has at several knots, that of its middle row."""
        out = np.empty_like(X)
        for d, knots in enumerate(self.values.T):
            first, last = (np.searchsorted(knots, X[:, d], side) for side in ("left", "right"))
            share = 0.5 * (SHARES[np.minimum(first, len(KNOTS) - 1)] + SHARES[np.maximum(last - 1, 0)])
            middle = np.interp(share, SHARES, KNOTS)
            out[:, d] = np.where(last > first, middle, np.interp(X[:, d], knots, KNOTS))
        return out

    def completed(self, X: Array) -> "Completed":
        """The rows without gaps, and those with gaps several times each, with numbers in place of NaN."""
        gaps = np.isnan(X)
        if not gaps.any():
            return Completed.of_whole(X)
        is_whole = ~gaps.any(axis=1)
        return Completed(X[is_whole], self._drawn(X[~is_whole], gaps[~is_whole]), is_whole)

    def _drawn(self, X: Array, gaps: Any) -> Array:
        """N_DRAWS lines for each row, one after another."""
        scores = np.where(gaps, 0.0, self.scores(np.where(gaps, 0.0, X)))
        out = np.repeat(X[:, None, :], N_DRAWS, axis=1)
        patterns, pattern_of = np.unique(gaps, axis=0, return_inverse=True)
        for k, pattern in enumerate(patterns):
            rows, columns = np.flatnonzero(pattern_of == k), np.flatnonzero(pattern)
            mean, root = self._given(scores[rows], pattern)
            drawn = mean[:, None, :] + normal_points(len(columns)) @ root.T
            place = np.rint((drawn - KNOTS[0]) / (KNOTS[1] - KNOTS[0])).clip(0, len(KNOTS) - 1).astype(np.int64)
            out[np.ix_(rows, np.arange(N_DRAWS), columns)] = self.values[place, columns]
        return out.reshape(-1, X.shape[1])

    def _given(self, scores: Array, pattern: Any) -> tuple[Array, Array]:
        """Mean of missing scores given the others, and a root of their covariance."""
        if self.correlation is None:
            return np.zeros((len(scores), int(pattern.sum()))), np.eye(int(pattern.sum()))
        known = ~pattern
        across = self.correlation[np.ix_(pattern, known)]
        weights = np.linalg.solve(self.correlation[np.ix_(known, known)], across.T)
        cov = self.correlation[np.ix_(pattern, pattern)] - across @ weights
        root: Array = np.asarray(np.linalg.cholesky(cov), dtype=np.float64)
        return scores[:, known] @ weights, root


@dataclass(frozen=True, eq=False)
class Completed:
    """`whole`: rows that came without gaps. `drawn`: N_DRAWS lines for each of the others. `is_whole` tells which."""

    whole: Array
    drawn: Array
    is_whole: Any

    @classmethod
    def of_whole(cls, X: Array) -> "Completed":
        """Rows none of which has gaps."""
        return cls(X, X[:0], np.ones(len(X), dtype=bool))

    @property
    def is_complete(self) -> bool:
        return not len(self.drawn)

    def pooled(self, whole: Array, drawn: Array) -> Array:
        """One number for each row as it came, of the numbers of `whole` and `drawn`: the mean of all lines of a row."""
        out = np.empty(len(self.is_whole))
        out[self.is_whole], out[~self.is_whole] = whole, drawn.reshape(-1, N_DRAWS).mean(axis=1)
        return out

    def labels(self, labels: Any) -> tuple[Any, Any]:
        """What rows are labelled with, for `whole` and `drawn`."""
        if labels is None:
            return None, None
        given = np.asarray(labels)
        if given.shape != self.is_whole.shape:
            raise InputError(
                f"blocks= must have one label for each of the {len(self.is_whole)} rows; got {given.shape}."
            )
        return given[self.is_whole], np.repeat(given[~self.is_whole], N_DRAWS)


def normal_points(n_columns: int) -> Array:
    """Points [N_DRAWS, columns] that stand for a standard normal: of each column every N_DRAWS-th part, once.

    A lattice about the origin and symmetric, of powers of MULTIPLIER. Half of them are all there are besides those with
    the other sign, which would undo each other; further columns are powers of the numbers of the lattice.
    """
    half, place = N_DRAWS // 2, np.empty((N_DRAWS, n_columns), dtype=np.int64)
    for column in range(n_columns):
        factor, exponent = pow(MULTIPLIER, column, N_DRAWS), EXPONENTS[column // half % len(EXPONENTS)]
        place[:, column] = [(pow(k * factor, exponent, N_DRAWS) + half) % N_DRAWS for k in range(N_DRAWS)]
    score = np.array([NormalDist().inv_cdf((k + 0.5) / N_DRAWS) for k in range(N_DRAWS)])
    points: Array = score[place]
    return points


def _correlation(scores: Array) -> Array:
    """Shrunk by as much as rows are few beside columns, so that it is positive definite."""
    n_rows, n_columns = scores.shape
    centred = scores - scores.mean(axis=0)
    spread = np.sqrt(np.einsum("nd,nd->d", centred, centred))
    unit = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0.0)
    found: Array = (unit.T @ unit) * (n_rows / (n_rows + n_columns))
    np.fill_diagonal(found, 1.0)
    return found


def is_correlation(matrix: Array) -> bool:
    """Whether every conditional distribution of scores with this correlation exists."""
    try:
        return bool(np.allclose(matrix.diagonal(), 1.0)) and math.isfinite(np.linalg.cholesky(matrix).sum())
    except np.linalg.LinAlgError:
        return False
