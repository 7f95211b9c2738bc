"""The first sentences of a report: how good the model is, how honest, and what it does not know."""

import math
from dataclasses import dataclass

import numpy as np

from sparsegp.core.predictive import Predictive
from sparsegp.estimators.given_rows import GivenRows
from sparsegp.estimators.segments import Honesty, SegmentOptions, Segments, cut
from sparsegp.report.baselines import Baselines
from sparsegp.report.numbers import shown

ACCURATE, USEFUL, WEAK = 0.9, 0.5, 0.05
CLEARLY_BETTER = 0.02
LARGE_SHARE, SMALL_SHARE = 0.5, 0.1
UNEVEN = 1.5
FEWEST_ROWS = 10


@dataclass(frozen=True)
class Verdict:
    """What the page says first: a headline, and the sentences that it rests on."""

    headline: str
    accuracy: str
    honesty: str

    def __str__(self) -> str:
        return f"{self.headline} {self.accuracy} {self.honesty}"

    @classmethod
    def of(cls, rmse: float, n_rows: int, baselines: Baselines, honesty: Honesty, segments: Segments) -> "Verdict":
        accuracy = _accuracy(rmse, n_rows, baselines)
        if n_rows < FEWEST_ROWS:
            inside = f"{round(honesty.covered * n_rows)} of {n_rows} inside their 95% interval"
            return cls("Too few rows to judge by.", accuracy, f"There {'is' if n_rows == 1 else 'are'} {inside}.")
        return cls(
            _headline(rmse, baselines, honesty, segments),
            accuracy,
            _honesty(honesty, segments),
        )


def _headline(rmse: float, baselines: Baselines, honesty: Honesty, segments: Segments) -> str:
    explained = 1.0 - (rmse / baselines.mean_rmse) ** 2 if baselines.mean_rmse > 0.0 else math.nan
    line = baselines.line_rmse
    if not explained > WEAK:
        good, is_good = "No better than guessing the mean", False
    elif line is not None and rmse > (1.0 - CLEARLY_BETTER) * line:
        good, is_good = "No better than a straight line", False
    else:
        good, is_good = (
            "Accurate" if explained > ACCURATE else "Useful" if explained > USEFUL else "Weak",
            explained > USEFUL,
        )
    if honesty.is_narrow:
        honest, is_honest = "its intervals are too narrow", False
    elif segments.worst is not None and segments.worst.is_narrow:
        honest, is_honest = "its intervals are too narrow for some rows", False
    elif honesty.is_wide:
        honest, is_honest = "its intervals are wider than needed", False
    else:
        honest, is_honest = "honest about its errors", True
    return f"{good}, {'and' if is_good == is_honest else 'but'} {honest}."


def _accuracy(rmse: float, n_rows: int, baselines: Baselines) -> str:
    against = [_compared(rmse, baselines.mean_rmse, "guessing the mean")]
    if baselines.line_rmse is not None:
        against.append(_compared(rmse, baselines.line_rmse, "a straight line"))
    rows = "1 row" if n_rows == 1 else f"{n_rows:,} rows"
    return f"On {rows} the typical error is {shown(rmse)} (RMSE): {', and '.join(against)}."


def _compared(rmse: float, other: float, name: str) -> str:
    less = 1.0 - rmse / other if other > 0.0 else math.nan
    if not math.isfinite(less):
        return f"{name} makes no error on these rows"
    if abs(less) < CLEARLY_BETTER:
        return f"about that of {name} ({shown(other)})"
    if less > 0.0:
        return f"{less:.0%} less than {name} ({shown(other)})"
    return f"{-less:.0%} more than {name} ({shown(other)})"


def _honesty(honesty: Honesty, segments: Segments) -> str:
    inside = f"{honesty.covered:.1%} of the rows lie inside their 95% interval"
    if honesty.is_narrow:
        said = f"Only {inside}: do not rely on the intervals."
    elif honesty.is_wide:
        said = f"{inside[0].upper()}{inside[1:]}: they are safe, and wider than they need be."
    else:
        said = f"{inside[0].upper()}{inside[1:]}, as promised."
    worst = segments.worst
    if worst is not None and worst.is_narrow and not honesty.is_narrow:
        said += f" For rows with {worst.name} it is only {worst.coverage:.1%}."
    return said


def unknowns(rows: GivenRows, forecast: Predictive, columns: list[int], far: float) -> list[str]:
    """What the model does not know, in sentences; `columns` matter, and `far` is the share of rows far away."""
    share = float(np.mean(forecast.f_std**2) / np.mean(forecast.std**2))
    return [
        _about_more_rows(share, float(np.sqrt(np.mean(forecast.noise_std**2)))),
        *_about_places(rows, forecast, columns),
        _about_the_far(far),
    ]


def _about_more_rows(share: float, noise_std: float) -> str:
    narrower = 1.0 - math.sqrt(max(1.0 - share, 0.0))
    much = "would hardly narrow" if share < SMALL_SHARE else "would narrow"
    rest = f"What is left is noise (std about {shown(noise_std, 3)}), which these columns do not explain."
    if share > LARGE_SHARE:
        return f"Mostly it lacks rows: more of them would narrow its forecasts, by up to {narrower:.0%}. {rest}"
    return f"More rows like these {much} its forecasts, by up to {narrower:.0%}. {rest}"


def _about_places(rows: GivenRows, forecast: Predictive, columns: list[int]) -> list[str]:
    """The part of a column that matters in which the function is least known, if it stands out."""
    average = math.sqrt(float(np.mean(forecast.f_std**2)))
    found = [
        (math.sqrt(float(np.mean(forecast.f_std[part] ** 2))), f"{rows.names[column]} {name}")
        for column in columns
        for name, part in cut(rows.column(column), SegmentOptions())
        if part.sum() >= FEWEST_ROWS
    ]
    if not found or max(found)[0] < UNEVEN * average:
        return []
    std, name = max(found)
    return [
        f"It knows least about rows with {name}: there the function is uncertain by ±{shown(2 * std, 3)}, on average "
        f"±{shown(2 * average, 3)}."
    ]


def _about_the_far(far: float) -> str:
    if far == 0.0:
        return "None of these rows is far from what it has seen."
    return f"{far:.1%} of these rows are far from what it has seen: there it knows hardly more than before the fit."


def worst_part(segments: Segments) -> str:
    """Where the intervals fail most clearly, or that they fail nowhere."""
    worst, n_tested = segments.worst, len(segments.tested)
    if not n_tested:
        return "There are too few rows to say where the intervals hold and where they do not."
    if worst is None:
        return f"In all {n_tested} parts the share of rows inside is what chance allows."
    much = "too few" if worst.is_narrow else "more than promised"
    return (
        f"The worst part is {worst.name}: {worst.coverage:.1%} of its {worst.n_rows:,} rows are inside, {much}. "
        f"{len(segments.failing)} of {n_tested} parts fail, allowing for their number."
    )
