"""SRGP: increments of the gradient against the batch gradient, distributed accumulation, and learning with them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import CHANGES, KERNELS, Problem, get_row, random_problem
from sparsegp import SparseGPRegressor, approximations, kernels, linalg
from sparsegp.approximations import Approximation
from sparsegp.data import Block, Rows
from sparsegp.dense import ExactObjective
from sparsegp.errors import FactorizationError, InputError
from sparsegp.learning import lbfgs, srgp
from sparsegp.learning.adam_steps import AdamSteps
from sparsegp.learning.adjoint import SharedAdjoint, inducing_adjoint
from sparsegp.learning.forward_gradient import ForwardGradient
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.kernel_tangents import (
    DirectionalTangents,
    StationaryTangents,
    difference_quotient,
    forward_derivative,
    make_tangents,
)
from sparsegp.learning.objective import CollapsedObjective, inducing_through_kernel, noise_adjoint, through_kernel
from sparsegp.learning.srgp import Settings, _as_vector, maximize
from sparsegp.posterior import InducingPosterior
from sparsegp.prior import SparsePrior
from sparsegp.statistics import BlockStatistics
from test_golden import Golden, golden_problem, ordered_gradient, row_of, two_dimensional_problem

POINT_ROWS = ("sor", "dtc", "vfe", "fitc", "fic", "pep", "points")


def forward_sum(hyper: Hyperparameters, row: Approximation, rows: Rows, sizes: list[int]) -> np.ndarray:
    """The increments of consecutive batches of the given sizes, summed, as `Hyperparameters.gradient` orders them."""
    forward = ForwardGradient(hyper, row, learns_noise=rows.all.noise_var is None)
    prior = SparsePrior.build(hyper.kernel, hyper.inducing, hyper.noise_var, row)
    state, total = forward.init(prior), np.zeros(len(hyper.vector()))
    for batch in torch.arange(len(rows)).split(sizes):
        state, increment = forward.step(state, prior, rows.all.take(batch))
        total += _as_vector(hyper, increment)
    missing = forward.deferred(state, prior, rows)
    return total if missing is None else total + _as_vector(hyper, missing)


def batch_gradient(hyper: Hyperparameters, row: Approximation, rows: Rows) -> np.ndarray:
    CollapsedObjective(rows, row).value_and_gradient(hyper)
    return hyper.gradient()


def near(got: np.ndarray, expected: np.ndarray, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(got, expected, rtol=0.0, atol=rtol * np.abs(expected).max())


def pair(problem: Problem, name: str, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    row, rows = get_row(name), Rows(problem.block)
    return forward_sum(problem.hyperparameters(), row, rows, sizes), batch_gradient(
        problem.hyperparameters(), row, rows
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", POINT_ROWS)
def test_increments_sum_to_the_batch_gradient(name: str, kernel: str) -> None:
    # differences instead of derivatives for rq and product
    rtol = 1e-7 if kernel in ("rq", "product") else 1e-9
    near(*pair(random_problem(31 + len(kernel), kernel), name, [7, 1, 9, 3]), rtol)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", POINT_ROWS)
def test_increments_with_row_noise_and_weights(name: str, change: str) -> None:
    near(*pair(CHANGES[change](random_problem(41, "se+linear")), name, [6, 6, 8]))


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(["vfe", "fitc", "pep"]), st.integers(1, 19), st.integers(1, 3))
def test_the_sum_does_not_depend_on_the_batches(seed: int, name: str, first: int, n_dims: int) -> None:
    problem = random_problem(seed, "se-ard", n_dims)
    near(*pair(problem, name, [first, 20 - first]), rtol=1e-8)


@pytest.mark.parametrize("model", ["DTC", "VFE", "FITC", "PEP"])
def test_golden_gradients(golden: Golden, model: str) -> None:
    cases = [(golden_problem(golden), golden["models"][model]["grad"])]
    cases.append((two_dimensional_problem(), golden["ard2d"]["models"][model]["grad"]))
    for problem, expected in cases:
        hyper, rows = problem.hyperparameters(), problem.rows
        total = forward_sum(hyper, row_of(golden, model), rows, [5, 4, 5, 6])
        hyper.load_vector(total)
        for parameter in hyper.parameters():
            parameter.grad = parameter.detach().clone()
        near(ordered_gradient(hyper), np.array(expected), 1e-8)


@pytest.mark.parametrize("name", ["vfe", "pep"])
def test_a_single_increment_is_the_difference_of_two_gradients(name: str) -> None:
    """d psi_2 = d J(both batches) - d J(first batch), up to the dense part of FITC and PEP that waits."""
    problem = random_problem(51)
    row, rows = get_row(name), Rows(problem.block)
    fixed = Hyperparameters(problem.kernel, problem.noise_var, problem.inducing, learn_inducing=name == "vfe")
    first = batch_gradient(fixed, row, rows.subset(torch.arange(12)))
    expected = batch_gradient(fixed, row, rows) - first
    near(
        forward_sum(fixed, row, rows, [12, 8]) - forward_sum(fixed, row, rows.subset(torch.arange(12)), [12]), expected
    )


@pytest.mark.parametrize("name", ["vfe", "fitc"])
def test_increments_where_jitter_is_needed(name: str) -> None:
    crowded = torch.linspace(-0.3, 0.3, 12, dtype=torch.float64)[:, None]
    problem = random_problem(61, n_dims=1)
    hyper = Hyperparameters(kernels.SquaredExponential(1.7, 2.5), 0.2, crowded)
    rows, row = Rows(problem.block), get_row(name)
    got = forward_sum(hyper, row, rows, [11, 9])
    objective = CollapsedObjective(rows, row)
    objective.value_and_gradient(hyper)
    assert objective.jitter > 0.0
    near(got, hyper.gradient(), 1e-4)


def test_float32_rows_give_nearly_the_float64_increments() -> None:
    problem = random_problem(71)
    single = Rows(Block(problem.X.float(), problem.y.float()))
    got = forward_sum(problem.hyperparameters(), get_row("fitc"), single, [10, 10])
    near(got, batch_gradient(problem.hyperparameters(), get_row("fitc"), Rows(problem.block)), 1e-5)


@pytest.mark.parametrize("name", ["dtc", "vfe", "fitc", "pep", "pitc"])
def test_distributed_accumulation_gives_the_batch_gradient(name: str) -> None:
    """003 sec. 4.2: two workers sum statistics, then gradients from the broadcast posterior; then both are summed."""
    problem, row = random_problem(81), get_row(name)
    hyper, rows = problem.hyperparameters(), problem.rows
    expected = batch_gradient(hyper, row, rows)
    prior = problem.prior(row)
    units = (
        list(rows.units(True)) if row.by_block else [rows.all.take(part) for part in torch.arange(20).split([7, 13])]
    )
    workers = [(copy.deepcopy(hyper), units[:1]), (copy.deepcopy(hyper), units[1:])]
    statistics = sum(BlockStatistics.from_blocks(prior, share) for _, share in workers)
    q = InducingPosterior.from_statistics(statistics)
    shared = SharedAdjoint.build(prior, q, linalg.inverse_lower(prior.Luu.factor), direct=False)
    gram, noise = torch.zeros_like(statistics.precision), torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for own, share in workers:
            own.clear_gradient()
            for block in share:
                adjoint = through_kernel(own, prior, shared, block)
                gram += 0.0 if adjoint.residual_gram is None else adjoint.residual_gram
                noise += 0.0 if adjoint.noise is None else adjoint.noise.sum()
        Kuu_bar = inducing_adjoint(prior, shared, statistics.precision, gram if row.keeps_residual else None)
        inducing_through_kernel(workers[0][0], prior, Kuu_bar)
        noise = noise if row.keeps_residual else noise_adjoint(prior, statistics, q)
    workers[0][0].log_noise_var.grad = noise * prior.noise_var
    near(sum(own.gradient() for own, _ in workers), expected)


@pytest.mark.parametrize("kernel", ["se-ard", "matern32"])
def test_closed_tangents_are_those_of_differences(kernel: str) -> None:
    problem = random_problem(91, kernel)
    closed = make_tangents(problem.kernel, problem.inducing)
    assert isinstance(closed, StationaryTangents)
    general = DirectionalTangents(problem.kernel, difference_quotient)
    assert closed.n_shared == general.n_shared
    n = closed.n_shared + 2
    K, tangents = closed.covariance(problem.X, problem.inducing, n)
    torch.testing.assert_close(K, problem.kernel(problem.X, problem.inducing).detach(), rtol=1e-12, atol=1e-12)
    expected = list(general.covariance(problem.X, problem.inducing, n)[1])
    for tangent, reference in zip((t.clone() for t in tangents), expected, strict=True):
        torch.testing.assert_close(tangent, reference, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(closed.diagonal(problem.X), general.diagonal(problem.X), rtol=1e-8, atol=1e-9)


def test_tangents_of_some_columns_and_forward_mode() -> None:
    problem = random_problem(92, "se-ard", 3)
    partial = kernels.SquaredExponential(1.3, [0.7, 1.1], active_dims=[2, 0])
    modes = [make_tangents(partial, problem.inducing), DirectionalTangents(partial, forward_derivative)]
    closed, forward = (
        [t.clone() for t in mode.covariance(problem.X, problem.inducing, mode.n_shared + 3)[1]] for mode in modes
    )
    for tangent, reference in zip(closed, forward, strict=True):
        torch.testing.assert_close(tangent, reference, rtol=1e-10, atol=1e-12)
    assert make_tangents(partial + kernels.Linear(0.3), problem.inducing).derivative is forward_derivative
    assert make_tangents(kernels.RationalQuadratic(), problem.inducing).derivative is difference_quotient


def learning_problem(n: int = 800) -> tuple[Rows, Limits]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, dtype=torch.float64, generator=generator) * 6 - 3
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(n, dtype=torch.float64, generator=generator)
    return Rows(Block(X, y)), Limits((1e-6, 10.0), X.amin(0), X.amax(0))


def start(rows: Rows, M: int = 20) -> Hyperparameters:
    return Hyperparameters(kernels.SquaredExponential(1.0, [1.5, 1.5]), 0.5, rows.all.X[:M])


@pytest.mark.parametrize(
    ("chosen", "n_epochs"),
    [
        (Settings(rate=0.06, batch_rows=40), 15),
        (Settings(batch_rows=40, horizon=20), 15),
        (Settings(batch_rows=400), 90),
    ],
)
@pytest.mark.parametrize("name", ["vfe", "dtc", "fitc", "pep"])
def test_learning_comes_close_to_lbfgs(name: str, chosen: Settings, n_epochs: int) -> None:
    rows, limits = learning_problem()
    row = approximations.get(name)
    reference = lbfgs.maximize(CollapsedObjective(rows, row), start(rows), limits, max_iterations=40).objective
    hyper, objective = start(rows), CollapsedObjective(rows, row)
    before = objective.value(hyper)
    result = maximize(objective, hyper, limits, max_iterations=n_epochs, settings=chosen)
    assert result.objective > before + 0.9 * (reference - before)
    assert objective.value(hyper) == pytest.approx(result.objective, rel=1e-9)
    assert 0 < result.iterations <= n_epochs
    assert (hyper.inducing >= limits.lower - 1e-12).all()
    assert (hyper.inducing <= limits.upper + 1e-12).all()


@pytest.mark.parametrize("name", ["vfe", "dtc", "fitc", "pep"])
def test_a_batch_alone_has_the_gradient_of_the_recursion(name: str) -> None:
    rows, limits = learning_problem(60)
    hyper = start(rows, 5)
    climber = srgp._Climber(CollapsedObjective(rows, get_row(name)), hyper, limits, Settings())
    counted = srgp._counted(rows.all, 3.0)
    (alone,), (carried,) = climber._alone(counted), climber._carried(counted, [60])
    near(alone, carried)
    near(alone * 180.0, batch_gradient(hyper, get_row(name), Rows(counted)))


def test_rows_of_a_stretch_stand_for_all_rows() -> None:
    rows, limits = learning_problem(100)
    climber = srgp._Climber(
        CollapsedObjective(rows, get_row("vfe")), start(rows, 2), limits, Settings(batch_rows=15, horizon=3)
    )
    stretches = climber._stretches()
    assert [len(stretch) for stretch in stretches] == [4, 3]
    assert sorted(torch.cat([torch.cat(stretch) for stretch in stretches]).tolist()) == list(range(100))
    seen = []
    climber._carried = lambda block, sizes: seen.append((block.n_rows, sizes)) or []
    climber.run_epoch(1.0)
    assert [n_rows for n_rows, _ in seen] == pytest.approx([100.0, 100.0])
    assert [sum(sizes) for _, sizes in seen] == [len(torch.cat(stretch)) for stretch in stretches]


@pytest.mark.parametrize(("batch_rows", "horizon"), [(40, 10), (100, 4), (400, 1), (1_000, 1)])
def test_the_state_is_carried_over_enough_rows_for_the_inducing_values(batch_rows: int, horizon: int) -> None:
    assert Settings().stretch(batch_rows, 20) == horizon
    assert Settings(horizon=7).stretch(batch_rows, 20) == 7


def test_known_noise_and_weights_stay_what_they_are() -> None:
    rows, limits = learning_problem(200)
    known = Block(rows.all.X, rows.all.y, torch.full_like(rows.all.y, 0.01), torch.full_like(rows.all.y, 2.0))
    for horizon in (1, 4):
        hyper = start(rows, 5)
        objective = CollapsedObjective(Rows(known), get_row("vfe"))
        before = objective.value(hyper)
        chosen = Settings(batch_rows=50, horizon=horizon)
        result = maximize(objective, hyper, limits, max_iterations=5, settings=chosen)
        assert result.objective > before
        assert float(hyper.noise_var.detach()) == pytest.approx(0.5)


def test_same_seed_same_result_and_callbacks_stop() -> None:
    rows, limits = learning_problem(400)
    ends = []
    for seed in (3, 3, 4):
        hyper = start(rows)
        objective, chosen = CollapsedObjective(rows, get_row("vfe")), Settings(batch_rows=50, seed=seed)
        maximize(objective, hyper, limits, max_iterations=2, settings=chosen)
        ends.append(hyper.vector())
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-6
    steps = []
    stopped = maximize(
        CollapsedObjective(rows, get_row("vfe")),
        start(rows),
        limits,
        on_step=lambda step: bool(steps.append(step)) or len(steps) == 2,
    )
    assert (stopped.stopped, stopped.iterations, len(steps)) == (True, 2, 2)


def test_a_failed_epoch_returns_to_the_best_point(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, limits = learning_problem(400)
    original, calls = srgp.ForwardGradient.step, []

    def fails_once(self, state, prior, batch):
        calls.append(1)
        if len(calls) == 4:
            raise FactorizationError("for the test")
        return original(self, state, prior, batch)

    monkeypatch.setattr(srgp.ForwardGradient, "step", fails_once)
    hyper, objective = start(rows), CollapsedObjective(rows, get_row("vfe"))
    before = objective.value(hyper)
    result = maximize(objective, hyper, limits, max_iterations=4, settings=Settings(batch_rows=50))
    assert result.objective > before
    assert len(calls) == 4 + 3 * 8


@pytest.mark.parametrize("name", ["pitc", "pic", "block-pep"])
def test_block_rows_are_refused(name: str) -> None:
    problem = random_problem(95)
    limits = Limits((1e-6, 10.0), problem.X.amin(0), problem.X.amax(0))
    with pytest.raises(InputError, match="vfe, dtc, fitc, pep, sor and fic"):
        maximize(CollapsedObjective(problem.rows, get_row(name)), problem.hyperparameters(), limits)
    with pytest.raises(InputError, match="lbfgs"):
        maximize(ExactObjective(problem.block), problem.hyperparameters(), limits)


def test_adam_steps_are_those_of_torch() -> None:
    rng, rate = np.random.default_rng(0), 0.05
    ours, theirs = np.zeros(4), torch.zeros(4, dtype=torch.float64)
    steps, peer = AdamSteps((0.9, 0.95)), torch.optim.Adam([theirs], lr=rate, betas=(0.9, 0.95), maximize=True)
    for _ in range(30):
        gradient = rng.standard_normal(4) * [1.0, 1e-3, 1e3, 0.0]
        ours = ours + steps.step(gradient, rate)
        theirs.grad = torch.from_numpy(gradient)
        peer.step()
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.mark.parametrize("name", ["pitc", "pic", "block-pep", "exact", "sod"])
def test_the_regressor_refuses_srgp_before_it_looks_at_the_rows(name: str) -> None:
    with pytest.raises(InputError, match="mini-batches of rows"):
        SparseGPRegressor(approximation=name, optimizer="srgp").fit(None, None)


def test_the_regressor_learns_by_srgp() -> None:
    rows, _ = learning_problem(800)
    X, y = rows.all.X.numpy(), rows.all.y.numpy()
    model = SparseGPRegressor(approximation="vfe", n_inducing=20, optimizer="srgp", random_state=0).fit(
        X[:700], y[:700]
    )
    assert model.score(X[700:], y[700:]) > 0.9
    assert model.info_["evaluations"] > 1


@pytest.mark.parametrize(
    ("n_rows", "n_inducing", "size"),
    [(50, 60, 50), (4_000, 60, 1_200), (100_000, 60, 5_000), (1_000_000, 60, 10_000), (1_000_000, 800, 16_000)],
)
def test_batch_sizes(n_rows: int, n_inducing: int, size: int) -> None:
    assert Settings().batch_size(n_rows, n_inducing) == size
    assert Settings(batch_rows=30).batch_size(n_rows, n_inducing) == 30
