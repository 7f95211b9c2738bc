"""Worker: anytime steps from blocks on disk, one from each number of rows in turn.

Sizes that were timed one after the other would also compare the machine at different minutes. Reading a block counts.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.own.anytime_scale import build_prior

from sparsegp import linalg
from sparsegp.core.prior import SparsePrior
from sparsegp.data.disk_rows import DiskRows
from sparsegp.infer.anytime import WITHOUT_REPLACEMENT, NaturalAscent

WARM_UP = 3


@dataclass
class Run:
    """One ascent over the blocks of one number of rows, and what its steps took."""

    blocks: DiskRows
    prior: SparsePrior
    seconds: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = NaturalAscent(self.prior)
        self.draws = WITHOUT_REPLACEMENT.draws(self.blocks.sizes, 1, np.random.default_rng(2))
        self.state = self.engine.init()

    def step(self) -> None:
        started, draw = time.perf_counter(), next(self.draws)
        blocks = [self.blocks.block(k) for k in draw.index]
        self.state, _ = self.engine.step(self.state, draw, blocks)
        self.seconds.append(time.perf_counter() - started)
        self.rows.append(sum(block.n_rows for block in blocks))

    def facts(self) -> dict[str, float]:
        """Blocks differ in size: the mean over many steps is what grows or does not."""
        seconds, rows = np.array(self.seconds[WARM_UP:]), np.array(self.rows[WARM_UP:])
        return {
            "seconds": float(seconds.mean()),
            "median_seconds": float(np.median(seconds)),
            "rows_a_block": float(rows.mean()),
            "std_of_rows": float(rows.std()),
            "seconds_per_1000_rows": float(1000.0 * seconds.sum() / rows.sum()),
        }


def measure(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    sources = {size: DiskRows.open(folder) for size, folder in options["folders"].items()}
    facts: dict[str, Any] = {size: {} for size in sources}
    for name in options["approximations"]:
        prior = build_prior(problem, name)
        runs = {size: Run(blocks, prior) for size, blocks in sources.items()}
        for _ in range(WARM_UP + options["steps"]):
            for run in runs.values():
                run.step()
        for size, run in runs.items():
            facts[size][name] = run.facts()
    return facts


def main(folder: str) -> None:
    problem, options = read_job(folder)
    with linalg.flushed_denormals():
        write_result(folder, measure(problem, options))


if __name__ == "__main__":
    main(sys.argv[1])
