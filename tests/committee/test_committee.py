"""Committees: what experts part, which rows they have, and whom the committee asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import agree
from sparsegp import kernels
from sparsegp.committee import TABLE, Committee, Process, shared_learning
from sparsegp.committee.aggregation import get
from sparsegp.committee.experts import Recipe
from sparsegp.committee.influence import decreases
from sparsegp.committee.split import split
from sparsegp.core import approximations
from sparsegp.core.block import Block
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective, ExactObjective
from sparsegp.learn.sum_objective import place, threaded_sum
from sparsegp.learn.trace import Terms
from sparsegp.parallel import Threads, itself

DECREASING = {
    "se": kernels.SquaredExponential(1.3, [0.3, 0.8]),
    "matern32": kernels.Matern32(0.8, 0.2),
    "product": kernels.Matern12(0.9, 0.5) * kernels.SquaredExponential(1.1, 0.4, active_dims=[1]),
}
ROWS = ("exact", "vfe", "fitc")


def wave(n: int = 300, seed: int = 0, width: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-width, width, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, -1] + 0.15 * rng.standard_normal(n)


def block_of(n: int, seed: int = 0, width: float = 3.0) -> Block:
    return Block(*(torch.from_numpy(array) for array in wave(n, seed, width)))


def make_specs(row: str, block: Block, n_experts: int, *, communicates: bool = False, n_inducing: int = 15) -> Any:
    rng = np.random.default_rng(3)
    parts = split(block.X, n_experts, "kmeans", rng, communicates=communicates).all
    metric = torch.ones(block.X.shape[1], dtype=torch.float64)
    kernel = DECREASING["se"]
    recipe = Recipe(approximations.get(row), n_inducing, "kmeans", kernel, metric, rng)
    return [recipe.spec(block.take(part)) for part in parts]


def shared(kernel: kernels.Kernel, block: Block, noise_var: float = 0.05) -> Hyperparameters:
    return Hyperparameters(kernel, noise_var, block.X[:1], learn_inducing=False)


def make_committee(row: str, aggregation: str, kernel: kernels.Kernel, block: Block, tolerance: float) -> Committee:
    communicates = get(aggregation).communicates
    specs, hyper = make_specs(row, block, 8, communicates=communicates), shared(kernel, block)
    threads = Threads()
    inference = shared_learning.infer(place(specs, threads), hyper, threads, communicates=communicates)
    common = None if inference.common is None else inference.common.expert
    experts = [trained.expert for trained in inference.experts]
    return Committee(get(aggregation), (Process(kernel),), experts, common, tolerance)


# Training


@pytest.mark.parametrize("row", ["exact", "vfe", "fitc", "pitc"])
def test_the_objective_is_the_sum_over_experts_and_so_is_its_gradient(row: str) -> None:
    block = block_of(120)
    specs, hyper = make_specs(row, block, 4), shared(DECREASING["se"], block)
    value = threaded_sum(specs, hyper, n_jobs=1).value_and_gradient(hyper)
    gradient, parts = hyper.gradient(), []
    for spec in specs:
        own = spec.hyperparameters(hyper)
        objective = ExactObjective(spec.block) if row == "exact" else CollapsedObjective(spec.rows, spec.approx)
        parts.append((objective.value_and_gradient(own), own.gradient()))
    agree((value, gradient), (sum(v for v, _ in parts), sum(g for _, g in parts)), rtol=1e-12)
    threaded = threaded_sum(specs, hyper, n_jobs=3).value_and_gradient(hyper)
    assert threaded == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(hyper.gradient(), gradient, rtol=1e-9)


@pytest.mark.parametrize(("n", "stages"), [(3, [(3, 60)]), (20, [(8, 60), (20, 20)]), (99, [(8, 60), (32, 20)])])
def test_learning_starts_with_few_experts(n: int, stages: list[tuple[int, int]]) -> None:
    assert shared_learning.Schedule().stages(n) == stages


def test_learning_inducing_inputs_raises_the_bound_and_leaves_them_in_the_box() -> None:
    block = block_of(200)
    start, kernel = make_specs("vfe", block, 3, n_inducing=6), kernels.SquaredExponential(1.0, [1.0, 3.0])
    limits_box = block.X.amin(0), block.X.amax(0)
    limits = shared_learning.Limits((1e-6, 10.0), *limits_box)
    rng = np.random.default_rng(0)
    evidence = {}
    for learn_inducing in (False, True):
        own = shared(kernel, block)
        one = Threads(1)
        *_, learned = shared_learning.learn(start, own, shared_learning.Lesson(Terms(limits, rng), learn_inducing, one))
        evidence[learn_inducing] = shared_learning.infer(learned.placed, own, one).log_evidence
        specs = one.map(itself, learned.placed)
        assert len(learned.results) == 1 + learn_inducing
        assert all(torch.equal(a.inducing, b.inducing) for a, b in zip(specs, learned.specs, strict=True))
    assert evidence[True] > evidence[False] + 1.0
    assert all(bool((p.inducing >= limits_box[0]).all() and (p.inducing <= limits_box[1]).all()) for p in specs)


# Division of rows


@pytest.mark.parametrize("how", ["kmeans", "random"])
@pytest.mark.parametrize("communicates", [False, True])
def test_every_row_has_exactly_one_expert(how: str, communicates: bool) -> None:
    X = block_of(203).X
    parts = split(X, 7, how, np.random.default_rng(0), communicates=communicates).all
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(203))
    assert all(len(part) for part in parts)
    if communicates:
        assert len(parts[0]) == round(203 / 7)


def test_labels_are_kept_and_a_communications_expert_is_drawn_from_all_of_them() -> None:
    X, labels = block_of(60).X, np.repeat([5, -2, 9], 20)
    parts = split(X, 99, "kmeans", np.random.default_rng(0), blocks=labels).all
    assert [set(labels[part]) for part in parts] == [{-2}, {5}, {9}]
    common, *others = split(X, 99, "kmeans", np.random.default_rng(0), communicates=True, blocks=labels).all
    assert len(common) == 20
    assert [len(set(labels[part])) for part in others] == [1, 1, 1]


# Whom the committee asks


@pytest.mark.parametrize("aggregation", TABLE)
@pytest.mark.parametrize("row", ROWS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000), kernel=st.sampled_from(sorted(DECREASING)), tolerance=st.sampled_from([1e-6, 1e-2]))
def test_experts_that_are_not_asked_change_nothing(
    row: str, aggregation: str, seed: int, kernel: str, tolerance: float
) -> None:
    """R3: s_A within the tolerance, m_A within the tolerance times (base std + |m_A - m_0|)."""
    block, X = block_of(90, seed, 8.0), block_of(40, seed + 1, 9.0).X
    committee = make_committee(row, aggregation, DECREASING[kernel], block, tolerance)
    everybody = make_committee(row, aggregation, DECREASING[kernel], block, 0.0)
    (got,), (expected,) = committee.moments(X), everybody.moments(X)
    base = committee._bases(X, committee._common_part(X))[0]
    rounding = 1e-9
    assert bool(((got.var / expected.var - 1.0).abs() <= tolerance + rounding).all())
    room = (tolerance + rounding) * (base.var.sqrt() + (got.mean - base.mean).abs())
    assert bool(((got.mean - expected.mean).abs() <= room).all())
    assert bool(everybody.asked(X).all())


@pytest.mark.parametrize("aggregation", TABLE)
def test_distant_experts_are_spared(aggregation: str) -> None:
    block, X = block_of(200, 1, 20.0), block_of(60, 2, 20.0).X
    asked = make_committee("exact", aggregation, DECREASING["se"], block, 1e-6).asked(X)
    assert float(asked.double().mean()) < 0.6
    own_rows = make_committee("exact", aggregation, DECREASING["se"], block, 1e-6).asked(block.X)
    assert bool(own_rows.any(1).all())


def test_only_kernels_known_to_decrease_spare_anybody() -> None:
    smooth = kernels.SquaredExponential(1.0, 0.3)
    assert decreases(smooth + kernels.Matern52() * kernels.RationalQuadratic() + 0.1)
    assert decreases(smooth**2)
    for other in (kernels.Linear(), kernels.Periodic(), smooth + kernels.Linear()):
        assert not decreases(other)
    block = block_of(90, 0, 8.0)
    committee = make_committee("exact", "rbcm", smooth + kernels.Periodic(0.5), block, 1e-3)
    assert bool(committee.asked(block.X + 50.0).all())


@pytest.mark.parametrize("kernel", DECREASING)
def test_experts_share_what_they_know_of_the_common_rows(kernel: str) -> None:
    """Answers beyond the common part are those of the whole expert, at rows near and far, few and many."""
    block = block_of(240)
    committee = make_committee("exact", "grbcm", DECREASING[kernel], block, 0.0)
    assert committee.common is not None
    X = torch.cat([block.X[:10], block_of(90, seed=5, width=6.0).X])
    for rows in (X, X[:1]):
        common = committee.common.common_part(rows)
        assert common is not None
        for expert in committee.experts:
            (alone,), (beyond,) = expert.moments(rows), expert.moments(rows, common)
            assert beyond.var.data_ptr() != alone.var.data_ptr()
            agree((beyond.mean, beyond.var), (alone.mean, alone.var))


@pytest.mark.parametrize("aggregation", ["rbcm", "grbcm"])
@pytest.mark.parametrize(("noise_var", "is_narrow"), [(0.05, True), (1e-6, False)])
def test_experts_answer_in_single_precision_where_it_is_right(
    aggregation: str, noise_var: float, is_narrow: bool
) -> None:
    """Standard deviations to 1e-4 near the rows and away from them; means are those of double precision."""
    block, hyper = block_of(1200, width=6.0), shared(DECREASING["matern32"], block_of(1), noise_var)
    specs = make_specs("exact", block, 3, communicates=get(aggregation).communicates)
    common, others = (specs[0], specs[1:]) if get(aggregation).communicates else (None, specs)
    trained = [(spec if common is None else spec.augmented(common)).train(hyper).expert for spec in others]
    asked = None if common is None else common.train(hyper).expert
    X = torch.cat([block.X[300:400], block_of(60, seed=5, width=9.0).X])
    for expert in trained:
        part = None if asked is None else asked.common_part(X)
        (said,) = expert.moments(X, part)
        found = expert._beyond_nothing if part is None else expert._beyond_common
        assert (found.A.dtype == torch.float32) == is_narrow
        mean, var = expert.posterior.marginals(X)
        torch.testing.assert_close(said.mean, mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(said.var.sqrt(), var.sqrt(), rtol=1e-4 if is_narrow else 1e-6, atol=0.0)
