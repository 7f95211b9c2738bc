"""Models built for given test inputs: augmented rows and the Bayesian committee machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from papers.transduction import AUGMENTABLE, predict_augmented, predict_bcm
from problems import CHANGES, DenseProblem, agree, get_row, random_problem, tensor, with_row_noise
from sparsegp.committee import Moments, Process
from sparsegp.core import approximations
from sparsegp.core.dense import ExactPosterior
from sparsegp.errors import InputError
from sparsegp.testing import oracle
from test_aggregation import combine
from test_golden import AUGMENTED, Golden, golden_problem


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", AUGMENTABLE)
def test_augmented_rows_against_the_oracle(name: str, change: str) -> None:
    problem = CHANGES[change](random_problem(1, "matern32"))
    dense = DenseProblem.of(problem)
    expected = oracle.augmented(name, *dense.data, dense.Xs, dense.blocks)
    agree(predict_augmented(problem.prior(get_row(name)), problem.rows, problem.X_test), expected)


def test_augmented_sor_and_dtc_coincide_and_are_no_longer_degenerate() -> None:
    problem = random_problem(2)
    sor, dtc = (
        predict_augmented(problem.prior(get_row(name)), problem.rows, problem.X_test) for name in ("sor", "dtc")
    )
    agree(sor, dtc, rtol=1e-11)
    far = torch.full((1, 2), 50.0, dtype=torch.float64)
    _, var, _ = predict_augmented(problem.prior(get_row("sor")), problem.rows, far)
    assert float(var) == pytest.approx(float(problem.kernel.diagonal(far).detach()), rel=1e-9)


@pytest.mark.parametrize("name", AUGMENTABLE)
def test_augmenting_by_an_inducing_input_changes_nothing(name: str) -> None:
    problem = random_problem(3)
    at_inducing = replace(problem, X_test=problem.inducing[:2], test_labels=problem.test_labels[:2])
    evidence, _, _, mean, var = at_inducing.results(name)
    got = predict_augmented(problem.prior(get_row(name)), problem.rows, problem.inducing[:2])
    agree(got, (mean, var, np.full(2, evidence)), rtol=1e-9)


@pytest.mark.parametrize("name", ["vfe", "fic", "pic", "pep"])
def test_only_the_rows_of_the_paper_can_be_augmented(name: str) -> None:
    problem = random_problem(4)
    with pytest.raises(InputError, match=f"defined for sor, dtc, fitc, pitc; got '{name}'"):
        predict_augmented(problem.prior(get_row(name)), problem.rows, problem.X_test)


@pytest.mark.parametrize("change", CHANGES)
def test_bcm_against_the_oracle(change: str) -> None:
    problem = CHANGES[change](random_problem(5, "rq"))
    dense = DenseProblem.of(problem)
    expected = oracle.bcm(dense.k, dense.X, dense.y, dense.noise_var, dense.Xs, dense.blocks)
    agree(predict_bcm(problem.prior(get_row("pitc")), problem.rows, problem.X_test), expected)


def test_bcm_is_the_committee_of_the_exact_posteriors_of_its_blocks() -> None:
    """Lambda = sum_k C_k^-1 - (K - 1) K_**^-1, Lambda mean = sum_k C_k^-1 mean_k (004 sec. 7)."""
    problem = with_row_noise(random_problem(6, "matern32"))
    with torch.no_grad():
        prior_precision = torch.linalg.inv(problem.kernel(problem.X_test))
    precision, shift = -(problem.n_blocks - 1) * prior_precision, torch.zeros(5, dtype=torch.float64)
    for k in range(problem.n_blocks):
        own = problem.labels == k
        fields = {name: getattr(problem, name)[own] for name in ("X", "y", "row_noise", "labels")}
        mean, cov = replace(problem, **fields).posterior("exact")[0].joint(problem.X_test)
        precision = precision + torch.linalg.inv(cov)
        shift = shift + torch.linalg.solve(cov, mean)
    expected = torch.linalg.solve(precision, shift), torch.linalg.inv(precision)
    agree(predict_bcm(problem.prior(get_row("pitc")), problem.rows, problem.X_test)[:2], expected, rtol=1e-7)


def test_bcm_with_one_block_is_exact_and_with_repeated_test_rows_still_finite() -> None:
    problem = random_problem(7, "matern32")
    problem = replace(problem, labels=torch.zeros_like(problem.labels))
    prior = problem.prior(get_row("pitc"))
    mean, cov, evidence = predict_bcm(prior, problem.rows, problem.X_test)
    agree((evidence, mean, cov), problem.results("exact")[:3], rtol=1e-8)
    twice = torch.cat([problem.X_test, problem.X_test])
    again, cov_twice, _ = predict_bcm(prior, problem.rows, twice)
    agree((again, cov_twice[:5, :5]), (torch.cat([mean, mean]), cov), rtol=1e-6)


@pytest.mark.parametrize("model", AUGMENTED)
def test_augmented_models(golden: Golden, model: str) -> None:
    problem, expected = golden_problem(golden), golden["models"][model]
    prior = problem.prior(approximations.get(AUGMENTED[model]))
    got = predict_augmented(prior, problem.rows, problem.X_test)
    agree(got, (expected["mean"], expected["var"], expected["objective"]))


def test_bayesian_committee_machine(golden: Golden) -> None:
    problem, expected = golden_problem(golden), golden["models"]["BCM"]
    got = predict_bcm(problem.prior(approximations.get("pitc")), problem.rows, problem.X_test)
    agree(got, (expected["mean"], expected["cov"], expected["objective"]))


@pytest.mark.parametrize("change", CHANGES)
def test_bcm_of_exact_experts_is_the_transductive_bcm_at_single_points(change: str) -> None:
    problem = CHANGES[change](random_problem(3, "matern32"))
    blocks = list(problem.rows.blocks())
    experts = [ExactPosterior.build(problem.kernel, block, tensor(problem.noise_var)) for block in blocks]
    for x in problem.X_test.split(1):
        got = combine("bcm", Process(problem.kernel).moments(x), [Moments(*e.marginals(x)) for e in experts])
        mean, cov, _ = predict_bcm(problem.prior(get_row("pitc")), problem.rows, x)
        agree((got.mean, got.var), (mean, cov.diagonal()))
