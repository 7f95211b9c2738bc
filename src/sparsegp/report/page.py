"""From a fitted model and rows with known targets to a page on disk."""

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from sparsegp.core.predictive import Array
from sparsegp.display.axes import matplotlib_package
from sparsegp.estimators.importance import Importance
from sparsegp.estimators.judging import checked_rows, column_names, user_columns, without_names
from sparsegp.estimators.segments import Segment, Segments
from sparsegp.report.html import Page, Tile
from sparsegp.report.judgement import Judgement, judge
from sparsegp.report.numbers import shown
from sparsegp.report.pictures import coverage, pictures, what_matters
from sparsegp.report.verdict import worst_part
from sparsegp.whole_file import destination, replacing

LIGHT = (
    "This page was written without torch. It lacks the effects of the columns, what the model shows of its own noise, "
    "lengthscales and inducing inputs, its assumptions, and what it learned: pip install 'sparsegp[fit]' for all of it."
)
MOST_COLUMNS = 100
MOST_PARTS = 1000


def write(
    model: Any,
    X: Any,
    y: Any,
    path: str | Path,
    *,
    title: str = "Model report",
    target_name: str = "y",
    judgement: Judgement | None = None,
) -> Path:
    """Write one self-contained HTML page about a fitted model, judged by rows with known targets.

    Scores, findings and pictures are of the given rows, best rows the model has not seen. The page has no scripts and
    asks for nothing from a network. `judgement` is that of the same rows, if it is known already. Returns the path.
    """
    destination(path)
    matplotlib_package()
    found = judgement or judge(model, X, y)
    with without_names():
        seen, rows, target = checked_rows(model, X, y)
    page = _page(model, seen, X, rows, target, found, title, target_name)
    with replacing(path) as out:
        out.write(page.html().encode())
    return Path(path)


def _page(
    model: Any, seen: Any, given: Any, X: Array, y: Array, judgement: Judgement, title: str, target_name: str
) -> Page:
    """`seen` is the model of the numbers X that the given columns become."""
    seconds, importance = model.info_.get("seconds"), judgement.importance
    fitted = "" if seconds is None else f", fitted in {seconds:.3g} s"
    assumptions, parameters, kernel = _about(model, seen, X, target_name)
    with without_names():
        effects = list(what_matters(model, given, y, target_name, importance))
        others = list(pictures(seen, X, y, target_name, _in_order(seen, X, importance)))
    return Page(
        title=title,
        subtitle=f"{model.judged.kind} for {target_name}: {model.n_samples_seen_:,} training rows{fitted}; "
        f"judged by {len(y):,} rows with {model.n_features_in_} columns",
        verdict=judgement.verdict,
        tiles=_tiles(judgement, float(y.std())),
        findings=judgement.findings,
        effects=effects,
        unknowns=judgement.unknowns,
        pictures=others,
        coverage=worst_part(judgement.segments),
        coverage_pictures=coverage(judgement.segments),
        parts=_parts(judgement.segments),
        assumptions=assumptions,
        parameters=parameters,
        kernel=kernel,
        columns=_columns(X, y, _told(seen, X), target_name),
        footer=f"Written by sparsegp {version('sparsegp')} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
    )


def _about(model: Any, seen: Any, X: Array, target_name: str) -> tuple[list[str], list[tuple[str, str, str]], str]:
    """What the model assumes, what it learned, and its kernel."""
    if model.judged.is_light:
        return [LIGHT], [], ""
    from sparsegp.report import text

    return text.assumptions(model), text.parameters(seen, X, target_name), repr(model.kernel_)


def _in_order(model: Any, X: Array, importance: Importance | None) -> list[int]:
    """Columns of the matrix that vary, the one that matters most first."""
    is_number = model.judged.layout.standardized
    vary = [d for d in range(X.shape[1]) if np.ptp(X[:, d]) > 0.0 and is_number[d]]
    if importance is None:
        return vary
    rank = {importance.names[d]: place for place, d in enumerate(importance.order)}
    names, own = user_columns(model)
    return sorted(vary, key=lambda d: rank.get(names[own[d]], len(rank)))


def _tiles(judgement: Judgement, y_std: float) -> list[Tile]:
    found, line = judgement.scores, judgement.baselines.line_rmse
    is_discrete = judgement.targets.is_discrete
    surprise = "says little: many targets are equal; see CRPS" if is_discrete else "surprise per row; lower is better"
    straight = "" if line is None else f"; a straight line: {shown(line)}"
    return [
        Tile("RMSE", f"{shown(found['rmse'])}", f"typical error; guessing the mean: {shown(y_std)}{straight}"),
        Tile("R²", f"{found['r2']:.3f}", "share of the variance explained"),
        Tile("95% coverage", f"{found['coverage_95']:.1%}", "of the rows are inside their 95% interval"),
        Tile("95% width", f"{shown(found['width_95'])}", "mean width of the 95% interval"),
        Tile("CRPS", f"{shown(found['crps'])}", "error of the whole forecast, in units of the target"),
        Tile("NLPD", f"{found['nlpd']:.4g}", surprise),
    ]


def _parts(segments: Segments) -> list[tuple[str, ...]]:
    failing, first = set(segments.failing), segments.parts[:MOST_PARTS]
    more = len(segments.parts) - len(first)
    lines = [_part(part, part in failing) for part in first]
    return [*lines, (f"and {more:,} more", *[""] * 4)] if more else lines


def _part(part: Segment, fails: bool) -> tuple[str, ...]:
    verdict = "too few" if part.is_narrow else "too many"
    numbers = f"{part.n_rows:,}", f"{part.coverage:.1%}", f"±{2.0 * part.error:.1%}"
    return part.name, *numbers, verdict if fails else ""


def _told(model: Any, X: Array) -> dict[int, str]:
    """Names of the columns of the matrix to tell of; that no row has a level, or that none is missing, says nothing."""
    is_number = model.judged.layout.standardized
    return {d: name for d, name in enumerate(column_names(model)) if is_number[d] or np.any(X[:, d] != 0.0)}


def _columns(X: Array, y: Array, names: dict[int, str], target_name: str) -> list[tuple[str, ...]]:
    rows = [_summary(f"{target_name} (target)", y)]
    rows += [_summary(name, X[:, d]) for d, name in list(names.items())[:MOST_COLUMNS]]
    if len(names) > MOST_COLUMNS:
        rows.append((f"and {len(names) - MOST_COLUMNS} more", *[""] * 6))
    return rows


def _summary(name: str, values: Array) -> tuple[str, ...]:
    numbers = values.min(), np.median(values), values.max(), values.mean(), values.std()
    return name, *(shown(number) for number in numbers), f"{len(np.unique(values)):,}"
