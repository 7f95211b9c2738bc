"""The pictures of a page as inline SVG: text takes the colour of the page, points are embedded as PNG."""

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp import display
from sparsegp.core.predictive import Array
from sparsegp.display.axes import matplotlib_package
from sparsegp.estimators.given_rows import GivenRows, known
from sparsegp.estimators.importance import Effect, Importance, instants
from sparsegp.estimators.judging import column_names
from sparsegp.estimators.segments import Segments

INK = "#010203"
WIDTH, HEIGHT = 5.2, 3.4
MOST_EFFECTS = 3
MOVES_WITH = 0.9
STYLE = {
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick")},
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsegp",
}


@dataclass(frozen=True)
class Picture:
    """An SVG element with its heading and a sentence on how to read it."""

    title: str
    caption: str
    svg: str


def what_matters(model: Any, X: Any, y: Array, target_name: str, importance: Importance | None) -> Iterator[Picture]:
    """The importance of the columns, and the effects of the first of them; rows are as they were given."""
    if importance is None or len(importance.names) < 2:
        return
    yield _picture(
        "Importance of the columns",
        "How much the typical error (RMSE) grows when the values of a column are shuffled among the rows, so that they "
        "say nothing. Lines are 95% intervals: a column whose line reaches zero may not matter.",
        lambda ax: display.ImportanceDisplay(importance).plot(ax),
        height=_height_for(len(importance.names)),
    )
    rows = GivenRows.of(X, importance.names)
    if model.judged.is_light:  # an effect has a band of the joint forecast
        return
    transform = model.judged.transform
    how = "" if transform is None else f" (averages of {transform.name}, carried back)"
    for column in importance.sure[:MOST_EFFECTS]:
        yield _effect(Effect.of(model, X, column), target_name, how, _companions(model, rows, column))


def _companions(model: Any, rows: GivenRows, column: int) -> str:
    """A sentence about columns that rise and fall with this one, so that no row moves along one of them alone."""
    own, found = _ordered(model, rows, column), []
    for other, name in enumerate(rows.names):
        values = _ordered(model, rows, other)
        if other != column and own is not None and values is not None:
            both = known(own) & known(values)
            a, b = own[both], values[both]
            if len(a) > 1 and np.ptp(a) > 0 and np.ptp(b) > 0 and abs(np.corrcoef(a, b)[0, 1]) > MOVES_WITH:
                found.append(name)
    if not found:
        return ""
    return f" It goes up and down with {', '.join(found[:3])}: their effects belong together, and one may undo another."


def _ordered(model: Any, rows: GivenRows, column: int) -> Array | None:
    """Numbers and dates as numbers; None of any other column."""
    dates = instants(model, rows, column)
    values = rows.column(column) if dates is None else dates
    if values.dtype.kind in "mM":
        missing = np.isnat(values)
        return np.where(
            missing,
            np.nan,
            values.astype("datetime64[s]" if values.dtype.kind == "M" else "timedelta64[s]")
            .astype(np.int64)
            .astype(np.float64),
        )
    return values.astype(np.float64) if values.dtype.kind in "iuf" else None


def _effect(effect: Effect, target_name: str, how: str, companions: str) -> Picture:
    def draw(ax: Any) -> None:
        shown = display.EffectDisplay(effect).plot(ax)
        (shown.ax_.set_xlabel if effect.has_levels else shown.ax_.set_ylabel)(
            f"average {target_name}", parse_math=False
        )

    each = "Intervals are" if effect.has_levels else "The band is"
    levels = " In brackets, the share of the rows with this value." if effect.has_levels else ""
    return _picture(
        f"Effect of {effect.name}",
        f"The average prediction of {target_name}{how} if all rows had this value of {effect.name} and kept their "
        f"other columns. {each} 95% of what the model does not know of that average.{levels}{companions}",
        draw,
        height=_height_for(len(effect.values)) if effect.has_levels else HEIGHT,
    )


def _height_for(n_lines: int) -> float:
    """Inches for a picture with a line for each of so many things."""
    return min(max(HEIGHT, 0.9 + 0.24 * n_lines), 6.0)


