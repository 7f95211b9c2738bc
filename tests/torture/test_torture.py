"""A slice of every campaign that needs no process of its own, and the harness itself. The rest: `make torture`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegp
from sparsegp import ModelFileError
from torture import campaign, datasets, limits, model_files, streams, switches, verbs, writes
from torture.campaign import Campaign, Case

SLICES = {
    datasets.CAMPAIGN: 25,
    model_files.CAMPAIGN: 120,
    verbs.CAMPAIGN: 1,
    streams.CAMPAIGN: 1,
    switches.CAMPAIGN: 12,
}


@pytest.mark.parametrize("chosen", SLICES, ids=lambda one: one.name)
def test_a_slice_of_the_campaign_holds(chosen: Campaign, every_kernel: None) -> None:
    tally = campaign.run(chosen, range(SLICES[chosen]))
    assert not tally.failures, tally.failures
    assert tally.cases == SLICES[chosen] * chosen.steps


def test_some_failing_calls_of_every_operation(tmp_path: Path) -> None:
    case = writes.prepare(tmp_path)
    plan = case.plan  # type: ignore[attr-defined]
    by_operation: dict[str, list[int]] = {}
    for number, (name, fault, _) in enumerate(plan):
        if name != "report" and fault in ("call open", "call fsync", "call replace", "disk full"):
            by_operation.setdefault(name, []).append(number)
    rng = np.random.default_rng(0)
    assert set(by_operation) == {"save", "update", "merge", "predict", "checkpoint", "spool"}
    for numbers in by_operation.values():
        for number in rng.choice(numbers, 3, replace=False):
            case(int(number))


@pytest.mark.parametrize("maker", [limits._huge_shape, limits._lying_shape, limits._tall_trees, limits._deep])
@pytest.mark.parametrize("load", [sparsegp.load, sparsegp.serving.load])
def test_a_file_that_asks_for_much_is_refused(maker: Any, load: Any, tmp_path: Path) -> None:
    maker(tmp_path / "bomb.sgp")
    with pytest.raises(ModelFileError):
        load(tmp_path / "bomb.sgp")


def test_failures_are_counted_with_their_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    def prepare(folder: Path) -> Case:
        def case(seed: int) -> str:
            assert seed != 3, "three"
            return "fine"

        return case

    tally = campaign.run(Campaign("trial", prepare, 1.0, 5), range(5))
    assert tally.outcomes == {"fine": 4}
    assert [seed for seed, _ in tally.failures] == [3]
    assert "FAILED: trial, seed 3" in capsys.readouterr().out
    assert "5 cases" in tally.line()
