"""Conformance of an implementation of `Rows`: it says what the same rows in memory say."""

import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegp import kernels
from sparsegp.core import approximations
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.infer.batch import StatisticsOfBlock, StatisticsOfRows, statistics_of
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective

N_INDUCING = 5


def check_rows(rows: Rows, expected: MemoryRows) -> None:
    """Raise an AssertionError that says which promise of `Rows` these rows break.

    Parameters
    ----------
    rows : Rows
        Rows in any place. Sorted into blocks or not.
    expected : MemoryRows
        The same rows in memory, in the same blocks. Without blocks, in any order.
    """
    _check_facts(rows, expected)
    by_block = rows.n_blocks > 0
    _check_sums(rows, expected, "pitc" if by_block else "fitc")
    _check_objective(rows, expected, "block-pep" if by_block else "vfe")
    _check_parts(rows, expected, by_block=by_block)
    _check_sample(rows, expected)
    if by_block:
        _check_blocks(rows, expected)
        _check_draws(rows, expected)
    else:
        _check_sorting(rows, expected)


def _check_facts(rows: Rows, expected: MemoryRows) -> None:
    for name in ("n_features", "dtype", "n_blocks"):
        found, wanted = getattr(rows, name), getattr(expected, name)
        assert found == wanted, f"{name} is {found}; the rows in memory have {wanted}"
    assert len(rows) == len(expected), f"len is {len(rows)}; there are {len(expected)} rows"
    for name in ("total_weight", "least_noise_var", "mean_noise_var"):
        found, wanted = getattr(rows, name), getattr(expected, name)
        same = found is wanted or (found is not None and wanted is not None and np.isclose(found, wanted, rtol=1e-12))
        assert same, f"{name} is {found}; that of the rows in memory is {wanted}"


def _prior(expected: MemoryRows, name: str) -> Any:
    return _hyperparameters(expected).prior(approximations.get(name, 0.4))


def _hyperparameters(expected: MemoryRows) -> Hyperparameters:
    X = expected.all.X.to(torch.float64)
    lengthscales = (X.std(0) + 0.5).tolist()
    chosen = X[torch.linspace(0, len(X) - 1, min(N_INDUCING, len(X))).long()] + 0.1
    known = expected.all.noise_var is not None
    return Hyperparameters(kernels.Matern32(1.3, lengthscales), 0.2, chosen, learn_noise=not known)


def _tolerance(expected: MemoryRows) -> float:
    return 1e-9 if expected.dtype == torch.float64 else 2e-4


def _near(found: Any, wanted: Any, what: str, tolerance: float) -> None:
    found, wanted = (torch.as_tensor(value, dtype=torch.float64) for value in (found, wanted))
    size = float(wanted.abs().max()) or 1.0
    gap = float((found - wanted).abs().max()) / size
    assert gap <= tolerance, f"{what} differ by {gap:.1e} of their size from those of the rows in memory"


def _check_sums(rows: Rows, expected: MemoryRows, name: str) -> None:
    """A sum is that of the rows in memory, and equal to the last digit when it is taken again."""
    prior = _prior(expected, name)
    task = pickle.loads(pickle.dumps(StatisticsOfRows(prior)))
    found, again, wanted = rows.sum(task), rows.sum(task), expected.sum(StatisticsOfRows(prior))
    tolerance = _tolerance(expected)
    for part in ("precision", "shift", "noise_logdet", "target_sq", "penalty", "n_rows"):
        _near(getattr(found, part), getattr(wanted, part), f"sums of {part}", tolerance)
    assert torch.equal(found.precision, again.precision), "the same sum, taken twice, has other last digits"


def _check_objective(rows: Rows, expected: MemoryRows, name: str) -> None:
    found, wanted = _hyperparameters(expected), _hyperparameters(expected)
    approx, tolerance = approximations.get(name, 0.4), 10.0 * _tolerance(expected)
    value = CollapsedObjective(rows, approx).value_and_gradient(found)
    _near(value, CollapsedObjective(expected, approx).value_and_gradient(wanted), "values of the objective", tolerance)
    _near(found.gradient(), wanted.gradient(), "gradients of the objective", tolerance)


