"""Which trend a model has: the requested one or, for "auto", the one that its rows support."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegp.core.block import Block
from sparsegp.core.trend import Trend, detrended

AUTO, LINEAR, CONSTANT = "auto", "linear", "constant"
TRENDS = (AUTO, LINEAR, CONSTANT, None)


@dataclass(frozen=True)
class TrendOptions:
    """`width`: prior standard deviation of a coefficient, in standard deviations of y. "auto" looks at about
    `most_rows` rows; a plane needs at least `rows_per_column` of them, and has at most `most_columns`."""

    width: float = 10.0
    rows_per_column: int = 5
    most_columns: int = 200
    most_rows: int = 20_000


def trend_of(asked: str | None, block: Block, options: TrendOptions | None = None) -> Trend | None:
    """The requested trend. A column without two values has no part in a plane."""
    options = options or TrendOptions()
    if asked is None:
        return None
    level = Trend((), options.width)
    if asked == CONSTANT:
        return level
    plane = Trend(_varying(block.X), options.width)
    return plane if asked == LINEAR or _is_worthwhile(plane, level, block, options) else level


def _varying(X: Tensor) -> tuple[int, ...]:
    if len(X) == 0:
        return ()
    least, most = torch.aminmax(X, dim=0)
    return tuple(torch.nonzero(most > least)[:, 0].tolist())


def _is_worthwhile(plane: Trend, level: Trend, block: Block, options: TrendOptions) -> bool:
    """Whether the evidence of a plane is above that of a constant, by BIC: n log(rss'/rss) + (more columns) log n < 0.

    Errors are taken for independent, so a plane is seldom missed. A plane that is not needed costs little where rows
    are many, and a comparison of few rows falls to the constant.
    """
    sample, p = block.spaced(options.most_rows), len(plane.columns)
    n = len(sample)
    if p > options.most_columns or n < options.rows_per_column * (1 + p):
        return False
    with_plane, without = (_squares(detrended(sample, trend)) for trend in (plane, level))
    if not 0.0 < with_plane < math.inf:
        return without > 0.0
    return n * math.log(without / with_plane) > p * math.log(n)


def _squares(block: Block) -> float:
    return float(block.weights.to(torch.float64) @ block.y.to(torch.float64).square())
