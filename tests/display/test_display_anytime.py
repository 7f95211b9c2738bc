"""Pictures of anytime fits show the numbers that the fits reported."""

from dataclasses import replace

import numpy as np
import pytest

from sparsegp import InputError
from sparsegp.fit.progress import Progress

pytest.importorskip("matplotlib").use("Agg")

from sparsegp.display import AnytimeDisplay  # noqa: E402

SECONDS = (0.5, 1.0, 4.0)
RMSE = (0.8, 0.5, 0.4)
NLPD = (1.2, 0.9, 0.7)


def progress(scored=True):
    return [
        Progress(
            step=2**k,
            seconds=seconds,
            rows_seen=100.0 * k,
            fraction=0.1 * k,
            log_evidence=-5.0,
            error=None,
            stage="inference",
            scores={"rmse": rmse, "nlpd": nlpd} if scored else {},
        )
        for k, (seconds, rmse, nlpd) in enumerate(zip(SECONDS, RMSE, NLPD, strict=True))
    ]


def drawn(ax):
    return [line.get_xydata().T for line in ax.lines if len(line.get_xdata()) == len(SECONDS)]


@pytest.mark.parametrize(
    ("picture", "x", "y"),
    [
        ("rmse-steps", (1, 2, 4), RMSE),
        ("rmse-seconds", SECONDS, RMSE),
        ("nlpd-steps", (1, 2, 4), NLPD),
        ("nlpd-seconds", SECONDS, NLPD),
        ("seconds-steps", (1, 2, 4), SECONDS),
        ("efficiency", (20.0, 10.0, 2.5), (0.3 / 0.8, 0.6, 0.75)),
    ],
)
def test_a_picture_shows_the_reported_numbers(picture, x, y):
    display = AnytimeDisplay.from_progress(progress(), full=(10.0, 0.3), pictures=[picture])
    (curve,) = drawn(display.ax_[0])
    np.testing.assert_allclose(curve, [x, y])


def test_runs_are_told_apart_by_name():
    runs = {"pic": progress(), "dtc": progress()[:2]}
    display = AnytimeDisplay.from_progress(runs)
    assert [text.get_text() for text in display.ax_[0].get_legend().get_texts()] == ["pic", "dtc"]
    assert display.pictures == (
        "rmse-steps",
        "rmse-seconds",
        "nlpd-steps",
        "nlpd-seconds",
        "efficiency",
        "seconds-steps",
    )
    assert len(display.ax_) == 6


def test_without_a_full_model_the_last_step_stands_for_it():
    time_efficiency, predictive_efficiency = AnytimeDisplay.from_progress(progress()).efficiency()
    np.testing.assert_allclose(time_efficiency, [8.0, 4.0, 1.0])
    np.testing.assert_allclose(predictive_efficiency, [0.5, 0.8, 1.0])


def test_without_scores_only_the_clock_is_drawn():
    assert AnytimeDisplay.from_progress(progress(scored=False)).pictures == ("seconds-steps",)
    with pytest.raises(InputError, match="validation="):
        AnytimeDisplay.from_progress(progress(scored=False), pictures=["rmse-steps"])


def test_given_axes_are_used():
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    display = AnytimeDisplay.from_progress(progress(), pictures=["rmse-steps", "efficiency"], ax=axes)
    assert display.ax_ == list(axes)
    with pytest.raises(InputError, match="1 matplotlib axes"):
        display.plot(axes, pictures=["rmse-steps"])


def test_errors_teach():
    with pytest.raises(InputError, match="at least one Progress"):
        AnytimeDisplay.from_progress([])
    with pytest.raises(InputError, match="'rmse-steps'"):
        AnytimeDisplay.from_progress(progress(), pictures=["rmse"])
    with pytest.raises(InputError, match="'dtc' is missing"):
        AnytimeDisplay.from_progress({"pic": progress(), "dtc": progress()}, full={"pic": (1.0, 1.0)})


def test_runs_with_the_same_colour_have_another_style_and_a_wide_range_is_logarithmic():
    runs = {f"run {k}": progress() for k in range(5)}
    display = AnytimeDisplay.from_progress(runs, full=(10.0, 0.3), pictures=["rmse-steps"])
    first, *_, last = display.ax_[0].lines
    assert first.get_color() == last.get_color()
    assert first.get_linestyle() != last.get_linestyle()
    assert display.ax_[0].get_yscale() == "linear"
    early, *later = progress()
    bad = [replace(early, scores={"rmse": 100.0, "nlpd": 9.0}), *later]
    assert AnytimeDisplay.from_progress(bad, pictures=["rmse-seconds"]).ax_[0].get_yscale() == "log"
