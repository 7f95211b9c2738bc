"""PIC predictions: weights and inverses that are kept, within bounds, and never after what they rest on has changed."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from problems import agree, get_row, random_problem, with_row_noise
from sparsegp import SparseGPRegressor, kernels, linalg, parallel
from sparsegp.core import local, noise_model
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.local import Beyond, LocalBlock, LocalPosterior
from sparsegp.core.posterior import SMALLEST_VARIANCE
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import repeated_noise
from sparsegp.core.trend import Trend
from sparsegp.infer import batch

NOBODY = -1


def by_solves(posterior: LocalPosterior, X: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance row by row, with a factorisation and triangular solves for each."""
    prior, q, means, variances = posterior.prior, posterior.q, [], []
    with torch.no_grad():
        for x, k in zip(X[:, None], labels.tolist(), strict=True):
            w = prior.features(x)
            mean, slope, var = w @ q.mean, w, prior.residual_diag(x, w)
            if 0 <= k < posterior.rows.n_blocks and len(block := posterior.rows.block(k)):
                W = prior.features(block.X)
                V = noise_model.block_covariance(
                    prior.approx, prior.residual_block(block.X, W), *repeated_noise(prior, block)
                )
                cross = prior.kernel(x, block.X) - prior.of_kernel(w) @ prior.of_kernel(W).mT
                gain = torch.linalg.solve(V, cross.mT).mT
                mean, slope, var = mean + gain @ (block.y - W @ q.mean), w - gain @ W, var - (gain * cross).sum(1)
            var = var + linalg.row_squares(linalg.whiten_rows(slope, q.LB.factor))
            means.append(mean)
            variances.append(torch.maximum(var, SMALLEST_VARIANCE * prior.kernel.diagonal(x)))
    return torch.cat(means), torch.cat(variances)


