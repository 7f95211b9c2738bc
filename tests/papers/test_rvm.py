"""The relevance vector machine: golden values, and the regressor on simulated data."""

from __future__ import annotations

import numpy as np
import torch

from papers.rvm import RelevanceVectorRegressor, rvm_posterior
from problems import agree
from sparsegp import kernels
from test_golden import Golden, golden_problem


def test_relevance_vector_machine(golden: Golden) -> None:
    problem, expected = golden_problem(golden), golden["models"]["RVM"]
    basis = kernels.SquaredExponential(1.0, golden["meta"]["ell"])
    with torch.no_grad():
        Phi, Phi_test = (basis(X, problem.inducing).numpy() for X in (problem.X, problem.X_test))
    alpha = np.array(expected["alpha"])
    mean, cov, evidence = rvm_posterior(Phi, problem.y.numpy(), alpha, problem.noise_var)
    got = Phi_test @ mean, np.diag(Phi_test @ cov @ Phi_test.T), evidence
    agree(got, (expected["mean"], expected["var"], expected["objective"]))


def test_the_regressor_finds_a_sparse_model_of_a_wave() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (200, 1))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(200)
    model = RelevanceVectorRegressor(n_inducing=40, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.mean((mean - np.sin(2.0 * X[:, 0])) ** 2) < 0.05**2
    assert np.all(std**2 >= model.noise_var_)
    assert abs(model.noise_var_ - 0.01) < 0.004
    weights = np.abs(model.ard_.coef_)
    assert np.mean(weights < 0.01 * weights.max()) > 0.7
