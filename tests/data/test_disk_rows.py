"""Blocks on disk: the same rows in the same blocks as in memory, and the same models from them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import CHANGES, Problem, agree, get_row, random_problem
from sparsegp.core import reasons
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.partition import Blocking, block_slices, kmeans_partition
from sparsegp.data import open_source, scan
from sparsegp.data.disk_rows import DiskRows, random_block, write_blocks
from sparsegp.data.rows import SourceRows
from sparsegp.errors import InputError
from sparsegp.fit.scaling import Scaling
from sparsegp.infer import anytime_run, batch


def random_block_of(n_rows: int, seed: int = 0, *, noise: bool = False, weight: bool = False) -> Block:
    rng = np.random.default_rng(seed)
    X, y, v, w = rng.normal(size=(n_rows, 3)), rng.normal(size=n_rows), rng.random(n_rows), rng.random(n_rows)
    tensors = [torch.from_numpy(values) for values in (X, y, v + 0.1, w + 0.1)]
    return Block(tensors[0], tensors[1], tensors[2] if noise else None, tensors[3] if weight else None)


def in_groups(block: Block, size: int) -> Iterator[MemoryRows]:
    return (MemoryRows(chunk) for chunk in MemoryRows(block).chunks(size))


def same(got: Block, expected: Block) -> None:
    for name in ("X", "y", "noise_var", "weight"):
        left, right = getattr(got, name), getattr(expected, name)
        assert (left is None) == (right is None)
        assert left is None or torch.equal(left, right)


def on_disk(problem: Problem, folder: Path) -> DiskRows:
    """The problem's own blocks, its rows written in their shuffled order."""
    label_of = {tuple(x): k for x, k in zip(problem.X.tolist(), problem.labels.tolist(), strict=True)}

    def assign(X: torch.Tensor) -> torch.Tensor:
        return torch.tensor([label_of[tuple(x)] for x in X.tolist()])

    groups = in_groups(problem.block, 7)
    return write_blocks(groups, assign, problem.n_blocks, folder, n_rows=len(problem.y), file_bytes=200)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 80),
    st.integers(1, 12),
    st.integers(1, 30),
    st.sampled_from([100, 700, 10**6]),
    st.booleans(),
    st.booleans(),
)
def test_blocks_on_disk_are_those_in_memory(
    seed: int, n_rows: int, n_blocks: int, group: int, file_bytes: int, noise: bool, weight: bool
) -> None:
    block = random_block_of(n_rows, seed, noise=noise, weight=weight)
    labels = torch.from_numpy(np.random.default_rng(seed).integers(n_blocks, size=n_rows))
    given_labels = iter(labels.split(group))
    order, offsets = block_slices(labels, n_blocks)
    expected = MemoryRows(block.take(order), offsets)
    with TemporaryDirectory() as name:
        groups = in_groups(block, group)
        write_blocks(
            groups, lambda _: next(given_labels), n_blocks, Path(name) / "new", n_rows=n_rows, file_bytes=file_bytes
        )
        found = DiskRows.open(Path(name) / "new")
        assert (found.n_blocks, len(found)) == (n_blocks, n_rows)
        for k in range(n_blocks):
            same(found.block(k), expected.block(k))
            assert found.sizes[k] == pytest.approx(expected.block(k).n_rows)
        passed = [part for rows in found for part in rows.blocks()]
    for got, reference in zip(passed, expected.blocks(), strict=True):
        same(got, reference)


@pytest.mark.parametrize("change", [None, *CHANGES])
@pytest.mark.parametrize("name", ["pitc", "pic", "block-pep", "fitc"])
def test_models_from_disk_are_those_from_memory(name: str, change: str | None, tmp_path: Path) -> None:
    problem = random_problem(11)
    problem = problem if change is None else CHANGES[change](problem)
    blocks = on_disk(problem, tmp_path / "blocks")
    state, posterior, info = batch.infer(problem.prior(get_row(name)), blocks)
    expected, evidence = problem.infer(get_row(name))
    agree((info.log_evidence, *problem.predict(posterior)), (evidence, *problem.predict(expected)), rtol=1e-9)
    assert state.statistics.n_rows == pytest.approx(problem.rows.all.n_rows)


@pytest.mark.parametrize("name", ["pic", "dtc"])
def test_an_anytime_run_from_disk_ends_at_the_batch(name: str, tmp_path: Path) -> None:
    problem = random_problem(12)
    blocks = on_disk(problem, tmp_path / "blocks")
    *_, last = anytime_run.run(problem.prior(get_row(name)), blocks, rng=np.random.default_rng(0))
    assert last.reason == reasons.EXACT
    expected, _ = problem.infer(get_row(name))
    agree(problem.predict(last.posterior), problem.predict(expected), rtol=1e-9)


