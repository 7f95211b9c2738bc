"""The package against tests/golden: 60-digit dense values of every model, to 1e-8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from problems import Problem, agree, tensor, unwhitened
from sparsegp import kernels
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation
from sparsegp.core.dense import ExactPosterior, NystromPosterior
from sparsegp.core.local import LocalPosterior
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.statistics import BlockStatistics
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import CollapsedObjective, ExactObjective

SPARSE = {name: name.lower() for name in ("SoR", "DTC", "VFE", "FITC", "FIC", "PITC", "PIC", "PEP")} | {
    "PEPB": "block-pep"
}
AUGMENTED = {"ASoR": "sor", "ADTC": "dtc", "AFITC": "fitc", "APITC": "pitc"}
RECURSIVE = ("DTC", "VFE", "FITC", "PEP", "PITC", "PEPB")

Golden = Mapping[str, Any]


def golden_problem(golden: Golden) -> Problem:
    meta = golden["meta"]
    return Problem(
        kernel=kernels.SquaredExponential(meta["sf2"], meta["ell"]),
        X=tensor(golden["data"]["X"])[:, None],
        y=tensor(golden["data"]["y"]),
        inducing=tensor(meta["U"])[:, None],
        noise_var=meta["sn2"],
        X_test=tensor(meta["Xs"])[:, None],
        labels=torch.tensor(meta["block_of_train"]),
        test_labels=torch.tensor(meta["block_of_test"]),
    )


def two_dimensional_problem() -> Problem:
    i = torch.arange(20, dtype=torch.float64)
    X = torch.stack([2 * torch.sin(1.1 * i + 0.3), 2 * torch.cos(0.7 * i + 0.5)], dim=1)
    y = torch.sin(X[:, 0]) + 0.5 * torch.cos(X[:, 0] * X[:, 1]) + 0.1 * torch.sin(7 * i)
    inducing = tensor([[-1.4, -1.2], [-1.0, 1.3], [0.1, 0.2], [1.2, -1.0], [1.5, 1.1]])
    labels = (X[:, 0] >= 0).long()
    kernel = kernels.SquaredExponential(1.2, [0.9, 1.4])
    return Problem(kernel, X, y, inducing, 0.05, X[:1], labels, labels[:1])


def row_of(golden: Golden, model: str) -> Approximation:
    return approximations.get(SPARSE[model], golden["meta"]["alpha"])


def ordered_gradient(hyper: Hyperparameters) -> np.ndarray:
    """In the order of the golden file: log lengthscales, log variance, log noise, inducing inputs."""
    parameters = (
        hyper.kernel.log_lengthscales,
        hyper.kernel.log_variance,
        hyper.log_noise_var,
        hyper.inducing,
    )
    zero_or_grad = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([grad.ravel() for grad in zero_or_grad]).numpy()


def objective_and_gradient(problem: Problem, objective: Any) -> tuple[float, np.ndarray]:
    hyper = problem.hyperparameters()
    return objective.value_and_gradient(hyper), ordered_gradient(hyper)


def exact_posterior(problem: Problem, index: slice | Tensor = slice(None)) -> ExactPosterior:
    return ExactPosterior.build(problem.kernel, problem.block.take(index), tensor(problem.noise_var))


def test_every_golden_model_is_covered_here_or_in_the_tests_of_papers(golden: Golden) -> None:
    assert set(golden["models"]) == {*SPARSE, *AUGMENTED, "GP", "SoD", "BCM", "Nystrom", "RVM"}
    assert set(golden["joint5"]["models"]) == {*SPARSE, "GP", "PIC_arbitrary_q"} - {"VFE"}
    assert set(golden["recursive"]) == set(RECURSIVE)


@pytest.mark.parametrize("model", SPARSE)
def test_objective_and_prediction(golden: Golden, model: str) -> None:
    problem, expected = golden_problem(golden), golden["models"][model]
    posterior, evidence = problem.infer(row_of(golden, model))
    assert posterior.prior.Luu.jitter == 0.0
    at = problem.X_test, problem.test_labels
    agree((evidence, *posterior.marginals(*at)), (expected["objective"], expected["mean"], expected["var"]))
    agree(posterior.joint(*at), (expected["mean"], expected["cov"]))


@pytest.mark.parametrize("model", SPARSE)
def test_gradient(golden: Golden, model: str) -> None:
    problem, expected = golden_problem(golden), golden["models"][model]
    objective = CollapsedObjective(problem.rows, row_of(golden, model))
    agree(objective_and_gradient(problem, objective), (expected["objective"], expected["grad"]))


@pytest.mark.parametrize("model", ["GP", "SoD"])
def test_exact_gp_and_subset_of_data(golden: Golden, model: str) -> None:
    problem, expected = golden_problem(golden), golden["models"][model]
    index = torch.tensor(golden["meta"]["SoD_indices"]) if model == "SoD" else slice(None)
    posterior = exact_posterior(problem, index)
    agree(posterior.joint(problem.X_test), (expected["mean"], expected["cov"]))
    agree(posterior.marginals(problem.X_test), (expected["mean"], expected["var"]))
    got = objective_and_gradient(problem, ExactObjective(problem.block.take(index)))
    agree((posterior.log_evidence, *got), (expected["objective"], expected["objective"], expected["grad"]))


def test_nystrom_keeps_its_negative_variances_unless_asked(golden: Golden) -> None:
    problem, expected = golden_problem(golden), golden["models"]["Nystrom"]
    sparse, evidence = problem.infer(approximations.get("nystrom"))
    posterior = NystromPosterior.build(sparse.prior, problem.rows.all, sparse.q)
    agree(
        (evidence, *posterior.joint(problem.X_test)),
        (expected["objective"], expected["mean"], expected["cov"]),
    )
    agree(posterior.marginals(problem.X_test), (expected["mean"], expected["var"]))
    clipped = NystromPosterior.build(sparse.prior, problem.rows.all, sparse.q, clip=True)
    assert 0.0 < float(clipped.marginals(problem.X_test)[1].max()) < 1e-12


@pytest.mark.parametrize("model", [*(name for name in SPARSE if name != "VFE"), "GP"])
def test_joint_prediction_of_five_points(golden: Golden, model: str) -> None:
    problem, joint = golden_problem(golden), golden["joint5"]
    posterior = exact_posterior(problem) if model == "GP" else problem.infer(row_of(golden, model))[0]
    got = posterior.joint(tensor(joint["Xs"])[:, None], torch.tensor(joint["block_of_test"]))
    agree(got, (joint["models"][model]["mean"], joint["models"][model]["cov"]))


@pytest.mark.parametrize("part", ["joint5", "anytime"])
def test_pic_with_any_posterior_of_the_inducing_values(golden: Golden, part: str) -> None:
    problem = golden_problem(golden)
    prior = problem.prior(approximations.get("pic"))
    with torch.no_grad():
        cov = 0.3 * problem.kernel(problem.inducing) + 0.1 * torch.eye(5, dtype=torch.float64)
    q = InducingPosterior.from_moments(prior, torch.sin(torch.arange(5, dtype=torch.float64) + 1), cov)
    if part == "joint5":
        joint = golden["joint5"]
        at = tensor(joint["Xs"])[:, None], torch.tensor(joint["block_of_test"])
        expected = joint["models"]["PIC_arbitrary_q"]
    else:
        at, expected = (problem.X_test, problem.test_labels), golden["anytime"]["PIC_arbitrary_q"]
    agree(LocalPosterior(prior, q, problem.rows).joint(*at), (expected["mean"], expected["cov"]))


def test_combination_of_rows(golden: Golden) -> None:
    expected = golden["anytime"]["combination_0.3DTC+0.7PITC"]
    row = approximations.combine({"dtc": 0.3, "pitc": 0.7})
    posterior, evidence = golden_problem(golden).infer(row)
    got = evidence, *unwhitened(posterior.q, posterior.prior)
    agree(got, (expected["evidence"], expected["mu"], expected["Sigma"]))


@pytest.mark.parametrize("model", RECURSIVE)
def test_statistics_and_posterior_block_by_block(golden: Golden, model: str) -> None:
    problem = golden_problem(golden)
    prior = problem.prior(row_of(golden, model))
    L = prior.Luu.factor
    total, before = BlockStatistics.zero(prior), 0.0
    for step in golden["recursive"][model]["steps"]:
        part = BlockStatistics.from_block(prior, problem.rows.block(step["block"]))
        # Lambda = L^-T Lambda_v L^-1, eta = L^-T eta_v, as W_k = L^-1 K_uk
        dLambda = torch.linalg.solve(L.mT, torch.linalg.solve(L.mT, part.precision).mT)
        total = total + part
        q = InducingPosterior.from_statistics(total)
        evidence = log_evidence(total, q)
        got = (
            dLambda,
            torch.linalg.solve(L.mT, part.shift),
            part.penalty,
            *unwhitened(q, prior),
            evidence - before,
        )
        agree(got, tuple(step[key] for key in ("dLambda", "deta", "a_k", "mu", "Sigma", "psi_k")))
        before = evidence
    agree((before,), (golden["recursive"][model]["total"],))


@pytest.mark.parametrize("model", ["DTC", "VFE", "FITC", "PEP", "PITC", "PEPB", "GP"])
def test_two_dimensional_objective_and_gradient(golden: Golden, model: str) -> None:
    problem, expected = two_dimensional_problem(), golden["ard2d"]["models"][model]
    objective = ExactObjective(problem.block)
    if model != "GP":
        objective = CollapsedObjective(problem.rows, row_of(golden, model))
    agree(objective_and_gradient(problem, objective), (expected["objective"], expected["grad"]))
