"""From a problem to a fitted committee: start, divide the rows, learn what is shared, infer."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegp import parallel
from sparsegp.committee import learned_noise_experts as noise_experts
from sparsegp.committee import shared_learning
from sparsegp.committee.committee import Committee
from sparsegp.committee.experts import ExpertSpec, Process, Recipe, can_be_expert, require_expert
from sparsegp.committee.split import Split, split
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.partition import Blocking, kernel_metric
from sparsegp.errors import InputError
from sparsegp.fit import affordable
from sparsegp.fit.budget import Budget
from sparsegp.fit.committee_model import CommitteeModel, Member, Members
from sparsegp.fit.problem import CommitteeSpec, NoiseSpec, Problem, Start
from sparsegp.fit.progress import learning_report
from sparsegp.fit.start import StopRequest, learned_noise_start, local_start, until_interrupted
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.sum_objective import place
from sparsegp.learn.trace import LearningResult, Terms
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.noise_start import NoiseStart, noise_start


@dataclass(frozen=True)
class ExpertKind:
    """The approximation that models f, and whether the noise is learned as a process of its own."""

    approx: Approximation
    learns_noise: bool = False

    @classmethod
    def get(cls, name: Any, power: float) -> "ExpertKind":
        learns_noise = isinstance(name, str) and name in noise_experts.APPROXIMATIONS
        if isinstance(name, str) and not learns_noise and name not in approximations.NAMES:
            known = [row for row in approximations.NAMES if can_be_expert(approximations.get(row))]
            raise InputError(
                f"expert must be one of {', '.join([*noise_experts.APPROXIMATIONS, *known])}; got {name!r}."
            )
        approx = approximations.get(noise_experts.APPROXIMATIONS[name] if learns_noise else name, power)
        require_expert(approx)
        return cls(approx, learns_noise)


@dataclass(frozen=True)
class _Task:
    """A problem whose rows are divided among experts."""

    problem: Problem
    committee: CommitteeSpec
    block: Block
    limits: Limits
    metric: Tensor
    split: Split


def fit(problem: Problem, rows: Rows, budget: Budget) -> tuple[CommitteeModel, dict[str, Any]]:
    """The committee, and the record of how it learned. Its rows are in memory: experts get theirs from there."""
    committee = problem.committee
    assert committee is not None
    if not isinstance(rows, MemoryRows):
        raise InputError(
            "A committee needs its rows in the memory of this process: which expert gets a row depends on all of "
            "them. Read them into arrays; client= puts the experts on workers. For rows that do not fit into memory "
            "use SparseGPRegressor(approximation='pic')."
        )
    block = rows.all
    problem = replace(problem, start=_started(problem, committee, block, budget))
    metric = kernel_metric(problem.start.kernel, block.X.shape[1])
    parts = split(
        block.X * metric,
        committee.n_experts,
        committee.partition,
        problem.rng,
        communicates=committee.aggregation.communicates,
        blocks=problem.labels,
    )
    limits = problem.learning.start.limits(block, problem.start.noise_var, problem.start.least_noise_var)
    task = _Task(problem, committee, block, limits, metric, parts)
    recipe, hyper = _with_shared_noise(task) if problem.noise is None else _with_learned_noise(task, problem.noise)
    specs = _specified(recipe, block, parts.all)
    learned, stages = _learned(task, specs, hyper, budget)
    hyper.clear_gradient()
    placed = place(specs, committee.executor) if learned is None else learned.placed
    specs = specs if learned is None else list(learned.specs)
    started = budget.clock()
    inference = shared_learning.infer(
        placed, hyper, committee.executor, communicates=committee.aggregation.communicates
    )
    info = {
        "n_experts": len(specs),
        "rows_per_expert": _sizes(parts),
        **learning_report(stages, inference.jitter, budget.clock() - started),
    }
    return _model(task, recipe, hyper, specs, inference), info


def _sizes(parts: Split) -> tuple[int, int, int]:
    sizes = [len(part) for part in parts.all]
    return min(sizes), int(np.median(sizes)), max(sizes)


def _model(
    task: _Task,
    recipe: Recipe | noise_experts.LearnedNoiseRecipe,
    hyper: Hyperparameters,
    specs: list[ExpertSpec],
    inference: shared_learning.Inference,
) -> CommitteeModel:
    spec, parts, block = task.committee, task.split, task.block
    own = specs[len(specs) - len(inference.experts) :]
    members = [Member.of(*pair) for pair in zip(own, inference.experts, strict=True)]
    blocking = None if parts.partition is None else Blocking(parts.partition, task.metric, parts.labels)
    held = Members(
        recipe.at(hyper),
        tuple(members),
        None if inference.common is None else Member.of(specs[0], inference.common),
        blocking,
        spec.most_asked,
    )
    committee = held.seated(Committee(spec.aggregation, processes(hyper), (), None, spec.tolerance, spec.n_jobs))
    noise_var = float(hyper.noise_var if block.noise_var is None else block.noise_var.mean())
    if len(committee.processes) > 1:
        g = committee.moments(block.X[:: max(1, len(block) // task.problem.learning.committee.noise_sample_rows)])[1]
        noise_var = float(torch.exp(g.mean + 0.5 * g.var).mean())
    return CommitteeModel(committee, noise_var, inference.log_evidence, block.noise_var is not None, held)


def _learned(
    task: _Task, specs: list[ExpertSpec], hyper: Hyperparameters, budget: Budget
) -> tuple[shared_learning.Learned | None, list[LearningResult]]:
    """How far `shared_learning.learn` comes; Ctrl-C ends it and leaves what the phases before have learned."""
    problem, committee = task.problem, task.committee
    stages = list(problem.start.stages)
    if problem.optimizer is None or problem.start.stopped:
        return None, stages
    terms = Terms(task.limits, problem.rng, problem.optimizer, problem.on_step, budget.deadline(1.0))
    options = problem.learning.committee
    lesson = shared_learning.Lesson(terms, problem.learn_inducing, committee.executor, options.schedule)
    if budget.limited:
        work = shared_learning.inference_work(specs, communicates=committee.aggregation.communicates)
        lesson = replace(lesson, inference_work=work)
    reached: shared_learning.Learned | None = None

    def learn() -> list[LearningResult]:
        nonlocal reached
        for phase in shared_learning.learn(specs, hyper, lesson):
            reached = phase
        return []

    interrupted = until_interrupted(learn)
    return reached, [*stages, *(() if reached is None else reached.results), *interrupted]


def processes(hyper: Hyperparameters) -> tuple[Process, ...]:
    """The prior of f, and of g where it is learned."""
    f = Process(hyper.kernel)
    if not isinstance(hyper, JointHyperparameters):
        return (f,)
    return f, Process(hyper.noise_kernel, float(hyper.noise_mean.detach()))


def _started(problem: Problem, committee: CommitteeSpec, block: Block, budget: Budget) -> Start:
    """A start from a few neighbourhoods, in whose metric cells are compact; a single expert needs none."""
    learns_noise, is_local = problem.noise is not None, affordable.worth_a_local_start(budget)
    if problem.optimizer is None or (not learns_noise and (committee.n_experts == 1 or not is_local)):
        return problem.start
    asked, until = StopRequest(problem.on_step), budget.deadline(problem.learning.noise_fractions.start)
    if learns_noise:
        start = learned_noise_start(problem, block, budget, asked, local=is_local)
    else:
        start = local_start(problem, block, asked.or_late(until))
    # a start that was short of time is no reason not to learn
    return start if asked.made else start.going_on()


Setup = tuple[Recipe | noise_experts.LearnedNoiseRecipe, Hyperparameters]


def _with_shared_noise(task: _Task) -> Setup:
    problem, block, start = task.problem, task.block, task.problem.start
    recipe = Recipe(problem.approx, problem.n_inducing, problem.inducing, start.kernel, task.metric, problem.rng)
    learn_noise = block.noise_var is None
    hyper = Hyperparameters(start.kernel, start.noise_var, block.X[:1], learn_noise=learn_noise, learn_inducing=False)
    return recipe, hyper


def _with_learned_noise(task: _Task, noise: NoiseSpec) -> Setup:
    problem, block, kernel = task.problem, task.block, task.problem.start.kernel
    farthest = problem.learning.committee.farthest_lengthscales
    start = NoiseStart(noise.kernel, math.log(problem.start.noise_var))
    if problem.optimizer is not None:
        start = _noise_start(task, noise)
    recipe = noise_experts.LearnedNoiseRecipe(
        problem.approx,
        problem.n_inducing,
        noise.n_inducing,
        problem.inducing,
        kernel,
        start.kernel,
        task.limits.noise_var,
        problem.rng,
    )
    hyper = JointHyperparameters(
        kernel,
        block.X[:1],
        start.kernel,
        block.X[:1],
        start.mean,
        learn_inducing=False,
        lengthscale_factor=farthest if len(task.split.all) > 1 else None,
    )
    return recipe, hyper


@parallel.single()
def _specified(
    recipe: Recipe | noise_experts.LearnedNoiseRecipe, block: Block, parts: list[Tensor]
) -> list[ExpertSpec]:
    return [recipe.spec(block.take(index)) for index in parts]


def _noise_start(task: _Task, noise: NoiseSpec) -> NoiseStart:
    """From residuals inside the experts' own cells, as dense as the data; of large cells, from random rows."""
    problem, cells = task.problem, task.split.cells or task.split.all
    choices = problem.start.kernel, problem.start.noise_var, noise.kernel, task.limits, problem.rng
    sizes = [len(cell) for cell in cells]
    if max(sizes) > problem.learning.committee.largest_dense_cell:
        return noise_start(MemoryRows(task.block), *choices, local=False)
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return noise_start(MemoryRows(task.block.take(torch.cat(cells)), offsets), *choices, local=True)