def coverage(segments: Segments) -> list[Picture]:
    """Where the intervals hold, if there are parts to look at."""
    if not segments.parts:
        return []
    return [
        _picture(
            "Coverage by parts of the rows",
            "Each point is a part of the rows: a value or a tenth of a column, of the forecast or of its std, in order "
            "from top to bottom. Orange squares hold more or fewer rows than chance allows.",
            lambda ax: display.CoverageDisplay(segments).plot(ax),
            height=_height_for(min(len(segments.by_quantity), 20)),
        )
    ]


def pictures(model: Any, X: Array, y: Array, target_name: str, columns: list[int]) -> Iterator[Picture]:
    """All other pictures that make sense for the model. X and y are checked rows, and `columns` those that vary, the
    one that matters most first."""
    if X.shape[1] == 1:
        yield _slice(model, X, y, 0, target_name)
    elif len(columns) > 1:
        yield _picture(
            "Map of the two columns that matter most",
            _map_caption(model, X.shape[1]),
            lambda ax: display.MapDisplay.from_estimator(model, X, y, features=(columns[0], columns[1]), ax=ax),
            n_panels=2,
        )
    yield _picture(
        "Calibration",
        "Do intervals hold as many rows as they promise? Points on the diagonal and a flat histogram say yes; the grey "
        "band is what chance allows.",
        lambda ax: display.CalibrationDisplay.from_estimator(model, X, y, ax=ax),
        n_panels=2,
    )
    yield _picture(
        "Errors",
        "Each point is a row: its error in units of the predicted standard deviation. There should be no pattern, and "
        "19 of 20 rows between the dashed lines.",
        lambda ax: display.ResidualsDisplay.from_estimator(model, X, y, ax=ax),
    )
    if not model.judged.is_light and any(stage.n_rows for stage in model.info_.get("stages", [])):
        yield _picture(
            "Learning",
            "How well each stage of learning explains its rows; the number of rows is written beside it.",
            lambda ax: display.LearningCurveDisplay.from_estimator(model, ax=ax),
        )


def _slice(model: Any, X: Array, y: Array, column: int, target_name: str) -> Picture:
    def draw(ax: Any) -> None:
        shown = display.PredictionDisplay.from_estimator(model, X, y, feature=column, ax=ax)
        shown.ax_.set_ylabel(target_name, parse_math=False)

    name = column_names(model)[column]
    return _picture(f"Prediction along {name}", f"Mean and 95% interval of {target_name}.", draw)


def _map_caption(model: Any, n_columns: int) -> str:
    others = "" if n_columns == 2 else " Other columns are at their medians."
    crosses = " Crosses are inducing inputs." if n_columns == 2 and model.judged.inducing is not None else ""
    edges = " White lines are the edges of blocks." if model.judged.has_blocks else ""
    points = " White points are rows: where there are none, the model guesses."
    return f"Mean and standard deviation of the prediction.{others}{points}{crosses}{edges}"


def _picture(
    title: str, caption: str, draw: Callable[[Any], Any], n_panels: int = 1, height: float = HEIGHT
) -> Picture:
    matplotlib, size = matplotlib_package(), (WIDTH, height * (1.75 if n_panels > 1 else 1.0))
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        axes = figure.subplots(n_panels, 1, squeeze=False)[:, 0]
        draw(list(axes) if n_panels > 1 else axes[0])
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, dpi=150)
    return Picture(title, caption, _inline(text.getvalue(), _slug(title)))


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _inline(svg: str, prefix: str) -> str:
    """An SVG file as an element of a page: no prolog, no metadata, ids of its own, ink in the colour of the text."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    head, body = svg.split(">", 1)
    view_box = re.search(r'viewBox="[^"]*"', head)
    assert view_box is not None
    body = re.sub(r'(?<= id=")(?=[^"<>]*">|[^"<>]*" )', f"{prefix}-", body)
    body = body.replace("url(#", f"url(#{prefix}-").replace('xlink:href="#', f'xlink:href="#{prefix}-')
    body = re.sub(rf"(fill|stroke): {INK}", r"\1: currentColor", body)
    return f'<svg {view_box[0]} role="img">{body}'
