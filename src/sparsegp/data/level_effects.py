"""Categories of many levels as points on a line: what the rows of a level say of the target, besides other columns.

y is regressed on the numbers of the other columns; the mean of what is left is the effect of a level. It is shrunk as
far as chance explains the differences between levels (empirical Bayes), so a level of few rows is near zero. The effect
is a function of the level alone: a row is encoded alike in a fit, an update, and when it is forgotten.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsegp.data.codes import Array, Code, Embedding

RIDGE = 1e-6


def has_effects(code: Code) -> bool:
    """Whether the points of the column are effects, not ranks."""
    return isinstance(code, Embedding) and code.kind == "category"


@dataclass(frozen=True)
class EffectSums:
    """Sums of weighted products of z = (1, x, y), of all rows, and of weighted z by the level of each column."""

    products: Array
    levels: tuple[Array, ...]

    @classmethod
    def of(
        cls, codes: Sequence[Embedding], column: Callable[[str], Any], X: Array, y: Array, weight: Array | None
    ) -> "EffectSums":
        """Of some rows. X is about a centre and of some scale, the same for all of them."""
        z = np.column_stack([np.ones(len(y)), X, y])
        weighted = z if weight is None else z * weight[:, None]
        return cls(
            weighted.T @ z, tuple(_sums_by(code.places(column(code.name)), weighted, code.n_places) for code in codes)
        )

    def __add__(self, other: "EffectSums") -> "EffectSums":
        levels = zip(self.levels, other.levels, strict=True)
        return EffectSums(self.products + other.products, tuple(a + b for a, b in levels))

    def effects(self, codes: Sequence[Embedding]) -> tuple[Embedding, ...]:
        """The codes with the effects of their levels."""
        inner, target = self.products[:-1, :-1], self.products[:-1, -1]
        ridge = RIDGE * np.diag(np.diag(inner) + RIDGE * inner[0, 0])
        slopes = np.linalg.solve(inner + ridge, target)
        left = float(self.products[-1, -1] - 2.0 * slopes @ target + slopes @ inner @ slopes)
        return tuple(
            _with_points(code, _shrunk(sums[:, 0], sums[:, -1] - sums[:, :-1] @ slopes, max(left, 0.0)))
            for code, sums in zip(codes, self.levels, strict=True)
        )


def _sums_by(place: Any, weighted: Array, n_places: int) -> Array:
    """Sums of the lines of each place."""
    columns = [np.bincount(place, weights=column, minlength=n_places) for column in weighted.T]
    return np.column_stack(columns)


def _shrunk(size: Array, total: Array, left: float) -> Array:
    """The mean of each level, n/(n + noise/between) of it: the variance between levels is found by moments."""
    met = size > 0
    mean = np.divide(total, size, out=np.zeros_like(total), where=met)
    n, noise = float(size.sum()), left / max(float(size.sum()), 1.0)
    spread = n - float(np.square(size).sum()) / max(n, 1.0)
    between = (float(size @ np.square(mean)) - (met.sum() - 1) * noise) / max(spread, 1e-300)
    if between <= 0.0:
        return np.zeros_like(mean)
    return np.where(met, mean * between / (between + noise / np.where(met, size, 1.0)), 0.0)


def _with_points(code: Embedding, effects: Array) -> Embedding:
    n_levels = len(code.levels)
    return replace(
        code,
        points=tuple(effects[:n_levels].tolist()),
        centre=float(effects[n_levels]),
        missing=None if code.missing is None else float(effects[n_levels + 1]),
    )
