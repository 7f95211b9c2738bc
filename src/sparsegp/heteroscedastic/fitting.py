"""From a checked problem to a fitted heteroscedastic model: start, learn, infer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp import inducing
from sparsegp.approximations import Approximation
from sparsegp.data import Rows
from sparsegp.heteroscedastic import learning, stochastic
from sparsegp.heteroscedastic.hyperparameters import JointHyperparameters
from sparsegp.heteroscedastic.learning import NoisyModel
from sparsegp.heteroscedastic.starting_values import NoiseStart, local_noise_start, noise_start
from sparsegp.kernels import Kernel
from sparsegp.learning.deadline import Deadline
from sparsegp.learning.hyperparameters import Limits
from sparsegp.learning.recorder import LearningResult, StepCallback
from sparsegp.posterior import InducingPosterior


@dataclass(frozen=True)
class NoisyProblem:
    """A heteroscedastic regression problem in the model's units, with every choice the user made.

    `kernel` and `noise_var` are those of a homoscedastic fit (or the user's own, with `learn=False`).
    """

    rows: Rows
    row: Approximation
    limits: Limits
    kernel: Kernel
    noise_var: float
    noise_kernel: Kernel
    noise_mean: float | None
    inducing: Any
    noise_inducing: Any
    n_inducing: int
    n_noise_inducing: int
    learn: bool
    learn_inducing: bool
    inference: str
    batch_size: int
    n_steps: int
    rng: np.random.Generator
    on_step: StepCallback | None = None
    learn_until: Deadline | None = None
    infer_until: Deadline | None = None


Fit = tuple[NoisyModel, list[LearningResult]]


def fit(problem: NoisyProblem) -> Fit:
    model, stages = _FITTERS[problem.inference](problem, _noise_start(problem))
    for parameter in (*model.state.prior.kernel.parameters(), *model.process.prior.kernel.parameters()):
        parameter.grad = None
    return model, stages


def _noise_start(problem: NoisyProblem) -> NoiseStart:
    given = problem.noise_mean
    if not problem.learn:
        return NoiseStart(problem.noise_kernel, float(np.log(problem.noise_var)) if given is None else given)
    choices = problem.kernel, problem.noise_var, problem.noise_kernel, problem.limits, problem.rng
    by_block = problem.row.by_block
    found = local_noise_start(problem.rows, *choices) if by_block else noise_start(problem.rows.all, *choices)
    return found if given is None else NoiseStart(found.kernel, given)


def _hyperparameters(problem: NoisyProblem, start: NoiseStart) -> JointHyperparameters:
    """With as many inducing inputs as rows the approximation is exact already and moving them gains nothing."""
    X = problem.rows.all.X
    of_f = inducing.select_inducing(
        problem.inducing, problem.kernel, X, problem.n_inducing, problem.rng, problem.rows.all.weight
    )
    of_g = inducing.select_inducing(
        problem.noise_inducing, start.kernel, X, problem.n_noise_inducing, problem.rng, problem.rows.all.weight
    )
    return JointHyperparameters(
        problem.kernel,
        of_f,
        start.kernel,
        of_g,
        start.mean,
        learn_inducing=problem.learn_inducing and of_f.shape[0] < len(problem.rows),
    )


def _fit_exact(problem: NoisyProblem, start: NoiseStart) -> Fit:
    hyper = _hyperparameters(problem, start)
    if not problem.learn:
        return _inferred(problem, hyper, None), []
    stages, q = learning.learn(
        problem.rows,
        problem.row,
        hyper,
        problem.limits,
        rng=problem.rng,
        on_step=problem.on_step,
        deadline=problem.learn_until,
    )
    return _inferred(problem, hyper, q), stages


def _inferred(problem: NoisyProblem, hyper: JointHyperparameters, q: InducingPosterior | None) -> NoisyModel:
    return learning.infer(
        problem.rows, problem.row, hyper, problem.limits, q, rng=problem.rng, deadline=problem.infer_until
    )


def _fit_stochastic(problem: NoisyProblem, start: NoiseStart) -> Fit:
    hyper = _hyperparameters(problem, start)
    if not problem.learn:
        for parameter in hyper.parameters():
            parameter.requires_grad_(False)
    q, result = stochastic.learn(
        problem.rows,
        problem.row,
        hyper,
        problem.limits,
        batch_size=problem.batch_size,
        n_steps=problem.n_steps,
        rng=problem.rng,
        on_step=problem.on_step,
        deadline=problem.learn_until,
    )
    return _inferred(problem, hyper, q), [result]


_FITTERS: Mapping[str, Callable[[NoisyProblem, NoiseStart], Fit]] = {
    "exact": _fit_exact,
    "stochastic": _fit_stochastic,
}
INFERENCE = tuple(_FITTERS)
