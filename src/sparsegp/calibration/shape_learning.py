"""How the shape of forecasts is learned: standardised residuals, and as many parts of a mixture as they call for."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.calibration.mixture import Array, Shape, normal_cdf

Whole = NDArray[np.int64]
Way = Callable[[Shape, float], Shape]

SCORES = np.linspace(-9.0, 0.0, 2001)
LOG_TAILS = np.log(normal_cdf(SCORES))
FACTOR_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Start:
    """A mixture to start from and how it is kept from following single rows.

    Weights, locations and widths are shrunk as if by a few more residuals, and no part is narrower than `least_width`.
    A standard normal residual has the size 1. The mixture is chosen over the one before where its left-out density is
    better by `errors_better` standard errors.
    """

    locations: tuple[float, ...]
    widths: tuple[float, ...]
    fewest: int
    errors_better: float
    pseudo_weight: float
    pseudo_width: float
    least_width: float
    pseudo_location: float = 5.0

    def shape(self, unit: float) -> Shape:
        n = len(self.widths)
        return Shape(np.full(n, 1.0 / n), unit * np.array(self.locations), unit * np.array(self.widths))


@dataclass(frozen=True)
class ShapeOptions:
    """Which mixtures are tried, from few parameters to many, and which coverages must hold, within `errors_short`
    standard errors. A mixture that holds too much by as many gives way to any that is better.
    The size of few residuals is known as if by `pseudo_unit` more of size 1.
    `tail` of a residual is in a part twice as wide as the farthest of them, or as `least_tail`.

    Residuals that are nearly equal, by `cell` of asinh(r/`cell_centre`), are counted together.
    """

    starts: tuple[Start, ...] = (
        Start((0.0, 0.0), (0.6, 1.8), 30, 0.0, pseudo_weight=1.0, pseudo_width=8.0, least_width=0.1),
        Start(
            (0.0, 0.0, 0.0, 0.0, 0.8, -0.8, 2.5, -2.5),
            (0.15, 0.4, 1.0, 3.0, 0.7, 0.7, 1.2, 1.2),
            200,
            1.0,
            pseudo_weight=0.5,
            pseudo_width=2.0,
            least_width=0.03,
        ),
        # targets within limits leave residuals with a flat top and no tails
        Start(
            tuple(0.31 * k for k in range(-5, 6)),
            (0.2,) * 11,
            200,
            1.0,
            pseudo_weight=0.5,
            pseudo_width=2.0,
            least_width=0.03,
        ),
    )
    pseudo_unit: float = 20.0
    tail: float = 0.1
    least_tail: float = 3.0
    n_folds: int = 5
    iterations: int = 300
    tolerance: float = 1e-6
    coverages: tuple[float, ...] = (0.8, 0.95)
    errors_short: float = 1.5
    most_widening: float = 3.0
    cell: float = 0.02
    cell_centre: float = 0.1


# enough to keep heavy tails, which a calibration will mend, from deciding between models
QUICK = ShapeOptions(starts=ShapeOptions().starts[:1], iterations=100, tolerance=1e-5)


@dataclass(frozen=True)
class LearnedShape:
    """A shape, the log density of each residual under a shape that was not learned from it, what that gains over the
    standard normal on average, by how much the shape was widened, and the fraction of residuals within the central 95%
    of a shape that was not learned from them."""

    shape: Shape
    densities: Array
    gain: float
    widened: float
    coverage_95: float


def learned(
    r: Array,
    rng: np.random.Generator,
    weight: Array | None = None,
    options: ShapeOptions | None = None,
    group: Whole | None = None,
) -> LearnedShape:
    """The simplest of the mixtures whose density of left-out residuals is not clearly beaten.

    Coverage is looked at on residuals that the shape was not learned from. Where it fails, the shape is widened.
    Residuals of a `group` are left out together: of equal rows, one would tell where the others are.
    """
    options = options or ShapeOptions()
    if len(r) < min((start.fewest for start in options.starts), default=1):
        within = float(np.average(np.abs(r) <= _score_of(0.95), weights=weight)) if len(r) else math.nan
        return LearnedShape(Shape.gaussian(), Shape.gaussian().log_density(r), 0.0, 1.0, within)
    cells, unit = _Cells.of(r, weight, group, rng, options), _unit(r, options)
    plain = Shape.gaussian()
    best = _widened(plain, [plain] * len(cells.folds), cells, options)
    for start in options.starts:
        if len(r) < start.fewest:
            break
        shape, *left_out = _likeliest(cells.values, np.stack([cells.count, *cells.rests]), start, unit, options)
        found = _widened(shape, left_out, cells, options)
        gain, error = cells.gain(found.density, best.density)
        # a shape that was stretched until one interval holds enough may hold too much in another
        if gain > (0.0 if best.holds_too_much(cells, options) else start.errors_better * error):
            best = found
    gain, _ = cells.gain(best.density, plain.log_density(cells.values))
    return LearnedShape(best.shape, cells.of_rows(best.density), gain, best.factor, best.coverage_95)


def calibrated_log_density(
    y: Array,
    mean: Array,
    std: Array,
    rng: np.random.Generator,
    farthest: float = 50.0,
    options: ShapeOptions | None = None,
) -> Array:
    """Of each row, with a shape learned from the others: what forecasts are worth once they are calibrated."""
    r = np.clip((y - mean) / std, -farthest, farthest)
    return learned(r, rng, options=options).densities - np.log(std)


@dataclass(frozen=True)
class _Cells:
    """Residuals in cells: `folds` counts those of each random fold in each cell, an array [folds, cells].

    `place` has the fold and the cell of each residual.
    """

    values: Array
    folds: Array
    place: tuple[Any, Any]

    @classmethod
    def of(
        cls,
        r: Array,
        weight: Array | None,
        group: Whole | None,
        rng: np.random.Generator,
        options: ShapeOptions,
    ) -> "_Cells":
        cell = np.floor(np.arcsinh(r / options.cell_centre) / options.cell)
        _, index = np.unique(cell, return_inverse=True)
        count = np.bincount(index)
        fold = _folds(np.arange(len(r)) if group is None else group, rng, options.n_folds)
        folds = np.zeros((int(fold.max()) + 1, len(count)))
        np.add.at(folds, (fold, index), 1.0 if weight is None else weight)
        return cls(np.bincount(index, weights=r) / count, folds, (fold, index))

    @property
    def count(self) -> Array:
        total: Array = self.folds.sum(axis=0)
        return total

    @property
    def rests(self) -> Iterator[Array]:
        """What is left without each fold."""
        yield from self.count - self.folds

    def of_rows(self, values: Array) -> Array:
        """What an array [folds, cells] says of each residual."""
        of_rows: Array = values[self.place]
        return of_rows

    def mean(self, values: NDArray[Any]) -> float:
        return float((self.folds * values).sum() / self.folds.sum())

    def gain(self, density: Array, other: Array) -> tuple[float, float]:
        """By how much the mean log density is better, and the standard error of that."""
        gain, n = density - other, self.folds.sum()
        mean = self.mean(gain)
        return mean, math.sqrt(self.mean((gain - mean) ** 2) / max(n - 1.0, 1.0))


def _folds(group: Whole, rng: np.random.Generator, n_folds: int) -> Whole:
    """The fold of each row: that of its group, where there are groups enough."""
    n_groups = int(group.max()) + 1
    if n_groups < n_folds:
        return _folds(np.arange(len(group)), rng, min(n_folds, len(group)))
    folds: Whole = (rng.permutation(n_groups) % n_folds)[group]
    return folds


def _unit(r: Array, options: ShapeOptions) -> float:
    """The size of residuals, whatever their tails: that of a Gaussian with the same median size, near 1 for few."""
    size, pseudo = float(np.median(np.abs(r))) / 0.6745 or 1.0, options.pseudo_unit
    return math.sqrt((len(r) * size**2 + pseudo) / (len(r) + pseudo))


def _likeliest(r: Array, counts: Array, start: Start, unit: float, options: ShapeOptions) -> list[Shape]:
    """For each line of counts the mixture with the largest penalised likelihood near the start, by expectation and
    maximisation; all of them continue until none improves."""
    n, first, pseudo = counts.sum(axis=1), start.shape(unit), start.pseudo_width
    weight, location, width = (np.tile(part, (len(n), 1)) for part in (first.weight, first.location, first.width))
    before = np.full(len(n), -math.inf)
    for _ in range(options.iterations):
        density, part = Shape(weight[:, None], location[:, None], width[:, None]).split(r)
        now = (counts * density).sum(axis=1) / np.maximum(n, 1.0)
        if (now - before < options.tolerance).all():
            break
        before = now
        part *= counts[..., None]
        held = part.sum(axis=1)
        weight = (held + start.pseudo_weight) / (n + start.pseudo_weight * held.shape[1])[:, None]
        if any(start.locations):
            location = r @ part / (held + start.pseudo_location)
        # sum of p (r - m)^2, with its digits: m is near the mean of the part
        spread = ((r[:, None] - location[:, None]) ** 2 * part).sum(axis=1)
        var = (spread + pseudo * first.width**2) / (held + pseudo)
        width = np.sqrt(np.maximum(var, (start.least_width * unit) ** 2))
    found = (Shape(*parts).centred() for parts in zip(weight, location, width, strict=True))
    return [_with_tail(shape, r, total, unit, options) for shape, total in zip(found, n.tolist(), strict=True)]


def _with_tail(shape: Shape, r: Array, n: float, unit: float, options: ShapeOptions) -> Shape:
    """A little of a wide part, for rows farther out than any residual so far."""
    share, width = options.tail / (n + options.tail), 2.0 * max(float(np.abs(r).max()), options.least_tail * unit)
    return Shape(
        np.append((1.0 - share) * shape.weight, share), np.append(shape.location, 0.0), np.append(shape.width, width)
    )


def _scores(shape: Shape, r: Array) -> Array:
    """The size of the standard normal value that is as far out as each residual."""
    tail = np.minimum(shape.cdf(r), shape.mirrored().cdf(-r))
    with np.errstate(divide="ignore"):
        score: Array = -np.interp(np.log(tail), LOG_TAILS, SCORES)
    return score


@dataclass(frozen=True)
class _Widened:
    """A shape with intervals that hold what they should, the factor, and for rows left out their log density [folds,
    cells] and the fraction within the central 95%."""

    shape: Shape
    factor: float
    density: Array
    coverage_95: float

    def holds_too_much(self, cells: _Cells, options: ShapeOptions) -> bool:
        """Whether more rows are within the central 95% than by chance."""
        error = math.sqrt(0.95 * 0.05 / float(cells.folds.sum()))
        return self.coverage_95 > 0.95 + options.errors_short * error


WAYS: tuple[Way, ...] = (Shape.widened, Shape.stretched)
"""How a shape becomes wider: spikes stay where they are, or a flat top stays flat."""


def _widened(shape: Shape, left_out: list[Shape], cells: _Cells, options: ShapeOptions) -> _Widened:
    """In the way that keeps more of the density. `left_out` are the shapes learned without each fold."""
    score = np.stack([_scores(one, cells.values) for one in left_out])
    found = []
    for way in WAYS:
        factor = _widening(shape, way, score, cells, options)
        others = [way(one, factor) for one in left_out]
        density = np.stack([one.log_density(cells.values) for one in others])
        within = cells.mean((np.stack([_scores(one, cells.values) for one in others]) <= _score_of(0.95)) * 1.0)
        found.append(_Widened(way(shape, factor), factor, density, within))
        if factor == 1.0:
            break
    return max(found, key=lambda one: cells.mean(one.density))


def _score_of(coverage: float) -> float:
    """The standard normal value at the end of a central interval."""
    return -float(np.interp(math.log(0.5 - 0.5 * coverage), LOG_TAILS, SCORES))


def _widening(shape: Shape, way: Way, score: Array, cells: _Cells, options: ShapeOptions) -> float:
    """The factor with which central intervals hold as many residuals as they should, within chance.

    `score` says how far out a residual of each cell is, as the size of a standard normal value, fold by fold.
    """
    order = score.ravel().argsort()
    sizes, below = score.ravel()[order], cells.folds.ravel()[order].cumsum()
    n, factor = float(below[-1]), 1.0
    for coverage in options.coverages:
        wanted = _score_of(coverage)
        held = cells.mean((score <= wanted).astype(np.float64))
        if held < coverage - options.errors_short * math.sqrt(coverage * (1.0 - coverage) / n):
            enough = float(sizes[int(np.searchsorted(below, min(n, math.ceil((n + 1.0) * coverage))))])
            factor = max(factor, _enough(shape, way, shape.from_normal(np.array([-enough, enough])), coverage, options))
    # few residuals tell little about a tail
    return 1.0 + (factor - 1.0) * n / (n + options.pseudo_unit)


def _enough(shape: Shape, way: Way, ends: Array, coverage: float, options: ShapeOptions) -> float:
    """The factor with which no more than `coverage` is between the ends, by bisection."""
    low, high = 1.0, options.most_widening
    while high - low > FACTOR_TOLERANCE:
        middle = 0.5 * (low + high)
        below, above = way(shape, middle).cdf(ends)
        low, high = (middle, high) if above - below > coverage else (low, middle)
    return high
