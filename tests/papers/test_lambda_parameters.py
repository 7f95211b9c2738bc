"""The parameters of the paper, one Lambda a row: golden values, gradients, the optimum they share with the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from papers.lambda_parameters import (
    LambdaBound,
    LambdaHyperparameters,
    from_lambda,
    infer_lambda,
    learn_lambda,
    starting_lambda,
)
from problems import Problem, agree, get_row, random_problem, tensor, unwhitened, with_weights
from sparsegp import HeteroscedasticGPRegressor, InputError, kernels
from sparsegp.core.block import Block, MemoryRows
from sparsegp.infer import batch
from sparsegp.learn.hyperparameters import Limits
from sparsegp.learn.trace import Deadline, Terms
from sparsegp.noise import noise_learning
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from test_vshgp import ANY_NOISE, check_gradient, joint_hyper, tight

Golden = Mapping[str, Any]


def golden_hyper(golden: Golden) -> LambdaHyperparameters:
    lam = 0.5 + 0.3 * torch.sin(torch.arange(20, dtype=torch.float64) + 1.0)
    return LambdaHyperparameters(
        kernels.SquaredExponential(1.5, 0.8),
        tensor(golden["meta"]["U"])[:, None],
        kernels.SquaredExponential(0.7, 1.5),
        tensor([-2.0, 0.0, 2.0])[:, None],
        -1.2,
        lam.log(),
    )


def golden_rows(golden: Golden) -> MemoryRows:
    return MemoryRows(Block(tensor(golden["data"]["X"])[:, None], tensor(golden["data"]["y"])))


def lambda_hyper(problem: Problem) -> LambdaHyperparameters:
    plain, rng = joint_hyper(problem), np.random.default_rng(7)
    log_lambda = torch.from_numpy(np.log(rng.uniform(0.2, 0.9, len(problem.y))))
    return LambdaHyperparameters(
        plain.kernel, plain.inducing, plain.noise_kernel, plain.noise_inducing, -1.7, log_lambda
    )


def test_golden_bound_and_its_terms(golden: Golden) -> None:
    hyper, expected = golden_hyper(golden), golden["vshgp"]
    state = LambdaBound(golden_rows(golden), get_row("vfe"), ANY_NOISE).state(hyper)
    terms = state.terms
    got = (state.value, [terms.evidence, terms.spread, terms.penalty, terms.divergence])
    agree(got, (expected["F"], expected["F_terms"]))
    mean, covariance = unwhitened(state.process.q, state.process.prior)
    agree((mean + hyper.noise_mean.item(), covariance), (expected["mu_u"], expected["Sigma_u"]))


def test_golden_gradient(golden: Golden) -> None:
    hyper, expected = golden_hyper(golden), golden["vshgp"]["grad"]
    LambdaBound(golden_rows(golden), get_row("vfe"), ANY_NOISE).value_and_gradient(hyper)
    parameters = {
        "log_lambda": hyper.log_lambda,
        "log_ell_f": hyper.kernel.log_lengthscales,
        "log_sf2": hyper.kernel.log_variance,
        "log_ell_g": hyper.noise_kernel.log_lengthscales,
        "log_sg2": hyper.noise_kernel.log_variance,
        "mu0": hyper.noise_mean,
        "Xm": hyper.inducing,
        "Xu": hyper.noise_inducing,
    }
    assert set(parameters) == set(expected)
    for name, parameter in parameters.items():
        agree((parameter.grad.ravel(),), (np.ravel(expected[name]),))


def test_golden_predictions(golden: Golden) -> None:
    hyper, expected = golden_hyper(golden), golden["vshgp"]["predict"]
    state = LambdaBound(golden_rows(golden), get_row("vfe"), ANY_NOISE).state(hyper)
    at = tensor(golden["meta"]["Xs"])[:, None]
    _, posterior, _ = batch.infer(state.f_prior, state.row_noise.rows)
    agree(
        (*posterior.marginals(at), *state.process.predict(at)),
        tuple(expected[name] for name in ("mu_f", "var_f", "mu_g", "var_g")),
    )


def shared_gradient(hyper: LambdaHyperparameters) -> np.ndarray:
    """Of what experts share: kernels and noise mean, not inducing inputs or Lambda."""
    own = ("inducing", "noise_inducing", "log_lambda")
    learned = [(name, p) for name, p in hyper.named_parameters() if p.requires_grad]
    mask = np.concatenate([np.full(p.numel(), name not in own) for name, p in learned])
    return hyper.gradient()[mask]


def test_golden_experts_add_up(golden: Golden) -> None:
    """Two experts with shared kernels and mean: bounds and gradients of the shared part are sums."""
    expected, rows = golden["dvshgp"], golden_rows(golden).all
    lam = golden_hyper(golden).log_lambda.detach()
    own = {
        0: ([-2.2, -1.0, 0.0], [-1.8, -0.4]),
        1: ([0.8, 1.9, 2.9], [1.0, 2.4]),
    }
    values, gradient = [], 0.0
    for k, (inducing, noise_inducing) in own.items():
        index = ((rows.X[:, 0] >= 0.4) == bool(k)).nonzero()[:, 0]
        hyper = LambdaHyperparameters(
            kernels.SquaredExponential(1.5, 0.8),
            tensor(inducing)[:, None],
            kernels.SquaredExponential(0.7, 1.5),
            tensor(noise_inducing)[:, None],
            -1.2,
            lam[index],
        )
        values.append(LambdaBound(MemoryRows(rows.take(index)), get_row("vfe"), ANY_NOISE).value_and_gradient(hyper))
        gradient = gradient + shared_gradient(hyper)
    agree((values,), (expected["F_experts"],))
    noise_mean, _, log_ell_f, _, log_ell_g = gradient
    shared = expected["grad_shared"]
    agree((log_ell_f, log_ell_g, noise_mean), (shared["log_ell_f"], shared["log_ell_g"], shared["mu0"]))


@pytest.mark.parametrize("name", ["vfe", "fitc", "pic"])
def test_gradient_in_lambda_with_weights(name: str) -> None:
    problem = with_weights(random_problem(13, "matern32"))
    objective = LambdaBound(problem.rows, get_row(name), ANY_NOISE)
    check_gradient(objective, lambda_hyper(problem), rtol=1e-6)


def test_natural_ascent_reaches_the_optimum_of_lambda() -> None:
    """L-BFGS over one log Lambda a row and the natural ascent end at the same bound (derivations: H4, H6)."""
    problem = random_problem(23)
    hyper = lambda_hyper(problem)
    objective = LambdaBound(problem.rows, get_row("vfe"), ANY_NOISE)
    ascent = tight(problem, "vfe").ascend(hyper)
    with hyper.only_lambda():

        def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
            hyper.load_vector(vector)
            return -objective.value_and_gradient(hyper), -hyper.gradient()

        start = hyper.vector()
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15})
    assert len(start) == len(problem.y)
    assert -found.fun == pytest.approx(ascent.state.value, abs=2e-4)
    assert ascent.state.value >= -found.fun - 1e-9
    assert ascent.evaluations < 60


def test_the_optimum_is_a_fixed_point_in_lambda() -> None:
    """At the optimum, Lambda = slopes' lambda reproduces q(g_u): nothing is lost by one parameter a row."""
    problem = random_problem(29)
    ascent = tight(problem, "vfe").ascend(joint_hyper(problem))
    again = from_lambda(
        ascent.state.process, problem.rows.all.X, ascent.state.row_noise.slopes.lam, torch.ones(len(problem.y)).double()
    )
    agree((again.q.mean, again.q.covariance), (ascent.state.process.q.mean, ascent.state.process.q.covariance), 1e-5)


