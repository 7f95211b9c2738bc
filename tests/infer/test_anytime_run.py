"""A whole anytime run: what it publishes and when, why it ends, and what awkward blocks do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from papers.sampling import UNIFORM
from papers.steps import Constant
from problems import agree
from sparsegp.core import reasons
from sparsegp.core.block import Block, GivenBlocks, MemoryRows, RandomBlocks
from sparsegp.core.posterior import InducingPosterior
from sparsegp.errors import InputError
from sparsegp.infer import anytime_run, batch
from sparsegp.infer.anytime import Reading, read
from sparsegp.infer.anytime_run import Options, run
from test_stopping import N_BLOCKS, clustered_rows, line_prior, mixed_rows, probe_points


@pytest.mark.parametrize("name", ["sor", "vfe", "fitc", "pic", "block-pep", "with blocks"])
def test_a_run_without_limits_ends_at_the_batch_posterior(name: str) -> None:
    rows, prior = clustered_rows(), line_prior(name)
    labels = torch.arange(0, N_BLOCKS, 8)
    X = (labels[:, None] + 0.5).to(torch.float64) / 4.0
    published = list(
        run(prior, GivenBlocks(rows), rng=np.random.default_rng(0), probes=probe_points(X, labels), clock=ticking())
    )
    last = published[-1]
    _, expected, info = batch.infer(prior, rows)
    agree((*last.posterior.joint(X, labels),), (*expected.joint(X, labels),))
    agree((last.log_evidence,), (info.log_evidence,))
    assert last.reason == reasons.EXACT
    assert last.error == 0.0
    assert last.fraction == 1.0
    assert published[0].step == 1
    assert all(progress.reason is None for progress in published[:-1])
    assert all(a.step < b.step and a.rows_seen < b.rows_seen for a, b in pairwise(published))
    assert published[-2].kl > 0.0


def ticking(seconds: float = 1.0) -> Callable[[], float]:
    """A clock that advances by the same amount whenever it is read."""
    now = [0.0]

    def clock() -> float:
        now[0] += seconds
        return now[0]

    return clock


def test_publications_are_geometrically_spaced() -> None:
    options = Options(publish_ratio=1.5)
    published = list(run(line_prior("dtc"), GivenBlocks(clustered_rows()), options, rng=rng(), clock=ticking()))
    seconds = np.array([progress.seconds for progress in published])
    assert len(published) < 14
    assert (seconds[1:-1] >= 1.5 * seconds[:-2]).all()


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@dataclass
class SlowBlocks:
    """Blocks that take a second each to fetch, by a clock of their own."""

    rows: MemoryRows
    now: float = 0.0

    @property
    def n_blocks(self) -> int:
        return self.rows.n_blocks

    @property
    def sizes(self) -> np.ndarray:
        return GivenBlocks(self.rows).sizes

    per_step = 1

    def block(self, k: int) -> Block:
        self.now += 1.0
        return self.rows.block(k)

    def each(self, task: Any, index: Any) -> list[Any]:
        return [task(self.block(k)) for k in index]


@pytest.mark.parametrize("seconds", [12.0, 20.0, 31.5, 50.0])
def test_the_deadline_leaves_time_to_publish(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SlowBlocks(clustered_rows())
    publish = anytime_run._Publisher.publish

    def slow_publish(*arguments: object) -> anytime_run.Progress:
        source.now += 3.0
        return publish(*arguments)

    monkeypatch.setattr(anytime_run._Publisher, "publish", slow_publish)
    options = Options(seconds=seconds)
    *_, last = run(line_prior("dtc"), source, options, rng=rng(), clock=lambda: source.now)
    assert last.reason == reasons.TIME_IS_UP
    assert seconds - 5.0 <= source.now <= seconds


def test_a_slow_reader_is_counted_against_the_deadline() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    seen = []
    options = Options(seconds=100.0)
    for progress in run(line_prior("dtc"), GivenBlocks(clustered_rows()), options, rng=rng(), clock=clock):
        seen.append(progress)
        now[0] += 60.0
    assert [progress.step for progress in seen] == [1, 2, 2]
    assert seen[-1].reason == reasons.TIME_IS_UP
    assert seen[-1].seconds < 1.0


def test_a_budget_shorter_than_a_step_still_gives_a_model() -> None:
    options = Options(seconds=1e-9)
    (only,) = run(line_prior("fitc"), GivenBlocks(clustered_rows()), options, rng=rng())
    assert only.reason == reasons.TOO_SHORT
    mean, var = only.posterior.marginals(torch.zeros(1, 1, dtype=torch.float64))
    assert bool(torch.isfinite(mean).all())
    assert float(var) > 0.0


def test_a_run_stops_when_the_sampling_error_is_small() -> None:
    rows = clustered_rows()
    X = torch.linspace(1.0, 9.0, 9, dtype=torch.float64)[:, None]
    source = RandomBlocks.build(rows, 10, rng())
    options = Options(tolerance=0.2, publish_ratio=1.0)
    published = list(run(line_prior("dtc"), source, options, rng=rng(), probes=probe_points(X)))
    *before, last = published
    assert last.reason == reasons.ACCURATE
    assert 0.0 < last.error < 0.2
    assert last.step < source.n_blocks
    assert all(progress.error >= 0.2 for progress in before)
    assert before[0].error == np.inf


@pytest.mark.parametrize("reading", Reading)
def test_readings_of_a_run(reading: Reading) -> None:
    rows, prior = clustered_rows(), line_prior("pitc")
    options = Options(reading=reading, max_steps=12)
    probes = probe_points(torch.linspace(1.0, 9.0, 5, dtype=torch.float64)[:, None])
    *_, last = run(prior, GivenBlocks(rows), options, rng=rng(), probes=probes)
    assert last.reason == reasons.ALL_STEPS
    assert 0.0 < last.error < np.inf
    expected = read(last.state, reading, float(len(rows)))
    agree((last.q.mean,), (InducingPosterior.from_statistics(expected).mean,))
    assert last.rows_seen == last.state.seen.n_rows == pytest.approx(last.fraction * len(rows))


def test_evidence_estimate_of_a_run_that_saw_half_of_it() -> None:
    rows, prior = mixed_rows(), line_prior("vfe")
    _, _, info = batch.infer(prior, rows)
    estimates = []
    for seed in range(20):
        *_, last = run(prior, GivenBlocks(rows), Options(max_steps=20), rng=np.random.default_rng(seed))
        estimates.append(last.log_evidence)
    assert abs(np.mean(estimates) - info.log_evidence) < 0.1 * abs(info.log_evidence)


def awkward_sources() -> Iterator[tuple[str, MemoryRows]]:
    block = clustered_rows().all.take(slice(0, 6))
    yield "blocks of one row", MemoryRows(block, torch.arange(7))
    yield "empty blocks", MemoryRows(block, torch.tensor([0, 0, 4, 4, 6, 6]))
    yield "more blocks than rows", MemoryRows(block, torch.tensor([0, 0, 1, 1, 2, 3, 4, 4, 5, 6, 6]))
    yield "one block", MemoryRows(block, torch.tensor([0, 6]))


@pytest.mark.parametrize(
    ("_case", "rows"), list(awkward_sources()), ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("name", ["vfe", "pic"])
def test_awkward_blocks(name: str, _case: str, rows: MemoryRows) -> None:
    prior = line_prior(name)
    X, labels = rows.all.X[:3], torch.tensor([0, 1, 1])
    *_, last = run(prior, GivenBlocks(rows), rng=rng(), probes=probe_points(X, labels))
    _, expected, info = batch.infer(prior, rows)
    agree((*last.posterior.joint(X, labels), last.log_evidence), (*expected.joint(X, labels), info.log_evidence))


@pytest.mark.parametrize(
    "bad",
    [
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"max_steps": 0},
        {"tolerance": 0.0},
        {"publish_ratio": 0.5},
        {"sampling": UNIFORM},
        {"schedule": Constant(0.1)},
    ],
)
def test_options_say_what_is_wrong(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"got|give"):
        Options(**bad)


def test_a_tolerance_needs_probes() -> None:
    with pytest.raises(InputError, match="probe"):
        next(run(line_prior("dtc"), GivenBlocks(clustered_rows()), Options(tolerance=0.05), rng=rng()))
