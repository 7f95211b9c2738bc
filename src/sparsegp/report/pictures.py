"""The pictures of a page as inline SVG: text takes the colour of the page, points are embedded as PNG."""

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp import display
from sparsegp.core.predictive import Array
from sparsegp.display.axes import matplotlib_module
from sparsegp.display.relevance import column_lengthscales
from sparsegp.estimators.diagnosis import column_names, has_blocks, inducing_of
from sparsegp.estimators.segments import Segments

INK = "#010203"
WIDTH, HEIGHT = 5.2, 3.4
MOST_SLICES = 3
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


def pictures(model: Any, X: Array, y: Array, target_name: str, segments: Segments) -> Iterator[Picture]:
    """All pictures that make sense for the model; X and y are checked rows, `segments` the coverage of their parts."""
    order = _by_relevance(model, X)
    for column in order[:MOST_SLICES]:
        yield _slice(model, X, y, column, target_name)
    if len(order) > 1:
        yield _picture(
            "Map of the two most relevant columns",
            _map_caption(model, X.shape[1]),
            lambda ax: display.MapDisplay.from_estimator(model, X, y, features=(order[0], order[1]), ax=ax),
            n_panels=2,
        )
    yield _picture(
        "Calibration",
        "Do intervals hold as many rows as they promise? Points on the diagonal and a flat histogram say yes; the grey "
        "band is what chance allows.",
        lambda ax: display.CalibrationDisplay.from_estimator(model, X, y, ax=ax),
        n_panels=2,
    )
    if segments.parts:
        yield _picture(
            "Where the intervals hold",
            "Each point is a part of the rows: a value or a tenth of a column, of the forecast or of its std, in order "
            "from top to bottom. Orange squares hold more or fewer rows than chance allows.",
            lambda ax: display.CoverageDisplay(segments).plot(ax),
        )
    yield _picture(
        "Errors",
        "Each point is a row: its error in units of the predicted standard deviation. There should be no pattern, and "
        "19 of 20 rows between the dashed lines.",
        lambda ax: display.ResidualsDisplay.from_estimator(model, X, y, ax=ax),
    )
    if len(order) > 1 and np.isfinite(column_lengthscales(model.kernel_, X.shape[1])).any():
        yield _picture(
            "Relevance of the columns",
            "How much the function changes within one standard deviation of a column; near zero it does not matter.",
            lambda ax: display.RelevanceDisplay.from_estimator(model, X, y, ax=ax),
        )
    if any(stage.n_rows for stage in model.info_.get("stages", [])):
        yield _picture(
            "Learning",
            "How well each stage of learning explains its rows; the number of rows is written beside it.",
            lambda ax: display.LearningCurveDisplay.from_estimator(model, ax=ax),
        )


def _slice(model: Any, X: Array, y: Array, column: int, target_name: str) -> Picture:
    def draw(ax: Any) -> None:
        shown = display.PredictionDisplay.from_estimator(model, X, y, feature=column, ax=ax)
        shown.ax_.set_ylabel(target_name, parse_math=False)

    others = " The other columns are at their medians." if X.shape[1] > 1 else ""
    name = column_names(model)[column]
    return _picture(f"Prediction along {name}", f"Mean and 95 % interval of {target_name}.{others}", draw)


def _map_caption(model: Any, n_columns: int) -> str:
    others = "" if n_columns == 2 else " Other columns are at their medians."
    crosses = " Crosses are inducing inputs." if n_columns == 2 and inducing_of(model) is not None else ""
    edges = " White lines are the edges of blocks." if has_blocks(model) else ""
    return f"Mean and standard deviation of the prediction.{others}{crosses}{edges}"


def _by_relevance(model: Any, X: Array) -> list[int]:
    """Columns that vary, the most relevant first; in their own order where the kernel has no lengthscales."""
    relevance = X.std(axis=0) / column_lengthscales(model.kernel_, X.shape[1])
    is_number = model.fitted_.columns.layout.standardized
    order = [int(d) for d in np.argsort(-relevance, kind="stable") if np.ptp(X[:, d]) > 0 and is_number[d]]
    return order or [0]


def _picture(title: str, caption: str, draw: Callable[[Any], Any], n_panels: int = 1) -> Picture:
    matplotlib, figures = matplotlib_module("pyplot").matplotlib, matplotlib_module("figure")
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=(WIDTH, HEIGHT * (1.75 if n_panels > 1 else 1.0)), layout="constrained")
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