def dense_vhgp(problem: Problem, hyper: JointHyperparameters, lam: torch.Tensor) -> float:
    """The marginalised bound of the full model (no inducing inputs), densely: VHGP."""
    with torch.no_grad():
        Kf, Kg = hyper.kernel(problem.X), hyper.noise_kernel(problem.X)
    n, c = len(problem.y), lam - 0.5
    Sigma = torch.linalg.inv(torch.linalg.inv(Kg) + torch.diag(lam))
    mu = -1.7 + Kg @ c
    R = torch.exp(mu - 0.5 * Sigma.diagonal())
    likelihood = torch.distributions.MultivariateNormal(torch.zeros(n).double(), Kf + torch.diag(R))
    prior = torch.distributions.MultivariateNormal(torch.full((n,), -1.7).double(), Kg)
    q = torch.distributions.MultivariateNormal(mu, 0.5 * (Sigma + Sigma.mT))
    divergence = torch.distributions.kl_divergence(q, prior)
    return float(likelihood.log_prob(problem.y) - 0.25 * Sigma.trace() - divergence)


def test_inducing_inputs_at_the_data_give_vhgp() -> None:
    X = torch.linspace(-3.0, 3.0, 14, dtype=torch.float64)[:, None]
    y = torch.sin(2.0 * X[:, 0]) + 0.3 * torch.cos(11.0 * X[:, 0])
    problem = replace(random_problem(37, n_dims=1), X=X, y=y, inducing=X, labels=torch.zeros(14, dtype=torch.int64))
    lam = torch.from_numpy(np.random.default_rng(3).uniform(0.2, 0.9, 14))
    noise_kernel = kernels.Matern32(0.8, 0.7)
    hyper = LambdaHyperparameters(kernels.Matern32(1.3, 0.9), X, noise_kernel, X, -1.7, lam.log())
    got = LambdaBound(MemoryRows(Block(X, y)), get_row("vfe"), ANY_NOISE).value(hyper)
    assert got == pytest.approx(dense_vhgp(problem, hyper, lam), rel=1e-9)


