"""`Rows` that live on workers: a share of them on each, read there and kept there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsegp.cluster.client import submit
from sparsegp.cluster.executor import DaskExecutor
from sparsegp.core import partition
from sparsegp.core.block import Answer, Block, MemoryRows, Rows, Sizes, Sum
from sparsegp.parallel import Placed, itself

Task = Callable[[MemoryRows], Any]


@dataclass(frozen=True)
class DaskRows:
    """Shares of the rows, each `MemoryRows` on one worker, and what the driver must know of them.

    `counts` are the rows of each share; `first_blocks`, for rows in blocks, is the first block of each share and the
    number of all blocks. Random blocks have between `fewest_block_rows` and `most_block_rows` rows, more than in
    memory: a block must be worth the message of M(M+1)/2 numbers that it sends.
    """

    executor: DaskExecutor
    shares: Placed
    counts: tuple[int, ...]
    total_weight: float
    sample: MemoryRows
    least_noise_var: float | None = None
    mean_noise_var: float | None = None
    first_blocks: NDArray[np.int64] | None = None
    fewest_block_rows: int = 64
    most_block_rows: int = 8192
    usual_steps: int = 32

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def n_features(self) -> int:
        return self.sample.n_features

    @property
    def dtype(self) -> torch.dtype:
        return self.sample.dtype

    @property
    def n_blocks(self) -> int:
        return 0 if self.first_blocks is None else int(self.first_blocks[-1])

    @property
    def serials(self) -> Tensor | None:
        if self.first_blocks is None:
            return None
        found = self.executor.map(serials_of, self.shares)
        return None if any(part is None for part in found) else torch.cat(found)

    @property
    def largest_part(self) -> int:
        return len(self)

    def sum(self, task: Callable[[MemoryRows], Sum]) -> Sum:
        """One round: each share is summed where it is, the shares are added in their order."""
        total: Sum = reduce(add, self.executor.map(asked, self.shares, task))
        return total

    def parts(self, sizes: Sequence[int], rng: np.random.Generator, *, by_block: bool) -> Iterator[Rows]:
        """The first of several parts is taken from the sample, here: a round would take longer than its rows."""
        order = rng.permutation(self.n_blocks if by_block else len(self.sample))
        seed: int | None = None
        for k, size in enumerate(sizes):
            if size >= len(self):
                yield self
            elif by_block:
                yield self._some_blocks(order[: max(1, round(size / len(self) * len(order)))])
            elif k == 0 and size <= len(self.sample):
                yield self.sample.subset(torch.from_numpy(np.sort(order[:size])))
            else:
                seed = int(rng.integers(2**31)) if seed is None else seed
                yield self._random_part(size / len(self), seed)

    def _random_part(self, fraction: float, seed: int) -> "DaskRows":
        """That fraction of the rows of each share, at random; parts with the same seed are nested."""
        seeds = [(seed, k) for k in range(len(self.shares))]
        return self._with(*self.executor.step(random_share, self.shares, fraction, each=seeds))

    def subset_of_blocks(self, blocks: Tensor) -> "DaskRows":
        return self._some_blocks(blocks.numpy())

    def _some_blocks(self, chosen: NDArray[np.int64]) -> "DaskRows":
        assert self.first_blocks is not None
        own = [
            chosen[(chosen >= first) & (chosen < stop)] - first
            for first, stop in zip(self.first_blocks[:-1], self.first_blocks[1:], strict=True)
        ]
        part = self._with(*self.executor.step(some_blocks, self.shares, each=own))
        return replace(part, first_blocks=np.concatenate([[0], np.cumsum([len(blocks) for blocks in own])]))

    def _with(self, shares: Placed, counts: Sequence[int]) -> "DaskRows":
        """A part of the rows, about as heavy as its number of rows."""
        weight = self.total_weight * sum(counts) / max(len(self), 1)
        return replace(self, shares=shares, counts=tuple(counts), total_weight=weight)

    def in_blocks(self, assign: Callable[[Tensor], Tensor], n_blocks: int) -> "DaskRows":
        """Every block whole on one worker, neighbours together.

        Rows go from worker to worker; the driver sees the sizes of blocks only. Within a block, rows keep the order of
        the source.
        """
        first = [sum(self.counts[:k]) for k in range(len(self.counts))]
        in_order, sizes_of_shares = self.executor.step(sorted_share, self.shares, assign, n_blocks, each=first)
        sizes = np.sum(sizes_of_shares, axis=0)
        homes, futures = self.shares.homes, self.executor.futures(in_order)
        first_blocks = block_ranges(sizes, len(homes))
        merged, counts = [], []
        for start, stop, home in zip(first_blocks[:-1], first_blocks[1:], homes, strict=True):
            pieces = [submit(self.executor.client, block_range, share, start, stop) for share in futures]
            merged.append(submit(self.executor.client, merged_blocks, pieces, home=home))
            counts.append(int(sizes[start:stop].sum()))
        shares = self.executor.adopt(merged, homes, counts)
        sample = self.sample.in_blocks(assign, n_blocks)
        return replace(self, shares=shares, counts=tuple(counts), sample=sample, first_blocks=first_blocks)

    def draws(self, block_rows: int, rng: np.random.Generator, *, by_block: bool) -> "DaskBlocks":
        """The rows' own blocks, or random ones inside every share."""
        rows = self if by_block else self._shuffled(int(rng.integers(2**31)))
        return DaskBlocks(rows, np.concatenate(self.executor.map(block_weights, rows.shares)))

    def _shuffled(self, seed: int) -> "DaskRows":
        block_rows = min(self.most_block_rows, max(self.fewest_block_rows, len(self) // self.usual_steps))
        n_blocks = [max(1, -(-count // block_rows)) for count in self.counts]
        own = [(n, (seed, k)) for k, n in enumerate(n_blocks)]
        shares, _ = self.executor.step(shuffled_share, self.shares, each=own)
        return replace(self, shares=shares, first_blocks=np.concatenate([[0], np.cumsum(n_blocks)]))

    def store(self) -> MemoryRows:
        """In the memory of this process: a model must not depend on the workers."""
        return self._gathered

    @cached_property
    def _gathered(self) -> MemoryRows:
        return MemoryRows.concat(self.executor.map(itself, self.shares))

    def report(self) -> dict[str, Any]:
        traffic = self.executor.traffic
        return {
            "cluster": {
                "workers": len(self.shares),
                "rounds": traffic.rounds,
                "bytes_through_scheduler": traffic.total,
                "bytes_per_evaluation": round(2 * traffic.total / max(1, traffic.rounds)),
            }
        }


@dataclass(frozen=True)
class DaskBlocks:
    """A `BlockSource` of rows on workers; blocks are numbered through the shares."""

    rows: DaskRows
    sizes: Sizes
    _tasks: dict[int, tuple[Any, Placed]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def n_blocks(self) -> int:
        return self.rows.n_blocks

    @property
    def per_step(self) -> int:
        return len(self.rows.shares)

    def block(self, k: int) -> Block:
        """The rows of block k, which come to this process."""
        share, number = self._place(k)
        found: list[Block] = self.rows.executor.map(block_of, self.rows.shares.subset([share]), number)
        return found[0]

    def each(self, task: Callable[[Block], Answer], index: Sequence[int]) -> list[Answer]:
        """Not summed on the way: the stopping rule judges how blocks differ."""
        places = [self._place(k) for k in index]
        numbers = [[number for share, number in places if share == mine] for mine in range(self.per_step)]
        answers = self.rows.executor.map(answers_of_blocks, self._with_task(task), each=numbers)
        waiting = [iter(found) for found in answers]
        return [next(waiting[share]) for share, _ in places]

    def _place(self, k: int) -> tuple[int, int]:
        """The share of block k and its number there."""
        assert self.rows.first_blocks is not None
        share = int(np.searchsorted(self.rows.first_blocks, k, side="right")) - 1
        return share, int(k - self.rows.first_blocks[share])

    def _with_task(self, task: Any) -> Placed:
        """Every share beside the task, sent once: steps at the same hyper-parameters send block numbers only."""
        if id(task) not in self._tasks:
            together, _ = self.rows.executor.step(beside_task, self.rows.shares, task)
            self._tasks[id(task)] = task, together  # the task stays alive, and its id its own
        return self._tasks[id(task)][1]


def block_ranges(sizes: NDArray[np.int64], n_shares: int) -> NDArray[np.int64]:
    """First block of each share and the number of blocks; shares are consecutive and about equally large."""
    middle = np.cumsum(sizes) - sizes / 2.0
    inner = np.searchsorted(middle, np.arange(1, n_shares) * float(sizes.sum()) / n_shares)
    ranges: NDArray[np.int64] = np.concatenate([[0], inner, [len(sizes)]]).astype(np.int64)
    return ranges


# What workers do with their share. Every function is pure: a lost result is computed again.


def asked(rows: MemoryRows, task: Task) -> Any:
    return task(rows)


def beside_task(rows: MemoryRows, task: Any) -> tuple[Any, None]:
    return (rows, task), None


def answers_of_blocks(held: tuple[MemoryRows, Callable[[Block], Any]], blocks: list[int]) -> list[Any]:
    rows, task = held
    return [task(rows.block(k)) for k in blocks]


def block_of(rows: MemoryRows, k: int) -> Block:
    return rows.block(k)


def shuffled_share(rows: MemoryRows, own: tuple[int, tuple[int, int]]) -> tuple[MemoryRows, None]:
    """The rows in random blocks of equal size (up to one row)."""
    n_blocks, seed = own
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))
    return MemoryRows(rows.all.take(order), torch.arange(n_blocks + 1) * len(rows) // n_blocks), None


def block_weights(rows: MemoryRows) -> NDArray[np.float64]:
    """Rows of each block, counted with their weights."""
    return np.array([rows.block(k).n_rows for k in range(rows.n_blocks)])


def random_share(rows: MemoryRows, seed: tuple[int, int], fraction: float) -> tuple[MemoryRows, int]:
    """A random part of the rows, nested: a larger fraction with the same seed has the same rows and more."""
    order = np.random.default_rng(seed).permutation(len(rows))
    part = rows.subset(torch.from_numpy(np.sort(order[: round(fraction * len(rows))])))
    return part, len(part)


def sorted_share(
    rows: MemoryRows, first: int, assign: Callable[[Tensor], Tensor], n_blocks: int
) -> tuple[MemoryRows, NDArray[np.int64]]:
    """The rows sorted by block, and the sizes of all blocks; `first` is the serial number of the first row."""
    in_order = rows.in_blocks(assign, n_blocks)
    assert in_order.serials is not None
    return replace(in_order, serials=first + in_order.serials), block_sizes(in_order)


def serials_of(rows: MemoryRows) -> Tensor | None:
    return rows.serials


def block_sizes(rows: MemoryRows) -> NDArray[np.int64]:
    assert rows.offsets is not None
    return rows.offsets.diff().numpy()


def some_blocks(rows: MemoryRows, blocks: NDArray[np.int64]) -> tuple[MemoryRows, int]:
    part = rows.subset_of_blocks(torch.from_numpy(np.array(blocks)))
    return part, len(part)


def block_range(rows: MemoryRows, first: int, stop: int) -> MemoryRows:
    return rows.subset_of_blocks(torch.arange(int(first), int(stop)))


def merged_blocks(parts: list[MemoryRows]) -> MemoryRows:
    """The same blocks from several shares, each made whole; rows of earlier shares come first in it."""
    numbers = [torch.repeat_interleave(torch.arange(p.n_blocks), torch.from_numpy(block_sizes(p))) for p in parts]
    order, offsets = partition.block_slices(torch.cat(numbers), parts[0].n_blocks)
    serials = torch.cat([part.serials for part in parts if part.serials is not None])
    return MemoryRows(Block.concat([part.all for part in parts]).take(order), offsets, serials[order])