def test_a_parquet_file_becomes_blocks_of_nearest_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(3000, 2)) * [1.0, 50.0], rng.normal(size=3000)
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y}), tmp_path / "rows.parquet", row_group_size=700)
    source = open_source(tmp_path / "rows.parquet", target="y")
    found = scan(source, rng, sample_rows=500)
    units = Scaling(found.x_mean, found.x_scale, found.y_mean, found.y_scale)
    metric = torch.tensor([2.0, 0.5], dtype=torch.float64)
    sample = torch.from_numpy(units.inputs(found.sample.X))
    partition = kmeans_partition(sample * metric, 20, rng)
    rows = SourceRows.of(source, found, units, group_rows=256)
    assign = Blocking(partition, metric).nearest
    blocks = write_blocks(rows, assign, partition.n_blocks, tmp_path / "blocks", n_rows=found.n_rows, file_bytes=20_000)
    assert len(list((tmp_path / "blocks").glob("*.f64"))) > 3
    assert len(blocks) == 3000
    inputs = []
    for k in range(blocks.n_blocks):
        block = blocks.block(k)
        assert (partition.assign(block.X * metric) == k).all()
        inputs.append(units.raw_inputs(block.X.numpy()))
    together = np.concatenate(inputs)
    np.testing.assert_allclose(together[together[:, 0].argsort()], X[X[:, 0].argsort()], rtol=1e-12)


def test_random_blocks_are_about_even_and_keep_float32(tmp_path: Path) -> None:
    block = random_block_of(4000)
    rows = MemoryRows(Block(block.X.to(torch.float32), block.y.to(torch.float32)))
    blocks = write_blocks([rows], random_block(10, np.random.default_rng(0)), 10, tmp_path / "b", n_rows=4000)
    # Standard deviation of a size: sqrt(4000 * 0.1 * 0.9) = 19.
    assert np.abs(blocks.sizes - 400).max() < 100
    assert blocks.block(3).X.dtype == torch.float32
    together = torch.cat([blocks.block(k).X for k in range(10)])
    assert torch.equal(together.sort(0).values, rows.all.X.sort(0).values)


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def groups(n_groups: int) -> Iterator[MemoryRows]:
        for seed in range(n_groups):
            yield MemoryRows(random_block_of(1000, seed))

    def peak(n_groups: int) -> int:
        assign = random_block(32, np.random.default_rng(0))
        tracemalloc.start()
        folder = tmp_path / str(n_groups)
        blocks = write_blocks(groups(n_groups), assign, 32, folder, n_rows=1000 * n_groups, file_bytes=100_000)
        for k in range(32):
            blocks.block(k)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(5)
    added = 50 * 1000 * random_block_of(1, 0).X.shape[1] * 8
    # other threads of the test process are counted too
    assert peak(60) - peak(10) < added / 4


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    block = random_block_of(50)
    assign = random_block(4, np.random.default_rng(0))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        write_blocks([MemoryRows(block)], assign, 4, tmp_path, n_rows=50)
    with pytest.raises(InputError, match=r"no finished blocks \(no index.json\)"):
        DiskRows.open(tmp_path)
    with pytest.raises(InputError, match="no rows"):
        write_blocks([], assign, 4, tmp_path / "none", n_rows=0)
    write_blocks([MemoryRows(block)], assign, 4, tmp_path / "new", n_rows=50, file_bytes=500)
    cut = tmp_path / "new" / "blocks-00001.f64"
    cut.write_bytes(cut.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"blocks-00001.f64' is missing or not \d+ bytes long"):
        DiskRows.open(tmp_path / "new")
    index = tmp_path / "new" / "index.json"
    index.write_text(index.read_text().replace('"version": 2', '"version": 9'))
    with pytest.raises(InputError, match="written in version 9"):
        DiskRows.open(tmp_path / "new")


def test_rows_and_labels_that_do_not_fit(tmp_path: Path) -> None:
    rows = [MemoryRows(random_block_of(20)), MemoryRows(random_block_of(20, weight=True))]
    with pytest.raises(InputError, match="give all or none"):
        write_blocks(rows, random_block(3, np.random.default_rng(0)), 3, tmp_path / "a", n_rows=40)
    with pytest.raises(InputError, match=r"must lie in 0\.\.2; got 7\.\.7"):
        write_blocks(rows[:1], lambda X: torch.full((len(X),), 7), 3, tmp_path / "b", n_rows=20)
