"""Laws of blocks: the block of a point depends on the point alone; no block is far above the median size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsegp.core import partition
from sparsegp.core.partition import Partition, block_slices, from_labels, kmeans_partition, random_partition
from sparsegp.errors import InputError

LAYOUTS = ("normal", "uniform", "lognormal", "cauchy", "clusters", "core and halo", "far clusters")


def scattered(layout: str, n: int, D: int, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n, D))
    member = rng.choice(6, n, p=[0.5, 0.25, 0.15, 0.05, 0.03, 0.02])
    scale = 10.0 ** -np.arange(6)[member, None]
    halo = rng.uniform(size=(n, 1)) < 0.1
    values = {
        "normal": noise,
        "uniform": rng.uniform(size=(n, D)),
        "lognormal": np.exp(2.0 * noise),
        "cauchy": rng.standard_cauchy(size=(n, D)),
        "clusters": 10.0 * rng.normal(size=(6, D))[member] + scale * noise,
        "core and halo": np.where(halo, 5.0, 1e-3) * noise,
        "far clusters": 1e7 * np.arange(6)[member, None] + noise,
    }
    return torch.from_numpy(values[layout])


def block_sizes(found: Partition, X: Tensor) -> Tensor:
    return torch.bincount(found.assign(X), minlength=found.n_blocks)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Tensor, int, int]:
    n, D = draw(st.integers(1, 400)), draw(st.integers(1, 4))
    X = scattered(draw(st.sampled_from(LAYOUTS)), n, D, draw(st.integers(0, 1000)))
    return X, draw(st.integers(1, n + 3)), draw(st.integers(0, 1000))


@settings(deadline=None, max_examples=60)
@given(layouts())
def test_no_block_is_empty_or_above_twice_the_median(case: tuple[Tensor, int, int]) -> None:
    X, n_blocks, seed = case
    sizes = block_sizes(kmeans_partition(X, n_blocks, np.random.default_rng(seed)), X)
    assert int(sizes.sum()) == len(X)
    assert int(sizes.min()) >= 1
    assert float(sizes.max()) <= 2.0 * np.median(sizes.numpy())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("n", "D", "n_blocks"), [(3000, 2, 30), (4000, 8, 40), (6000, 3, 150)])
def test_number_of_blocks_is_close_to_the_request(layout: str, n: int, D: int, n_blocks: int) -> None:
    X = scattered(layout, n, D, seed=4)
    found = kmeans_partition(X, n_blocks, np.random.default_rng(5))
    sizes = block_sizes(found, X).numpy()
    assert 0.9 * n_blocks <= found.n_blocks <= 1.1 * n_blocks
    assert sizes.max() <= 2.0 * np.median(sizes)


@settings(deadline=None, max_examples=30)
@given(layouts(), st.integers(1, 50))
def test_block_of_a_point_does_not_depend_on_other_points(case: tuple[Tensor, int, int], some: int) -> None:
    X, n_blocks, seed = case
    found = kmeans_partition(X, n_blocks, np.random.default_rng(seed))
    together = found.assign(X)
    chosen = torch.from_numpy(np.random.default_rng(some).permutation(len(X))[:some])
    assert torch.equal(found.assign(X[chosen]), together[chosen])
    assert all(int(found.assign(X[i : i + 1])) == int(together[i]) for i in chosen[:10])


def test_assignment_is_the_nearest_centroid_also_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    X = scattered("normal", 700, 3, seed=1)
    centroids = scattered("normal", 40, 3, seed=2)
    nearest = (X[:, None, :] - centroids[None]).square().sum(2).argmin(1)
    assert torch.equal(Partition(centroids).assign(X), nearest)
    monkeypatch.setattr(partition, "_CHUNK_ENTRIES", 90)
    assert torch.equal(Partition(centroids).assign(X), nearest)


@pytest.mark.parametrize("offset", [0.0, 7.0, 1e6])
def test_ties_go_to_the_first_centroid_however_the_rows_are_grouped(offset: float) -> None:
    corners = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    points = torch.tensor([[1.0, 1.0], [0.0, 1.0], [2.0, 1.0], [0.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    found = Partition(corners + offset)
    rows = (points + offset).repeat(101, 1)
    assert found.assign(rows).tolist() == [0, 0, 2, 0, 2] * 101


@pytest.mark.parametrize("n_rows", [1, 3, 500])
def test_equally_near_mirror_images_are_a_tie_in_spite_of_rounding(n_rows: int) -> None:
    right = scattered("normal", 37, 3, seed=1).abs()
    left = right * torch.tensor([-1.0, 1.0, 1.0])
    points = scattered("normal", n_rows, 3, seed=2) * torch.tensor([0.0, 1.0, 1.0])
    assert int(Partition(torch.cat([right, left])).assign(points).max()) < 37
    assert int(Partition(torch.cat([left, right])).assign(points).max()) < 37


def test_far_from_the_origin_blocks_are_still_told_apart() -> None:
    X = 1e9 + torch.arange(64, dtype=torch.float64)[:, None]
    found = Partition(X[::8].clone())
    assert found.assign(X).tolist() == [min((i + 3) // 8, 7) for i in range(64)]


def test_equal_rows_share_a_block_even_beyond_the_cap() -> None:
    spread = scattered("normal", 90, 2, seed=3)
    X = torch.cat([spread, torch.full((300, 2), 0.25, dtype=torch.float64)])
    found = kmeans_partition(X, 15, np.random.default_rng(0))
    labels, sizes = found.assign(X), block_sizes(found, X)
    assert len(labels[90:].unique()) == 1
    others = torch.arange(found.n_blocks) != labels[-1]
    assert float(sizes[others].max()) <= 2.0 * np.median(sizes.numpy())
    assert int((labels[:90] == labels[-1]).sum()) == 0


def test_integer_grid_is_partitioned() -> None:
    axis = torch.arange(20, dtype=torch.float64)
    X = torch.cartesian_prod(axis, axis)
    sizes = block_sizes(kmeans_partition(X, 25, np.random.default_rng(0)), X)
    assert float(sizes.max()) <= 2.0 * np.median(sizes.numpy())


@pytest.mark.parametrize(
    ("X", "n_blocks", "expected"),
    [
        (torch.full((50, 3), 2.5, dtype=torch.float64), 7, 1),
        (torch.ones(1, 2, dtype=torch.float64), 4, 1),
        (scattered("normal", 12, 2, seed=0), 12, 12),
        (scattered("normal", 12, 2, seed=0), 99, 12),
        (scattered("normal", 300, 2, seed=0), 300, 300),
        (scattered("normal", 30, 2, seed=0), 1, 1),
    ],
)
def test_degenerate_requests(X: Tensor, n_blocks: int, expected: int) -> None:
    assert kmeans_partition(X, n_blocks, np.random.default_rng(0)).n_blocks == expected


def test_same_generator_same_partition() -> None:
    X = scattered("clusters", 900, 3, seed=6)
    first, second = (kmeans_partition(X, 120, np.random.default_rng(9)) for _ in range(2))
    assert torch.equal(first.centroids, second.centroids)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200), st.integers(1, 250), st.integers(0, 99))
def test_random_blocks_are_balanced(n: int, n_blocks: int, seed: int) -> None:
    labels = random_partition(n, n_blocks, np.random.default_rng(seed))
    sizes = torch.bincount(labels)
    assert labels.dtype == torch.int64
    assert len(sizes) == min(n, n_blocks)
    assert int(sizes.max()) - int(sizes.min()) <= 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 6), max_size=60), st.integers(7, 9))
def test_block_slices_are_a_stable_permutation(values: list[int], n_blocks: int) -> None:
    labels = torch.tensor(values, dtype=torch.int64)
    order, offsets = block_slices(labels, n_blocks)
    assert sorted(order.tolist()) == list(range(len(values)))
    assert len(offsets) == n_blocks + 1
    for k in range(n_blocks):
        assert order[offsets[k] : offsets[k + 1]].tolist() == [i for i, v in enumerate(values) if v == k]


def test_given_labels_are_renumbered_and_located_at_block_means() -> None:
    X = scattered("normal", 40, 2, seed=8)
    given_labels = np.random.default_rng(0).choice([-5, 3, 1000], 40)
    found, labels, originals = from_labels(X, given_labels)
    assert originals[labels].tolist() == given_labels.tolist()
    assert originals.tolist() == [-5, 3, 1000]
    for k in range(3):
        torch.testing.assert_close(found.centroids[k], X[labels == k].mean(0))
    assert found.assign(found.centroids).tolist() == [0, 1, 2]


@pytest.mark.parametrize("labels", [[0.0, 1.0, 1.0], [0, 1], [[0], [1], [2]], ["a", "b", "c"], [True, False, True]])
def test_unusable_labels_are_refused(labels: list[object]) -> None:
    with pytest.raises(InputError, match="label"):
        from_labels(torch.zeros(3, 2, dtype=torch.float64), np.asarray(labels))


def test_unusable_requests_are_refused() -> None:
    X, rng = scattered("normal", 10, 2, seed=0), np.random.default_rng(0)
    with pytest.raises(InputError, match="n_blocks must be at least 1"):
        kmeans_partition(X, 0, rng)
    with pytest.raises(InputError, match="max_ratio"):
        kmeans_partition(X, 2, rng, max_ratio=1.0)
    with pytest.raises(InputError, match="at least one row"):
        kmeans_partition(X[:0], 2, rng)
    with pytest.raises(InputError, match="same columns as in fit"):
        kmeans_partition(X, 2, rng).assign(X[:, :1])
    with pytest.raises(InputError, match=r"0\.\.1"):
        block_slices(torch.tensor([0, 2]), 2)
    with pytest.raises(InputError, match="at least one row and one block"):
        random_partition(5, 0, rng)
