"""Coverage where it matters: how many targets lie inside their interval, by parts of the rows that a user can name.

Parts are the values or deciles of each column, of the forecast and of its std. An interval may be right on average and
wrong in each part.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.special import betainc, ndtri

from sparsegp import metrics
from sparsegp.core.predictive import Array, Predictive

COVERAGE = 0.95
FORECAST, FORECAST_STD = "the forecast", "the std of the forecast"
LEAST_PIT = 1e-4


@dataclass(frozen=True)
class Honesty:
    """Whether intervals hold as many of all rows as they promise, up to chance.

    `covered` is the share of rows inside the 95% interval. `error` is the mean distance over all levels between what
    is promised and what is held, and `excess` the mean of held minus promised: above zero, intervals are too wide.
    """

    n_rows: int
    covered: float
    error: float
    excess: float

    @classmethod
    def of(cls, forecast: Predictive, y: Array) -> "Honesty":
        distance = np.abs(2.0 * forecast.cdf(y) - 1.0)
        levels = np.asarray(metrics.CALIBRATION_LEVELS)
        gap = (distance[:, None] <= levels).mean(axis=0) - levels
        return cls(len(y), float(np.mean(distance <= COVERAGE)), float(np.abs(gap).mean()), float(gap.mean()))

    @property
    def _chance(self) -> float:
        return max(0.03, 3.0 * math.sqrt(COVERAGE * (1.0 - COVERAGE) / self.n_rows))

    @property
    def _is_off(self) -> bool:
        return self.error > max(0.05, 2.0 / math.sqrt(self.n_rows))

    @property
    def is_narrow(self) -> bool:
        """Whether the 95% interval holds too few rows: the worst that can be wrong."""
        return self.covered < COVERAGE - self._chance

    @property
    def is_short(self) -> bool:
        """Whether the intervals of other levels hold too few rows."""
        return not self.is_narrow and self._is_off and self.excess < 0.0

    @property
    def is_wide(self) -> bool:
        """Whether intervals hold more rows than they promise."""
        return not self.is_narrow and (self.covered > COVERAGE + self._chance or (self._is_off and self.excess >= 0.0))


@dataclass(frozen=True)
class SegmentOptions:
    """How rows are cut into parts, and when a part is said to fail."""

    coverage: float = COVERAGE
    n_ranges: int = 10
    few_values: int = 10
    most_values: int = 31
    """Whole numbers and categories are taken value by value up to so many values: hours, months, days of a month."""
    fewest_rows: int = 20
    """A part with fewer rows is shown, but nothing is said of it."""
    level: float = 0.01
    """Chance that honest intervals fail anywhere, all parts together."""
    material: float = 0.03
    """A smaller difference of coverage is not worth a word, however sure it is."""
    n_neighbours: int = 32
    neighbour_rows: int = 1000
    """Rows whose neighbours tell how far errors agree."""


@dataclass(frozen=True)
class Segment:
    """Rows with something in common, and how many of their targets lie inside the interval of nominal coverage.

    `independence` times the rows is the number of independent rows that would say as much.
    """

    quantity: str
    part: str
    n_rows: int
    n_inside: int
    expected: float
    independence: float = 1.0

    @property
    def name(self) -> str:
        """As in "carat between 1.2 and 1.5" or "month = 3"."""
        return f"{self.quantity} {self.part}"

    @property
    def coverage(self) -> float:
        """Share of the rows inside."""
        return self.n_inside / self.n_rows

    @property
    def error(self) -> float:
        """Standard deviation of the share if the intervals are honest: binomial."""
        return math.sqrt(self.expected * (1.0 - self.expected) / (self.independence * self.n_rows))

    @property
    def is_narrow(self) -> bool:
        """Whether fewer rows are inside than promised."""
        return self.coverage < self.expected

    @cached_property
    def p_value(self) -> float:
        """Chance that honest intervals are as far off as these, on either side."""
        inside, outside = self.independence * self.n_inside, self.independence * (self.n_rows - self.n_inside)
        # the tails of the binomial distribution as beta integrals, which need no whole numbers
        fewer = betainc(outside, inside + 1.0, 1.0 - self.expected) if outside else 1.0
        more = betainc(inside, outside + 1.0, self.expected) if inside else 1.0
        return float(min(1.0, 2.0 * fewer, 2.0 * more))

    def __str__(self) -> str:
        return f"{self.name}: {self.coverage:.1%} of {self.n_rows:,} rows inside (±{self.error:.1%} by chance)"


@dataclass(frozen=True)
class Segments:
    """All parts of some rows, by quantity, and which of them fail."""

    parts: tuple[Segment, ...]
    options: SegmentOptions = field(default_factory=SegmentOptions)

    @classmethod
    def of(
        cls,
        forecast: Predictive,
        y: Array,
        columns: Mapping[str, NDArray[Any]],
        options: SegmentOptions | None = None,
    ) -> "Segments":
        """Cut rows by their columns (numbers, or categories of any kind), by the forecast and by its std."""
        chosen = options or SegmentOptions()
        lower, upper = forecast.interval(chosen.coverage)
        inside = (lower <= y) & (y <= upper)
        independence = _independence(forecast, y, columns, chosen)
        quantities = [*columns.items(), (FORECAST, forecast.mean), (FORECAST_STD, forecast.std)]
        parts = [
            Segment(quantity, part, int(rows.sum()), int(inside[rows].sum()), chosen.coverage, independence)
            for quantity, values in quantities
            for part, rows in cut(values, chosen)
        ]
        return cls(tuple(parts), chosen)

    @property
    def tested(self) -> list[Segment]:
        """Parts with enough rows to say something."""
        return [part for part in self.parts if part.n_rows >= self.options.fewest_rows]

    @cached_property
    def failing(self) -> list[Segment]:
        """Parts that hold too few or too many rows, allowing for the number of parts looked at; the worst first.

        Holm's method: the k-th smallest of m chances is held against level/(m - k). Too narrow is worse than too wide.
        """
        tested = sorted(self.tested, key=lambda part: part.p_value)
        limits = self.options.level / np.arange(len(tested), 0, -1)
        rejected = np.cumprod([part.p_value < limit for part, limit in zip(tested, limits, strict=True)])
        failing = [
            part
            for part, is_rejected in zip(tested, rejected, strict=True)
            if is_rejected and abs(part.coverage - part.expected) > self.options.material
        ]
        return sorted(failing, key=lambda part: not part.is_narrow)

    @property
    def worst(self) -> Segment | None:
        """The part that fails most clearly; None if chance explains all of them."""
        return self.failing[0] if self.failing else None

    @property
    def by_quantity(self) -> dict[str, list[Segment]]:
        """The parts of each quantity, in order."""
        found: dict[str, list[Segment]] = {}
        for part in self.parts:
            found.setdefault(part.quantity, []).append(part)
        return found

    def __str__(self) -> str:
        failing = set(self.failing)
        lines = [f"{part}{'  <- fails' if part in failing else ''}" for part in self.parts]
        return "\n".join([f"Coverage of the {100 * self.options.coverage:g}% interval", *lines])


def _independence(
    forecast: Predictive, y: Array, columns: Mapping[str, NDArray[Any]], options: SegmentOptions
) -> float:
    """Independent rows per row: where f is uncertain, its error is much the same at neighbouring rows.

    If the errors of two rows have the correlation r, their misses have r^2 or so, and r is at most the share s of f in
    the variance. So n rows say as much as n/(1 + sum over neighbours of s r) independent ones, or more. Intervals of
    the wrong width do not count here: r is about the signs of errors, s about f.
    """
    numbers = [values for values in columns.values() if np.issubdtype(values.dtype, np.number) and np.ptp(values) > 0]
    n_neighbours = min(options.n_neighbours, len(y) - 1)
    if not numbers or n_neighbours < 1:
        return 1.0
    scores = ndtri(np.clip(forecast.cdf(y), LEAST_PIT, 1.0 - LEAST_PIT))
    places = np.column_stack([values / values.std() for values in numbers])
    chosen = np.arange(0, len(y), math.ceil(len(y) / options.neighbour_rows))
    nearest = cKDTree(places).query(places[chosen], k=n_neighbours + 1)[1]
    is_other = nearest != chosen[:, None]
    share = (forecast.f_std[chosen] / forecast.std[chosen]) ** 2
    agreement = share @ (is_other * scores[chosen, None] * scores[nearest]) / len(chosen)
    agreement /= max(1.0, np.mean(scores**2))
    by_chance = share.mean() / math.sqrt(len(chosen))
    return float(1.0 / (1.0 + np.clip(agreement - by_chance, 0.0, np.mean(share**2)).sum()))


def cut(values: NDArray[Any], options: SegmentOptions) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Names and rows of the parts of one quantity; a constant and a handful of rows have none."""
    if values.dtype.kind == "O":  # text may have gaps, which cannot be sorted among it
        values = values.astype(str)
    distinct, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    n_ranges = min(options.n_ranges, len(values) // options.fewest_rows)
    if len(distinct) < 2 or n_ranges < 2:
        return
    is_number = np.issubdtype(distinct.dtype, np.number)
    if is_number and len(distinct) > _most_values(distinct, options):
        yield from _ranges(values, n_ranges)
        return
    shown = np.sort(np.argsort(-counts, kind="stable")[: options.most_values])
    labels = _labels(distinct) if is_number else [str(value) for value in distinct]
    for code in shown:
        yield f"= {labels[code]}", codes == code
    if len(shown) < len(distinct):
        yield "with a rarer value", ~np.isin(codes, shown)


def _most_values(distinct: NDArray[Any], options: SegmentOptions) -> int:
    is_whole = bool((distinct == np.round(distinct)).all())
    return options.most_values if is_whole else options.few_values


def _ranges(values: NDArray[Any], n_ranges: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Ranges with about equally many rows: above an edge, up to the next. Repeated values are not torn apart."""
    levels = np.arange(1, n_ranges) / n_ranges
    edges = np.unique(np.quantile(values, levels, method="inverted_cdf"))
    edges = edges[edges < values.max()]
    if not len(edges):
        return
    place, labels = np.searchsorted(edges, values, side="left"), _labels(edges)
    yield f"up to {labels[0]}", place == 0
    for k, (low, high) in enumerate(pairwise(labels), start=1):
        yield f"between {low} and {high}", place == k
    yield f"above {labels[-1]}", place == len(edges)


def _labels(numbers: NDArray[Any]) -> list[str]:
    """Whole numbers as they are; of others as few digits as tell them apart, three at least."""
    if (numbers == np.round(numbers)).all():
        return [f"{number:.15g}" for number in numbers]
    labels: list[str] = []
    for digits in range(3, 18):
        labels = [f"{number:.{digits}g}" for number in numbers]
        if len(set(labels)) == len(labels):
            break
    return labels