def blocks_of_rows(sizes: list[int], noise_var: float = 0.05, n_inducing: int = 12) -> LocalPosterior:
    """A smooth function of two columns in blocks along the first."""
    rng = np.random.default_rng(len(sizes))
    place = np.repeat(np.arange(len(sizes)), sizes)
    X = np.column_stack([place + rng.uniform(size=len(place)), rng.uniform(0, 2, len(place))])
    y = np.sin(3 * X[:, 0]) * np.cos(X[:, 1]) + noise_var**0.5 * rng.standard_normal(len(X))
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    inducing = block.X[:: max(1, len(X) // n_inducing)][:n_inducing]
    prior = SparsePrior.build(kernels.Matern52(1.3, [0.7, 1.1]), inducing, noise_var, get_row("pic"))
    _, posterior, _ = batch.infer(prior, MemoryRows(block, offsets))
    assert isinstance(posterior, LocalPosterior)
    return posterior


def places(n: int, n_blocks: int) -> tuple[Tensor, Tensor]:
    """Rows in all blocks, and in a block that is none."""
    rng = np.random.default_rng(1)
    labels = rng.integers(NOBODY, n_blocks, n)
    X = np.column_stack([labels + rng.uniform(size=n), rng.uniform(0, 2, n)])
    return torch.from_numpy(X), torch.from_numpy(labels)


@pytest.mark.parametrize("n_rows", [1, 5, 200])
@pytest.mark.parametrize("trend", [None, Trend(), Trend((0, 1))])
def test_few_and_many_rows_are_those_of_solves(n_rows: int, trend: Trend | None) -> None:
    problem = replace(with_row_noise(random_problem(5, "matern32")), trend=trend)
    posterior, _ = problem.infer(get_row("pic"))
    assert isinstance(posterior, LocalPosterior)
    rng = np.random.default_rng(2)
    X = problem.X[torch.from_numpy(rng.integers(len(problem.X), size=n_rows))] + 0.1
    labels = torch.from_numpy(rng.integers(NOBODY, problem.n_blocks, n_rows))
    expected = by_solves(posterior, X, labels)
    agree(posterior.marginals(X, labels), expected)
    agree([posterior.mean(X, labels)], expected[:1])
    agree([posterior.with_posterior(posterior.q).mean(X, labels)], expected[:1])


def test_threads_share_the_batches(monkeypatch: Any) -> None:
    posterior, (X, labels) = blocks_of_rows([30, 1, 0, 40]), places(300, 4)
    expected = by_solves(posterior, X, labels)
    for n_threads, rows in ((1, 1024), (3, 1024), (3, 7)):
        monkeypatch.setattr(local, "available", lambda n=n_threads: n)
        monkeypatch.setattr(parallel, "available", lambda n=n_threads: n)
        monkeypatch.setattr(local, "CHUNK_ROWS", rows)
        fresh = replace(posterior, _prepared=local.PreparedBlocks())
        for _ in range(2):
            agree(fresh.marginals(X, labels), expected)
            agree([fresh.mean(X, labels)], expected[:1])


@pytest.fixture
def prepared(monkeypatch: Any) -> list[int]:
    """Sizes of the blocks that were prepared, in their order."""
    sizes: list[int] = []
    build = LocalBlock.of.__func__

    def counted(cls: Any, prior: Any, block: Block) -> LocalBlock:
        sizes.append(len(block))
        return build(cls, prior, block)

    monkeypatch.setattr(LocalBlock, "of", classmethod(counted))
    return sizes


def test_no_block_is_prepared_twice(prepared: list[int]) -> None:
    posterior, (X, labels) = blocks_of_rows([30, 31, 32]), places(200, 3)
    posterior.mean(X, labels)
    for row in range(20):
        posterior.marginals(X[row : row + 1], labels[row : row + 1])
    posterior.marginals(X, labels)
    posterior.joint(X, labels)
    assert sorted(prepared) == [30, 31, 32]


def test_a_limit_holds_and_what_is_ready_stays(prepared: list[int]) -> None:
    """A call over all blocks prepares each that has no room once, and keeps the others."""
    posterior, (X, labels) = blocks_of_rows([30, 30, 30, 30]), places(200, 4)
    one = LocalBlock.of(posterior.prior, posterior.rows.block(0)).n_bytes
    bounded = replace(posterior, cache_bytes=2 * one)
    expected = by_solves(posterior, X, labels)
    prepared.clear()
    for n_calls in (1, 2, 3):
        agree(bounded.marginals(X, labels), expected)
        assert len(prepared) == 4 + 2 * (n_calls - 1)
        assert len(bounded._prepared) == 2
        assert bounded._prepared.n_bytes <= 2 * one
    prepared.clear()
    agree([bounded.mean(X, labels)], expected[:1])
    assert not prepared
    for k in range(4):
        bounded.marginals(X[labels == k], labels[labels == k])
    assert bounded._prepared.get(3) is not None
    assert bounded._prepared.n_bytes <= 2 * one


def test_float32_is_used_where_variances_come_out_right() -> None:
    posterior, (X, labels) = blocks_of_rows([300, 260, 40]), places(150, 3)
    X, labels = torch.cat([X, posterior.rows.all.X[:60]]), torch.cat([labels, torch.zeros(60, dtype=torch.int64)])
    mean, var = posterior.marginals(X, labels)
    kinds = [posterior._prepared.get(k).A.dtype for k in range(3)]
    assert kinds == [torch.float32, torch.float32, torch.float64]
    expected = by_solves(posterior, X, labels)
    agree([mean], expected[:1])
    assert float((var.sqrt() / expected[1].sqrt() - 1).abs().max()) < local.NARROW_ERROR
    assert not torch.equal(var, expected[1])


def test_float32_is_not_used_where_it_would_show() -> None:
    """Noise of a millionth: variances are small differences."""
    posterior, (X, labels) = blocks_of_rows([300, 300], noise_var=1e-6), places(50, 2)
    expected = by_solves(posterior, X, labels)
    agree(posterior.marginals(X, labels), expected, rtol=1e-6)
    assert {posterior._prepared.get(k).A.dtype for k in range(2)} == {torch.float64}


def test_another_q_has_weights_of_its_own() -> None:
    """Also where blocks are kept in float32."""
    posterior, (X, labels) = blocks_of_rows([300, 280]), places(60, 2)
    posterior.marginals(X, labels)
    q = replace(posterior.q, mean=posterior.q.mean + 0.3)
    for other in (posterior.with_posterior(q), replace(posterior, q=q)):
        assert other._prepared is posterior._prepared
        agree([other.mean(X, labels)], by_solves(other, X, labels)[:1])
        assert not torch.allclose(other.mean(X, labels), posterior.mean(X, labels))


def test_copies_start_without_what_was_prepared() -> None:
    posterior, (X, labels) = blocks_of_rows([30, 30]), places(20, 2)
    expected = posterior.marginals(X, labels)
    for other in (deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        assert len(other._prepared) == 0
        agree(other.marginals(X, labels), expected)
        assert len(other._prepared) == 2
    assert isinstance(posterior._prepared.get(0), Beyond)


def test_updates_leave_nothing_of_before() -> None:
    """After each of them predictions are those of a model that has kept nothing yet."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (160, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(160)
    Xs = rng.uniform(-2, 2, (70, 2))
    gp = SparseGPRegressor(
        kernels.Matern52(1.2, [0.8, 1.5]), "pic", n_inducing=15, n_blocks=3, optimizer=None, noise_var=0.02
    ).fit(X[:100], y[:100])
    before = gp.predict(Xs), *gp.predict(Xs, return_std=True)
    gp.partial_fit(X[100:], y[100:])
    after = gp.predict(Xs), *gp.predict(Xs, return_std=True)
    fresh = gp.to_local()
    agree((fresh.predict(Xs), *fresh.predict(Xs, return_std=True)), after)
    posterior, inputs = gp.model_.posterior, gp.scaling_.tensor(Xs)
    expected = by_solves(posterior, inputs, gp.model_.labels_of_new(inputs, None))
    agree(posterior.marginals(inputs, gp.model_.labels_of_new(inputs, None)), expected)
    assert np.abs(after[0] - before[0]).max() > 1e-3
    gp.forget(X[100:], y[100:])
    agree((gp.predict(Xs), *gp.predict(Xs, return_std=True)), before, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 300])
def test_an_inverse_is_that_of_solves(size: int) -> None:
    rng = torch.Generator().manual_seed(size)
    A = torch.randn(size, size, generator=rng, dtype=torch.float64)
    L = torch.linalg.cholesky(A @ A.mT + size * torch.eye(size, dtype=torch.float64))
    K, less = torch.randn(2, 5, size, generator=rng, dtype=torch.float64)
    inverse = linalg.InverseLower.of(L)
    expected = linalg.whiten_rows(K, L)
    agree([inverse.whiten(K), inverse.whiten(K, less=less.clone())], [expected, expected - less])
    agree([inverse.solve_transposed(K[0])], [linalg.solve_lower_transposed(L, K[0][:, None])[:, 0]])
    assert inverse.n_bytes <= 8 * size * (size + 1)
