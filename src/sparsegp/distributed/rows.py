"""Rows that live on workers: a share of them on each, read there and kept there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.data import Rows
from sparsegp.distributed import worker_tasks
from sparsegp.distributed.executor import DaskExecutor
from sparsegp.distributed.messages import Model, Question
from sparsegp.distributed.rounds import Traffic, gathered, submit
from sparsegp.learning.gradients import add_gradients
from sparsegp.learning.hyperparameters import Hyperparameters
from sparsegp.learning.objective import AdjointTotals
from sparsegp.posterior import InducingPosterior
from sparsegp.sources.model_rows import joined
from sparsegp.statistics import BlockStatistics


@dataclass(frozen=True)
class DistributedRows:
    """Futures of `Rows`, one a share, and what the driver must know of them.

    `counts` are rows and `total_weight` counts them with their weights; `least_noise_var` is the smallest known noise
    variance in the model's units, None where the noise is the model's own. `first_blocks`, for rows in blocks, is the
    first block of each share and the number of all blocks.
    """

    client: Any
    shares: tuple[Any, ...]
    homes: tuple[str, ...]
    counts: tuple[int, ...]
    total_weight: float
    n_features: int
    dtype: torch.dtype = torch.float64
    least_noise_var: float | None = None
    first_blocks: NDArray[np.int64] | None = None
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def n_blocks(self) -> int:
        return 0 if self.first_blocks is None else int(self.first_blocks[-1])

    def each(self, task: Callable[..., Any], *given: Sequence[Any]) -> tuple[Any, ...]:
        """Futures of the task on every share; every item of `given` has one argument for each share."""
        arguments = zip(self.shares, *given, strict=True)
        return tuple(
            submit(self.client, task, *mine, home=home) for mine, home in zip(arguments, self.homes, strict=True)
        )

    def statistics(self, model: Model) -> BlockStatistics:
        """First round: each share is summed where it is, the shares are added in their order."""
        answers = self._round(worker_tasks.statistics_of_share, model)
        parts: list[BlockStatistics] = [answer.unpacked() for answer in answers]
        return sum(parts[1:], start=parts[0])

    def adjoint_totals(self, model: Model, q: InducingPosterior, hyper: Hyperparameters) -> AdjointTotals:
        """Second round: the gradient through all rows is added to that of `hyper`, in the order of the shares."""
        answers = self._round(worker_tasks.adjoint_of_share, Question.of(model, q))
        for answer in answers:
            add_gradients(hyper, answer.gradients)
        totals: list[AdjointTotals] = [answer.totals(len(q.mean)) for answer in answers]
        return sum(totals[1:], start=totals[0])

    def _round(self, task: Callable[..., Any], message: Any) -> list[Any]:
        executor = DaskExecutor(self.client, dict.fromkeys(self.homes, 1), traffic=self.traffic)
        return executor.map(task, executor.adopt(self.shares, self.homes), message)

    def random_part(self, fraction: float, seed: int) -> "DistributedRows":
        """That fraction of the rows of each share, at random; parts with the same seed are nested."""
        n = len(self.shares)
        shares = self.each(worker_tasks.random_share, [fraction] * n, [(seed, k) for k in range(n)])
        counts = tuple(round(fraction * count) for count in self.counts)
        weight = self.total_weight * sum(counts) / max(len(self), 1)
        return replace(self, shares=shares, counts=counts, total_weight=weight)

    def some_blocks(self, chosen: NDArray[np.int64]) -> "DistributedRows":
        """Whole blocks, by their numbers."""
        assert self.first_blocks is not None
        own = [
            chosen[(chosen >= first) & (chosen < stop)] - first
            for first, stop in zip(self.first_blocks[:-1], self.first_blocks[1:], strict=True)
        ]
        shares = self.each(worker_tasks.some_blocks, own)
        counts = tuple(gathered(self.client, [submit(self.client, len, share) for share in shares]))
        weight = self.total_weight * sum(counts) / max(len(self), 1)
        first_blocks = np.concatenate([[0], np.cumsum([len(blocks) for blocks in own])])
        return replace(self, shares=shares, counts=counts, total_weight=weight, first_blocks=first_blocks)

    def gather(self) -> Rows:
        """All rows in the memory of this process, sorted by block where there are blocks."""
        parts = gathered(self.client, self.shares)
        block = joined([part.all for part in parts])
        if self.first_blocks is None:
            return Rows(block)
        sizes = torch.cat([part.offsets.diff() for part in parts])
        return Rows(block, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
