"""Where rows meet: limits of power, blocks and inducing inputs, and the order of the bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import CHANGES, INDUCING_ROWS, Problem, agree, random_problem, with_row_noise, with_weights
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation
from sparsegp.core.statistics import BlockStatistics


def results(problem: Problem, row: Approximation) -> tuple[object, ...]:
    posterior, evidence = problem.infer(row)
    return evidence, *problem.predict(posterior)


def penalty(problem: Problem, row: Approximation) -> float:
    return BlockStatistics.from_blocks(problem.prior(row), problem.rows.groups(row.by_block)).penalty


def in_one_block(problem: Problem) -> Problem:
    return replace(problem, labels=torch.zeros_like(problem.labels), test_labels=torch.zeros_like(problem.test_labels))


def in_blocks_of_one(problem: Problem) -> Problem:
    """Every training row alone, every test row in a block of its own without training rows."""
    n, n_test = len(problem.y), len(problem.test_labels)
    return replace(problem, labels=torch.arange(n), test_labels=n + torch.arange(n_test))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("by_block", "name"), [(False, "fitc"), (True, "pitc")])
def test_power_one_is_fitc_or_pitc(by_block: bool, name: str, change: str) -> None:
    problem = CHANGES[change](random_problem(1, "matern32"))
    row = approximations.power_ep(1.0, by_block=by_block)
    agree(results(problem, row), problem.results(name), rtol=1e-12)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by_block", [False, True])
def test_power_zero_is_vfe(by_block: bool, change: str) -> None:
    problem = CHANGES[change](random_problem(2, "rq"))
    row = approximations.power_ep(0.0, by_block=by_block)
    agree(results(problem, row), problem.results("vfe"), rtol=1e-12)


@pytest.mark.parametrize("by_block", [False, True])
def test_power_to_zero_tends_to_vfe_with_an_error_of_order_power(by_block: bool) -> None:
    problem, vfe = random_problem(3), random_problem(3).results("vfe")
    agree(results(problem, approximations.power_ep(1e-6, by_block=by_block)), vfe, rtol=1e-4)
    errors = [results(problem, approximations.power_ep(a, by_block=by_block))[0] - vfe[0] for a in (1e-5, 1e-4)]
    assert errors[1] / errors[0] == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize("kernel", ["se-ard", "matern32", "se+linear"])
def test_one_block_makes_pic_the_exact_gp(kernel: str) -> None:
    problem = with_row_noise(in_one_block(random_problem(4, kernel)))
    agree(problem.results("pic"), problem.results("exact"), rtol=1e-9)


@pytest.mark.parametrize(("block_row", "point_row"), [("pitc", "fitc"), ("pic", "fic"), ("block-pep", "pep")])
def test_blocks_of_one_row_give_the_diagonal_row(block_row: str, point_row: str) -> None:
    problem = with_row_noise(in_blocks_of_one(random_problem(5, "product")))
    agree(problem.results(block_row), problem.results(point_row), rtol=1e-11)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", INDUCING_ROWS)
def test_inducing_inputs_equal_to_the_data_give_the_exact_gp(name: str, change: str) -> None:
    problem = CHANGES[change](random_problem(6, "matern32"))
    problem = replace(problem, inducing=problem.X)
    evidence, mean, _, _, var = problem.results(name)
    exact_evidence, exact_mean, _, _, exact_var = problem.results("exact")
    agree((evidence, mean), (exact_evidence, exact_mean), rtol=1e-7)
    if name == "sor":  # its degenerate prior has no D_**
        assert (var < exact_var).all()
    else:
        agree((var,), (exact_var,), rtol=1e-7)


@pytest.mark.parametrize("name", ["dtc", "vfe", "fitc", "pitc", "pep", "block-pep"])
def test_inducing_inputs_equal_to_the_data_give_the_exact_joint_covariance(name: str) -> None:
    problem = random_problem(7, "matern32")
    problem = replace(problem, inducing=problem.X)
    agree(problem.results(name)[:3], problem.results("exact")[:3], rtol=1e-7)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    n_dims=st.integers(1, 3),
    kernel=st.sampled_from(["se-ard", "matern32", "se+linear"]),
    weighted=st.booleans(),
)
def test_vfe_is_a_bound_that_grows_with_an_inducing_input(seed: int, n_dims: int, kernel: str, weighted: bool) -> None:
    problem = with_row_noise(random_problem(seed, kernel, n_dims), seed)
    problem = with_weights(problem, seed) if weighted else problem
    fewer = replace(problem, inducing=problem.inducing[:-1])
    evidences = [p.posterior(name)[1] for p, name in ((fewer, "vfe"), (problem, "vfe"), (problem, "exact"))]
    slack = 1e-8 * abs(evidences[2])
    assert evidences[0] - slack <= evidences[1] <= evidences[2] + slack


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), by_block=st.booleans())
def test_the_regulariser_falls_from_the_trace_term_of_vfe_to_zero(seed: int, by_block: bool) -> None:
    problem = random_problem(seed)
    rows = [approximations.power_ep(power, by_block=by_block) for power in (0.0, 0.3, 0.7, 1.0)]
    penalties = [penalty(problem, row) for row in rows]
    assert penalties[0] == pytest.approx(penalty(problem, approximations.get("vfe")), rel=1e-12)
    assert penalties == sorted(penalties, reverse=True)
    assert penalties[-1] == 0.0


@pytest.mark.parametrize("label", [-1, 17])
def test_a_test_point_of_no_block_is_predicted_as_by_pitc(label: int) -> None:
    problem = random_problem(8)
    lost = replace(problem, test_labels=torch.full_like(problem.test_labels, label))
    agree(lost.results("pic"), problem.results("pitc"), rtol=1e-11)
    inside, outside = problem.results("pic")[1], problem.results("pitc")[1]
    assert (inside - outside)[:4].abs().min() > 1e-4


@pytest.mark.parametrize("name", ["pitc", "pic", "block-pep"])
def test_a_block_without_training_rows_says_nothing(name: str) -> None:
    """A test point in it is predicted from the inducing values alone."""
    problem = random_problem(9)
    kept = problem.labels != 1
    problem = replace(problem, X=problem.X[kept], y=problem.y[kept], labels=problem.labels[kept])
    renumbered = replace(
        problem,
        labels=torch.where(problem.labels > 1, problem.labels - 1, problem.labels),
        test_labels=torch.tensor([0, 1, -1, 1, 3]),
    )
    agree(problem.results(name), renumbered.results(name), rtol=1e-11)