def _check_parts(rows: Rows, expected: MemoryRows, *, by_block: bool) -> None:
    """Nested, of about the sizes asked for, rows of the whole; the last is all of them."""
    small = max(1, min(len(rows) // 4, rows.largest_part))
    large = max(small, min(len(rows) // 2, rows.largest_part))
    first, second, whole = rows.parts([small, large, len(rows)], np.random.default_rng(0), by_block=by_block)
    assert len(whole) == len(rows), f"the part of all {len(rows)} rows has {len(whole)}"
    if not by_block:
        for part, size in ((first, small), (second, large)):
            assert abs(len(part) - size) <= 2, f"a part of {size} rows was asked for; this one has {len(part)}"
    held, of_second = _rows_of(first), _rows_of(second)
    assert held <= _rows_of(expected), "a part has rows that the whole has not"
    if first.n_blocks or isinstance(second, type(first)):
        assert held <= of_second, "parts are not nested"


def _check_sample(rows: Rows, expected: MemoryRows) -> None:
    sample = rows.sample
    assert isinstance(sample, MemoryRows), f"the sample is in memory; this one is a {type(sample).__name__}"
    assert 0 < len(sample) <= len(rows), f"the sample has {len(sample)} of {len(rows)} rows"
    assert _rows_of(sample) <= _rows_of(expected), "the sample has rows that the whole has not"


def _check_blocks(rows: Rows, expected: MemoryRows) -> None:
    store = rows.store()
    assert store.n_blocks == expected.n_blocks, f"the store has {store.n_blocks} blocks of {expected.n_blocks}"
    for k in range(expected.n_blocks):
        _same_rows(store.block(k), expected.block(k), f"block {k} of the store")
    chosen = torch.arange(expected.n_blocks - 1, -1, -2)
    some = rows.subset_of_blocks(chosen)
    wanted = expected.subset_of_blocks(chosen)
    assert len(some) == len(wanted), f"{len(chosen)} blocks have {len(some)} rows instead of {len(wanted)}"
    prior = _prior(expected, "pitc")
    found, summed = statistics_of(prior, some), statistics_of(prior, wanted)
    _near(found.precision, summed.precision, "sums over some blocks", _tolerance(expected))


def _check_draws(rows: Rows, expected: MemoryRows) -> None:
    """Blocks can be drawn one by one, and all of them together are the whole."""
    source, prior = rows.draws(7, np.random.default_rng(0), by_block=True), _prior(expected, "pitc")
    assert source.per_step >= 1
    _near(source.sizes.sum(), expected.total_weight, "sizes of blocks", 1e-9)
    filled = np.flatnonzero(source.sizes > 0).tolist()
    parts = source.each(StatisticsOfBlock(prior), filled)
    wanted = statistics_of(prior, expected)
    _near(sum(parts[1:], start=parts[0]).precision, wanted.precision, "sums of single blocks", _tolerance(expected))
    _same_rows(source.block(filled[0]), _block_of(expected, source.block(filled[0])), "a block that was drawn")


def _check_sorting(rows: Rows, expected: MemoryRows) -> None:
    """Rows sorted into blocks are the same rows, each in the block it was assigned to."""
    assign = HalfSpaces(float(expected.all.X[:, 0].median()))
    in_order, wanted = rows.in_blocks(assign, 3), expected.in_blocks(assign, 3)
    assert in_order.n_blocks == 3, f"{in_order.n_blocks} blocks instead of 3"
    store = in_order.store()
    for k in range(3):
        _same_rows(store.block(k), wanted.block(k), f"block {k} after sorting")
    assert in_order.serials is not None, "rows that were sorted do not say which ones they were"
    before, after = rows.sum(KeepRows()).all.X, in_order.sum(KeepRows()).all.X
    assert torch.equal(before[in_order.serials], after), "serials do not say which rows these were before"


class HalfSpaces:
    """Block 0 below a number in the first column, block 2 above it; block 1 is empty."""

    def __init__(self, border: float) -> None:
        self.border = border

    def __call__(self, X: Tensor) -> Tensor:
        return 2 * (X[:, 0] > self.border).long()


_Row = tuple[float, ...]


def _rows_of(rows: Rows) -> set[_Row]:
    held = rows if isinstance(rows, MemoryRows) else rows.sum(KeepRows())
    return {tuple(row) for row in torch.cat([held.all.X, held.all.y[:, None]], dim=1).tolist()}


class KeepRows:
    """Task of a pass: the rows themselves."""

    def __call__(self, rows: MemoryRows) -> "Together":
        return Together(rows.all)


class Together:
    """Rows that add up to more rows."""

    def __init__(self, block: Block) -> None:
        self.all = block

    def __add__(self, other: "Together") -> "Together":
        return Together(Block.concat([self.all, other.all]))


def _block_of(rows: MemoryRows, block: Block) -> Block:
    """The block of the rows that has the first row of a block."""
    for candidate in rows.blocks():
        if bool((block.X[0] == candidate.X).all(1).any()):
            return candidate
    raise AssertionError("a block that was drawn has rows that the whole has not")


def _same_rows(found: Block, wanted: Block, what: str) -> None:
    """The same rows, in any order, with their noise and weights."""
    assert len(found) == len(wanted), f"{what} has {len(found)} rows instead of {len(wanted)}"
    if not len(found):
        return
    orders: list[Tensor] = []
    for block in (found, wanted):
        keys = torch.cat([block.X, block.y[:, None]], dim=1).tolist()
        orders.append(torch.tensor(sorted(range(len(keys)), key=keys.__getitem__)))
    for name in ("X", "y", "noise_var", "weight"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), f"{what}: {name} is known in one and not in the other"
        same = one is None or torch.allclose(one[orders[0]], other[orders[1]], rtol=1e-6)
        assert same, f"{what}: {name} of the rows differs"
