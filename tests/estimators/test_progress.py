"""What a fit says of itself while it works."""

from types import SimpleNamespace

import pytest

from sparsegp.estimators import progress
from sparsegp.estimators.progress import Intention, StepListener
from sparsegp.learn.schedules import POINTS
from sparsegp.learn.trace import LearningStep


@pytest.mark.parametrize(("verbose", "says"), [(1, True), (0, False)])
def test_after_a_second_it_says_once_what_it_will_do_and_for_how_long(verbose, says, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    listener = StepListener(object(), verbose)
    listener.intention = Intention("vfe on 5,000 rows", 1e6)
    for now[0] in (0.5, 1.5, 2.0):
        listener(LearningStep(-10.0, 1000, 10, 2.0))
    told = [line for line in capsys.readouterr().err.splitlines() if "at most about" in line]
    assert told == (["[sparsegp] vfe on 5,000 rows: at most about 200 s at this speed"] if says else [])


def test_a_schedule_knows_how_many_rows_it_visits():
    assert POINTS.row_visits(1000) == 1000 * (POINTS.warm_up_iterations + POINTS.first_iterations)
