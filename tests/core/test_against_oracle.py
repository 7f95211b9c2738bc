"""Every approximation against the dense oracle: evidence, mean, joint covariance, marginals, prior."""

from __future__ import annotations

import pkgutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from problems import (
    ALL_ROWS,
    CHANGES,
    COMBINATIONS,
    KERNELS,
    POWER,
    DenseProblem,
    agree,
    get_row,
    random_problem,
    tensor,
    unwhitened,
    with_row_noise,
)
from sparsegp import kernels
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Component, Family, Residual, TestConditional
from sparsegp.core.dense import ExactPosterior
from sparsegp.core.posterior import InducingPosterior, SparsePosterior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.errors import InputError
from sparsegp.testing import oracle
from sparsegp.testing.approximation_checks import check_approximation
from sparsegp.testing.effective_prior import effective_prior


@pytest.mark.parametrize("n_dims", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ALL_ROWS)
def test_row_is_its_dense_definition(name: str, kernel: str, n_dims: int) -> None:
    problem = random_problem(10 * n_dims + len(kernel), kernel, n_dims)
    agree(problem.results(name), DenseProblem.of(problem).results(name))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ALL_ROWS)
def test_row_noise_and_weights_are_rows_with_that_noise_repeated(name: str, change: str) -> None:
    problem = CHANGES[change](random_problem(31, "matern32"))
    agree(problem.results(name), DenseProblem.of(problem).results(name))


@pytest.mark.parametrize("change", ["plain", *CHANGES])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_combination_has_the_combined_block_precision(name: str, change: str) -> None:
    problem = random_problem(41, "rq")
    problem = CHANGES[change](problem) if change in CHANGES else problem
    posterior, evidence = problem.infer(get_row(name))
    dense = DenseProblem.of(problem)
    mean, cov, expected = oracle.combination(COMBINATIONS[name], *dense.data, dense.blocks)
    agree((evidence, *unwhitened(posterior.q, posterior.prior)), (expected, mean, cov))


def test_combination_of_one_row_is_that_row() -> None:
    problem = random_problem(42)
    posterior, evidence = problem.infer(approximations.combine({"pic": 1.0}))
    agree((evidence, *problem.predict(posterior)), problem.results("pic"), rtol=1e-12)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "weights >= 0 that add up to 1"),
        ({"dtc": 0.5, "fitc": 0.4}, "weights >= 0 that add up to 1"),
        ({"dtc": -1.0, "pitc": 2.0}, "weights >= 0 that add up to 1"),
        ({"dtc": 0.5, "vfe": 0.5}, "Only sor, dtc, fitc, fic, pitc and pic can be combined"),
        ({"dtc": 0.5, "exact": 0.5}, "Only sor, dtc, fitc, fic, pitc and pic can be combined"),
        ({"pitc": 0.5, "pic": 0.5}, r"pitc \(exact\), pic \(local\)"),
    ],
)
def test_combinations_that_are_no_model_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        approximations.combine(weights)


def test_subset_of_data_is_the_exact_gp_of_those_rows() -> None:
    problem, index = with_row_noise(random_problem(51)), np.array([1, 4, 7, 8, 15])
    subset = problem.block.take(torch.from_numpy(index))
    posterior = ExactPosterior.build(problem.kernel, subset, tensor(problem.noise_var))
    dense = DenseProblem.of(problem)
    evidence = oracle.log_evidence("sod", *dense.data, subset=index)
    expected = oracle.predict("sod", *dense.data, dense.Xs, subset=index)
    agree((posterior.log_evidence, *posterior.joint(problem.X_test)), (evidence, *expected))


@pytest.mark.parametrize("name", ALL_ROWS)
def test_chunks_and_the_order_of_rows_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(61)
    expected = problem.results(name)
    monkeypatch.setattr("sparsegp.core.block.MemoryRows.chunks.__defaults__", (3,))
    for module in ("core.posterior", "core.local", "core.dense"):
        monkeypatch.setattr(f"sparsegp.{module}.CHUNK_ROWS", 2)
    order = torch.randperm(len(problem.y), generator=torch.Generator().manual_seed(3))
    shuffled = replace(problem, X=problem.X[order], y=problem.y[order], labels=problem.labels[order])
    agree(shuffled.results(name), expected, rtol=1e-11)


@pytest.mark.parametrize("name", ["sor", "vfe", "fitc", "fic"])
def test_few_rows_of_a_transient_posterior_are_predicted_as_by_the_root(name: str, monkeypatch) -> None:
    problem = random_problem(63)
    prior = problem.prior(get_row(name))
    q = InducingPosterior.from_statistics(BlockStatistics.from_blocks(prior, problem.rows.chunks()))
    expected = SparsePosterior(prior, q).marginals(problem.X_test)
    monkeypatch.setattr("sparsegp.core.posterior.ROOT_PAYS", 0)
    agree(SparsePosterior(prior, q, transient=True).marginals(problem.X_test), expected, rtol=1e-10)


@pytest.mark.parametrize("spread", [0.05, 4.0])
@pytest.mark.parametrize("name", ["sor", "dtc", "fitc", "fic", "pitc", "pic"])
def test_any_posterior_of_the_inducing_values_predicts_its_integral(name: str, spread: float) -> None:
    """Narrower and wider than the prior, after other predictions: `from_moments` promises any Gaussian."""
    problem, rng = random_problem(71, "matern32"), np.random.default_rng(7)
    dense, M = DenseProblem.of(problem), len(problem.inducing)
    mean, root = rng.normal(size=M), rng.normal(size=(M, M))
    cov = spread * (root @ root.T / M + 0.2 * np.eye(M))
    posterior, _ = problem.infer(get_row(name))
    problem.predict(posterior)
    q = InducingPosterior.from_moments(posterior.prior, torch.from_numpy(mean), torch.from_numpy(cov))
    args = dense.Xs, mean, cov, dense.blocks, dense.test_blocks, POWER
    expected = oracle.predict_given_inducing(name, *dense.data, *args)
    agree(problem.predict(replace(posterior, q=q)), (*expected, expected[0], np.diag(expected[1])))