def wave(n: int) -> tuple[MemoryRows, Limits]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    std = 0.05 + 0.4 / (1.0 + np.exp(-2.0 * X[:, 1]))
    y = np.sin(2.0 * X[:, 0]) + 0.4 * X[:, 1] + std * rng.standard_normal(n)
    rows = MemoryRows(Block(tensor(X), tensor(y)))
    return rows, Limits((1e-6, 10.0), rows.all.X.amin(0), rows.all.X.amax(0))


def start(rows: MemoryRows) -> tuple[Any, ...]:
    X, kernel = rows.all.X, kernels.SquaredExponential(1.0, [1.5, 1.5])
    return kernel, X[:30], kernels.SquaredExponential(1.0, [1.5, 1.5]), X[:15], -2.0


def test_both_ways_of_learning_end_at_the_same_bound() -> None:
    rows, limits = wave(150)
    row, rng = get_row("vfe"), np.random.default_rng(0)
    hyper = LambdaHyperparameters(*start(rows), starting_lambda(rows), learn_inducing=False)
    stages = learn_lambda(rows, row, hyper, limits)
    model = infer_lambda(rows, row, hyper, limits, rng=rng)
    plain = JointHyperparameters(*start(rows), learn_inducing=False)
    _, q = noise_learning.learn(rows, row, plain, Terms(limits, rng))
    reference = noise_learning.infer(rows, row, plain, Terms(limits, rng), q)
    assert len(stages) == 2
    assert stages[0].objective < stages[1].objective
    assert model.bound == pytest.approx(reference.bound, abs=0.05 * len(rows))
    assert model.bound >= stages[1].objective - 1e-6
    X = rows.all.X
    torch.testing.assert_close(model.process.predict(X)[0], reference.process.predict(X)[0], rtol=0.0, atol=0.5)


def test_a_deadline_ends_learning_and_leaves_a_valid_model() -> None:
    rows, limits = wave(300)
    hyper = LambdaHyperparameters(*start(rows), starting_lambda(rows), learn_inducing=False)
    stages = learn_lambda(rows, get_row("vfe"), hyper, limits, deadline=Deadline(0.0))
    assert all(stage.iterations <= 1 for stage in stages)
    model = infer_lambda(rows, get_row("vfe"), hyper, limits, rng=np.random.default_rng(0))
    mean, var = model.posterior.marginals(rows.all.X)
    assert bool(torch.isfinite(mean).all())
    assert bool((var > 0).all())


def test_a_caller_can_stop_after_the_first_stage() -> None:
    rows, limits = wave(60)
    hyper = LambdaHyperparameters(*start(rows), starting_lambda(rows), learn_inducing=False)
    (only,) = learn_lambda(rows, get_row("vfe"), hyper, limits, on_step=lambda _: True)
    assert only.stopped


def test_the_regressor_says_what_replaces_lambda() -> None:
    with pytest.raises(InputError, match="Use 'exact'"):
        HeteroscedasticGPRegressor(inference="lambda").fit(np.zeros((5, 1)), np.zeros(5))
