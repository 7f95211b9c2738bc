"""What a fit says of itself while it works."""

import io
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from sparsegp import InputError, SparseGPRegressor
from sparsegp.estimators import listener as module
from sparsegp.estimators.listener import Intention, StepListener
from sparsegp.learn.schedules import POINTS
from sparsegp.learn.trace import LearningStep


@pytest.mark.parametrize(("verbose", "says"), [(1, True), (0, False), (None, False)])
def test_after_a_second_it_says_once_what_it_will_do_and_for_how_long(verbose, says, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    listener = StepListener(object(), verbose)
    listener.intention = Intention("vfe on 5,000 rows", 1e6)
    for now[0] in (0.5, 1.5, 2.0):
        listener(LearningStep(-10.0, 1000, 10, 2.0))
    told = [line for line in capsys.readouterr().err.splitlines() if "at most about" in line]
    assert told == (["[sparsegp] vfe on 5,000 rows: at most about 200 s at this speed"] if says else [])


class Terminal(io.StringIO):
    """What a person would see."""

    def isatty(self):
        return True


@pytest.fixture
def quick(monkeypatch):
    """Seconds that pass in a moment."""
    monkeypatch.setattr(module, "SECONDS_OF_SILENCE", 0.05)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.02)


def said(stream, wanted, seconds=20.0):
    """Waits until something was written."""
    end = time.monotonic() + seconds
    while wanted not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return stream.getvalue()


def test_a_terminal_sees_one_line_that_is_written_over(quick, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    listener = StepListener(object(), None)
    try:
        assert said(sys.stderr, "preparing").endswith("\r")  # a warning would be written over it, not behind it
        listener.intention = Intention("vfe on 5,000 rows", 1e6)
        listener(LearningStep(-1000.0, 1000, 10, 2.0))
        assert "vfe on 5,000 rows, evaluation 10, log evidence per row -1.0000" in said(sys.stderr, "evaluation 10")
    finally:
        listener.close()
    text = sys.stderr.getvalue()
    assert text.count("\n") == 1
    assert text.rstrip().endswith("done")
    assert not any(thread.name == "sparsegp progress" for thread in threading.enumerate())


def test_a_fit_of_a_moment_says_nothing(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    X = np.linspace(0, 1, 20)[:, None]
    SparseGPRegressor("se", approximation="exact", optimizer=None).fit(X, X[:, 0])
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(("verbose", "stream"), [(0, Terminal), (None, io.StringIO)])
def test_nobody_is_told_who_does_not_want_to_know(verbose, stream, quick, monkeypatch):
    """verbose=0 on a terminal, and scripts without one."""
    monkeypatch.setattr("sys.stderr", stream())
    listener = StepListener(object(), verbose)
    time.sleep(0.2)
    listener(LearningStep(-1000.0, 1000, 10, 2.0))
    listener.close()
    assert sys.stderr.getvalue() == ""


def test_a_notebook_is_watched(monkeypatch):
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert module.is_watched(io.StringIO())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not module.is_watched(io.StringIO())


def test_verbose_is_a_number():
    with pytest.raises(InputError, match=r"verbose must be None .* got 'yes'"):
        SparseGPRegressor(verbose="yes").fit([[0.0], [1.0]], [0.0, 1.0])


def test_a_schedule_knows_how_many_rows_it_visits():
    assert POINTS.row_visits(1000) == 1000 * (POINTS.warm_up_iterations + POINTS.first_iterations)