@pytest.mark.parametrize("change", ["plain", "weights and row noise"])
@pytest.mark.parametrize("name", ALL_ROWS)
def test_float32_rows_give_nearly_the_float64_answers(name: str, change: str) -> None:
    problem = random_problem(81)
    problem = CHANGES[change](problem) if change in CHANGES else problem
    fields = {field: getattr(problem, field) for field in ("X", "y", "X_test", "row_noise", "weight")}
    single = {field: None if value is None else value.float() for field, value in fields.items()}
    agree(replace(problem, **single).results(name), problem.results(name), rtol=2e-4)


@pytest.mark.parametrize("kernel", ["se-ard", "product"])
@pytest.mark.parametrize("name", ALL_ROWS)
def test_effective_prior_is_table_1(name: str, kernel: str) -> None:
    p = random_problem(91, kernel)
    got = effective_prior(get_row(name), p.kernel, p.inducing, p.X, p.X_test, p.labels, p.test_labels)
    dense = DenseProblem.of(p)
    args = dense.k, dense.X, dense.Xs, dense.Z, dense.blocks, dense.test_blocks, POWER
    C_ff, C_fs, C_ss = oracle.effective_prior(name, *args)
    agree((got,), (np.block([[C_ff, C_fs], [C_fs.T, C_ss]]),), rtol=1e-11)
    smallest = np.linalg.eigvalsh(got.numpy()).min()
    assert smallest < -1e-3 if name == "nystrom" else smallest > -1e-10


@pytest.mark.parametrize("name", COMBINATIONS)
def test_effective_prior_of_a_combination_explains_its_evidence_and_mean(name: str) -> None:
    p = with_row_noise(random_problem(95))
    args = get_row(name), p.kernel, p.inducing, p.X, p.X_test, p.labels, p.test_labels
    C, n = effective_prior(*args, noise_var=p.row_noise).numpy(), len(p.y)
    C_yy = C[:n, :n] + np.diag(p.row_noise.numpy())
    weights = C[n:, :n] @ np.linalg.inv(C_yy)
    posterior, evidence = p.infer(get_row(name))
    expected = oracle.log_gaussian(p.y.numpy(), C_yy), weights @ p.y.numpy(), C[n:, n:] - weights @ C[:n, n:]
    agree((evidence, *posterior.joint(p.X_test)), expected)


def test_effective_prior_says_what_is_missing() -> None:
    p = random_problem(96)
    args = p.kernel, p.inducing, p.X, p.X_test
    with pytest.raises(InputError, match="Expected 20 and 20 labels; got none and none"):
        effective_prior(get_row("pitc"), *args)
    with pytest.raises(InputError, match="Expected 5 and 5 labels; got 4 and 4"):
        effective_prior(get_row("pic"), *args, p.labels, p.test_labels[:4])
    with pytest.raises(InputError, match="depends on the noise: give noise_var"):
        effective_prior(get_row("points"), *args)


@pytest.mark.parametrize("name", [*approximations.NAMES, *COMBINATIONS])
def test_every_row_passes_its_conformance_check(name: str) -> None:
    check_approximation(get_row(name), kernel=kernels.SquaredExponential(1.4, [0.8, 1.3]), seed=4)


def test_a_row_of_ones_own_passes_or_is_told_why_not() -> None:
    half_pic = Approximation("own", (Component(1.0, Residual.BLOCK, 0.5),), 0.0, TestConditional.INDEPENDENT, "")
    check_approximation(half_pic)
    for parts in ((Component(0.7, Residual.BLOCK, 1.0),), (Component(1.0, Residual.NONE, 1.0),)):
        with pytest.raises(AssertionError, match="own: fields"):
            check_approximation(replace(half_pic, components=parts))
    not_nystrom = replace(approximations.get("nystrom"), family=Family.INDUCING)
    check_approximation(not_nystrom)


@pytest.mark.parametrize(
    ("function", "row", "named"),
    [
        ("sparsegp.core.noise_model.point_penalty", "pep", "log evidence"),
        ("sparsegp.core.prior.SparsePrior.residual_diag", "fic", "log evidence"),
        ("sparsegp.core.posterior.SparsePosterior._test_residual", "dtc", "joint covariance"),
        ("sparsegp.core.posterior.SparsePosterior.marginals", "dtc", "mean"),
        ("sparsegp.learn.objective.inducing_adjoint", "pitc", "gradient of the objective"),
        ("sparsegp.core.noise_model.block_pullback", "with blocks", "gradient of the objective"),
    ],
)
def test_a_wrong_implementation_is_caught_and_named(
    function: str, row: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = function.rpartition(".")
    owner = pkgutil.resolve_name(module)
    right = getattr(owner, name)

    def wrong(*args: object) -> object:
        result = right(*args)
        return tuple(1.1 * part for part in result) if isinstance(result, tuple) else 1.1 * result

    monkeypatch.setattr(function, wrong)
    with pytest.raises(AssertionError, match=f": {named}: differs by"):
        check_approximation(get_row(row))
