"""Inducing inputs: greedy equals dense pivoted Cholesky in bounded memory, and rows are always distinct."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsegp.core.inducing import CHOICES, greedy_inducing, kmeans_inducing, random_inducing, select_inducing
from sparsegp.errors import InputError


class Scaled:
    """Squared exponential times a deviation that grows with |x_1|; records the size of its largest matrix."""

    def __init__(self, lengthscale: float, growth: float = 0.0) -> None:
        self.lengthscale, self.growth, self.largest = lengthscale, growth, 0

    def __call__(self, X: Tensor, Z: Tensor) -> Tensor:
        squares = [(X[:, d, None] - Z[None, :, d]).square() for d in range(X.shape[1])]
        self.largest = max(self.largest, X.shape[0] * Z.shape[0])
        shape = torch.exp(-0.5 * torch.stack(squares).sum(0) / self.lengthscale**2)
        return self._std(X)[:, None] * self._std(Z)[None, :] * shape

    def diagonal(self, X: Tensor) -> Tensor:
        return self._std(X).square()

    def _std(self, X: Tensor) -> Tensor:
        return 1.3 + self.growth * X[:, 0].abs()


def rows(n: int, D: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, D)))


def dense_pivots(kernel: Scaled, X: Tensor, n: int, follow: list[int] | None = None) -> tuple[list[int], list[float]]:
    """Pivots of the textbook pivoted Cholesky factorisation of the whole matrix, or the pivots to `follow`.

    With them, how far the variance of each pivot was below the largest one; last, the largest one left.
    """
    K, variance = kernel(X, X), kernel.diagonal(X)
    smallest = 1e-12 * variance.max()
    factor, pivots, shortfalls = torch.zeros(len(X), 0, dtype=X.dtype), [], []
    while len(pivots) < (n if follow is None else len(follow)) and variance.max() > smallest:
        z = int(variance.argmax()) if follow is None else follow[len(pivots)]
        shortfalls.append(float(variance.max() - variance[z]))
        column = (K[:, z] - factor @ factor[z]) / variance[z].sqrt()
        factor = torch.cat([factor, column[:, None]], 1)
        variance = variance - column.square()
        variance[z] = -torch.inf
        pivots.append(z)
    return pivots, [*shortfalls, float(variance.max())]


def positions(X: Tensor, Z: Tensor) -> list[int]:
    return [int(torch.nonzero((z == X).all(1))[0]) for z in Z]


def n_distinct(X: Tensor) -> int:
    return len({tuple(row) for row in X.tolist()})


@pytest.mark.parametrize("chunk", [5, 64, 4096])
@pytest.mark.parametrize(("D", "lengthscale"), [(1, 0.4), (2, 0.4), (2, 1.5), (3, 0.8)])
def test_greedy_equals_dense_pivoted_cholesky(D: int, lengthscale: float, chunk: int) -> None:
    X, kernel = rows(400, D), Scaled(lengthscale, growth=0.5)
    expected, _ = dense_pivots(kernel, X, 25)
    assert positions(X, greedy_inducing(kernel, X, 25, chunk=chunk)) == expected


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 300), st.integers(1, 3), st.integers(1, 40), st.sampled_from([1, 7, 32, 4096]),
    st.sampled_from([0.4, 0.9, 2.5]), st.sampled_from([0.0, 0.5]), st.integers(0, 1000),
)  # fmt: skip
def test_each_greedy_row_has_the_largest_variance_given_those_before_it(
    n_rows: int, D: int, n: int, chunk: int, lengthscale: float, growth: float, seed: int
) -> None:
    X, kernel = rows(n_rows, D, seed), Scaled(lengthscale, growth)
    chosen = positions(X, greedy_inducing(kernel, X, n, chunk=chunk))
    _, (*shortfalls, left) = dense_pivots(kernel, X, n, follow=chosen)
    largest = float(kernel.diagonal(X).max())
    assert len(shortfalls) == len(chosen)
    assert max(shortfalls) <= 1e-13 * largest
    assert len(chosen) == min(n, n_rows) or left <= 1.001e-12 * largest


def test_greedy_memory_is_bounded_by_chunk_times_inducing() -> None:
    X, kernel = rows(3000, 2), Scaled(0.5, growth=0.5)
    chosen = greedy_inducing(kernel, X, 60, chunk=100)
    assert kernel.largest <= 100 * 60
    assert positions(X, chosen) == dense_pivots(kernel, X, 60)[0]


def test_greedy_stops_when_nothing_is_left_to_explain() -> None:
    X = rows(200, 1)
    chosen = greedy_inducing(Scaled(5.0), X, 200, chunk=50)
    assert len(chosen) == len(dense_pivots(Scaled(5.0), X, 200)[0]) < 40
    repeated = rows(4, 2).repeat(30, 1)
    assert len(greedy_inducing(Scaled(0.3), repeated, 100, chunk=16)) == 4


def test_greedy_takes_far_apart_rows_in_their_order() -> None:
    X = 100.0 * torch.arange(50, dtype=torch.float64)[:, None]
    assert torch.equal(greedy_inducing(Scaled(0.5), X, 20, chunk=8), X[:20])


def test_greedy_with_a_kernel_that_is_zero_gives_one_row() -> None:
    kernel = Scaled(1.0)
    kernel._std = lambda X: torch.zeros(len(X), dtype=X.dtype)  # type: ignore[method-assign]
    X = rows(9, 2)
    assert torch.equal(greedy_inducing(kernel, X, 5), X[:1])


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(CHOICES), st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(1, 60),
    st.integers(0, 1000),
)  # fmt: skip
def test_named_choices_give_distinct_rows_and_as_many_as_possible(
    spec: str, n_different: int, copies: int, D: int, n: int, seed: int
) -> None:
    X = rows(n_different, D, seed).repeat(copies, 1)
    Z = select_inducing(spec, Scaled(0.01), X, n, np.random.default_rng(seed))
    assert Z.dtype == torch.float64
    assert Z.shape == (min(n, n_different), D)
    assert n_distinct(Z) == len(Z)


@pytest.mark.parametrize("spec", CHOICES)
def test_constant_columns_and_one_row(spec: str) -> None:
    X = torch.cat([rows(80, 1), torch.full((80, 2), 4.0, dtype=torch.float64)], 1)
    Z = select_inducing(spec, Scaled(0.1), X, 12, np.random.default_rng(0))
    assert n_distinct(Z) == len(Z) == 12
    torch.testing.assert_close(Z[:, 1:], torch.full((12, 2), 4.0, dtype=torch.float64))
    assert torch.equal(select_inducing(spec, Scaled(0.1), X[:1], 12, np.random.default_rng(0)), X[:1])


@pytest.mark.parametrize("spec", CHOICES)
def test_same_generator_same_inputs(spec: str) -> None:
    X = rows(500, 3)
    first, second = (select_inducing(spec, Scaled(0.7), X, 30, np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("spec", CHOICES)
def test_rows_of_weight_zero_play_no_part(spec: str) -> None:
    X = torch.cat([rows(60, 2), 50.0 + rows(60, 2, seed=1)])
    weight = torch.cat([torch.ones(60), torch.zeros(60)]).to(torch.float64)
    Z = select_inducing(spec, Scaled(0.7), X, 20, np.random.default_rng(0), weight)
    without = select_inducing(spec, Scaled(0.7), X[:60], 20, np.random.default_rng(0))
    assert len(Z) == 20
    torch.testing.assert_close(Z, without)


def test_random_and_greedy_choose_rows_of_the_data() -> None:
    X = rows(300, 2)
    known = {tuple(row) for row in X.tolist()}
    for Z in (random_inducing(X, 25, np.random.default_rng(0)), greedy_inducing(Scaled(0.6), X, 25)):
        assert {tuple(row) for row in Z.tolist()} <= known


def test_kmeans_centres_are_the_means_of_their_clusters() -> None:
    X = torch.cat([rows(40, 2, seed=k) + 100.0 * k for k in range(5)])
    weight = torch.from_numpy(np.random.default_rng(1).uniform(0.2, 3.0, 200))
    Z = kmeans_inducing(X, 5, np.random.default_rng(0), weight)
    groups, weights = X.reshape(5, 40, 2), weight.reshape(5, 40, 1)
    means = (groups * weights).sum(1) / weights.sum(1)
    torch.testing.assert_close(Z[Z[:, 0].argsort()], means)


def test_kmeans_finds_rare_rows_when_nearly_all_are_equal() -> None:
    X = torch.cat([torch.zeros(60_000, 1), torch.arange(1.0, 4.0)[:, None]]).to(torch.float64)
    Z = kmeans_inducing(X, 4, np.random.default_rng(0))
    assert sorted(Z.flatten().tolist()) == [0.0, 1.0, 2.0, 3.0]


def test_given_inputs_come_back_as_a_copy() -> None:
    given_inputs = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    Z = select_inducing(given_inputs, Scaled(1.0), rows(2, 2), 1, np.random.default_rng(0))
    assert Z.tolist() == given_inputs.tolist()
    Z += 1.0
    assert given_inputs[0, 0] == 1.0
    from_integers = select_inducing(torch.tensor([[1, 2]]), Scaled(1.0), rows(2, 2), 1, np.random.default_rng(0))
    assert from_integers.dtype == torch.float64


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("k-means", "kmeans, random, greedy"),
        (None, "kmeans, random, greedy"),
        ([["a", "b"]], "array of numbers"),
        ([1.0, 2.0], r"array \[M, 2\]"),
        ([[1.0, 2.0, 3.0]], r"of shape \[1, 3\]"),
        (np.zeros((0, 2)), r"of shape \[0, 2\]"),
        ([[0.0, 1.0], [np.nan, 0.0]], "row 1, column 0"),
    ],
)
def test_unusable_specifications_are_refused(spec: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        select_inducing(spec, Scaled(1.0), rows(5, 2), 3, np.random.default_rng(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", CHOICES)
def test_unusable_counts_and_weights_are_refused(spec: str) -> None:
    X, rng = rows(5, 2), np.random.default_rng(0)
    with pytest.raises(InputError, match="at least 1"):
        select_inducing(spec, Scaled(1.0), X, 0, rng)
    with pytest.raises(InputError, match="positive sample_weight"):
        select_inducing(spec, Scaled(1.0), X, 3, rng, torch.zeros(5, dtype=torch.float64))
    with pytest.raises(InputError, match="one weight a row"):
        select_inducing(spec, Scaled(1.0), X, 3, rng, torch.ones(4, dtype=torch.float64))
