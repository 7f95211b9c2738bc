"""`kernel="auto"`: the kernel that a judge finds best on a few neighbourhoods.

What makes a kernel good: forecasts of rows left out of cells of near rows, once they are calibrated, or the bound of
experts that learn their noise. Under constant noise a rough kernel may be the best way to follow rows that are really
noisier than others. A model that learns the noise has no need of it, so it asks for the kernel with the highest bound
once its noise is learned.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from sparsegp.calibration import trees
from sparsegp.calibration.scale import LocalScale, surroundings
from sparsegp.calibration.shape_learning import QUICK, ShapeOptions, calibrated_log_density
from sparsegp.calibration.trees import TreeOptions
from sparsegp.committee.learned_noise_experts import LearnedNoiseRecipe, LearnedNoiseSpec
from sparsegp.core import approximations
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.dense import ExactPosterior
from sparsegp.core.left_out import LeftOut, left_out_within
from sparsegp.core.partition import kernel_metric
from sparsegp.core.predictive import Array
from sparsegp.errors import FactorizationError
from sparsegp.fit.budget import Budget
from sparsegp.fit.learning_options import StartOptions
from sparsegp.fit.problem import Start
from sparsegp.fit.start import global_start
from sparsegp.kernels import Kernel
from sparsegp.learn import lbfgs, neighbourhoods
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.neighbourhoods import Opening, Rounds
from sparsegp.learn.sum_objective import threaded_sum
from sparsegp.learn.trace import Deadline, Terms
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.noise.noise_start import noise_start
from sparsegp.parallel import Threads

AUTO = "auto"
OF_NO_USE = -1e100
FARTHEST, OFFSET = 10.0, 0.01
"""Of residuals, as the calibration counts them for the local scale."""
FEWEST_CELLS = 8


@dataclass(frozen=True)
class KernelOptions:
    """How kernels are compared.

    `candidates`: a choice cut short has seen the first ones: the kernel that is seldom far off, then a rough and a
    smooth one. The first kernel finds out in `first_rounds` which columns matter; the others start from its
    lengthscales, or chance would decide. `least_noise_fraction` is of the noise to start from: rows that are there
    twice would drive it to nothing, and all kernels to lengthscale zero. Thinned rows have other neighbours, so
    `most_rows` is as many as the search for neighbours can bear. `budget_fraction` of a budget is for the choice, and
    `common_fraction` of that for the first kernel.

    Constant noise is judged on `judged_cells` cells of `judged_cell_rows` rows, or all rows together if there are at
    most `whole_rows`. Heavy tails of residuals and noise that varies, which a calibration will mend, must not decide: a
    simple `shape`, and small `trees` grown on `scale_rows` of the residuals if there are enough, are enough for that.
    Where a density is not worse by more than chance, a kernel is better whose squared errors are smaller by more than
    chance: by `errors_of_chance` standard errors each. Learned noise is judged on `n_cells` cells of `cell_rows` rows,
    after `iterations` there.
    """

    candidates: tuple[str, ...] = ("matern32", "matern12", "se", "matern52")
    first_rounds: Rounds = field(
        default_factory=lambda: Rounds(
            counts=(16,), n_rows=200, iterations=25, n_judged=200, n_neighbours=50, opening_count=8
        )
    )
    rounds: Rounds = field(
        default_factory=lambda: Rounds(
            counts=(),
            n_judged=200,
            n_neighbours=50,
            openings=(Opening(1.0, 1.0), Opening(0.3, 1.0)),
            opening_count=12,
            opening_iterations=15,
        )
    )
    least_noise_fraction: float = 1e-3
    most_rows: int = 1_000_000
    budget_fraction: float = 0.2
    common_fraction: float = 0.4
    fewest_seconds: float = 4.0
    judged_cells: int = 64
    judged_cell_rows: int = 500
    whole_rows: int = 1500
    scale_rows: int = 10_000
    fewest_for_scale: int = 1000
    errors_of_chance: float = 2.0
    shape: ShapeOptions = QUICK
    trees: TreeOptions = field(default_factory=lambda: TreeOptions(depth=4, rate=0.25))
    n_cells: int = 8
    cell_rows: int = 300
    iterations: int = 20
    tolerance: float = 1e-5
    start: StartOptions = field(default_factory=StartOptions)


@dataclass(frozen=True)
class ChosenKernel:
    """The name of the best kernel, and where it ended on neighbourhoods (None: there was no time to try it)."""

    name: str
    local: Start | None = None


def chosen_kernel(
    start_of: Callable[[str, np.random.Generator], Start],
    optimizer: str | None,
    block: Block,
    rng: np.random.Generator,
    budget: Budget | None = None,
    judge: "Judge | None" = None,
    options: KernelOptions | None = None,
) -> ChosenKernel:
    """The best kernel, found in a fraction of the time that is left for the whole fit."""
    options = options or KernelOptions()
    if optimizer is None or len(options.candidates) == 1:
        # nothing is learned, or nothing is left to choose
        return ChosenKernel(options.candidates[0])
    seed = int(rng.integers(2**31))
    starts = {name: start_of(name, np.random.default_rng(seed)) for name in options.candidates}
    return best_start(starts, block, rng, budget, judge, options)


def best_start(
    starts: dict[str, Start],
    block: Block,
    rng: np.random.Generator,
    budget: Budget | None = None,
    judge: "Judge | None" = None,
    options: KernelOptions | None = None,
) -> ChosenKernel:
    """The start with the best score. All of them see the same neighbourhoods and the same held-out rows.

    A fraction of the time left for the whole fit goes into it: the first starts are tried, as many as fit; without
    time to compare two, the first is taken.
    """
    options = options or KernelOptions()
    judge = judge or LeftOutRows(options)
    within = (budget or Budget()).sub(options.budget_fraction)
    if not within.allows(options.fewest_seconds):
        return ChosenKernel(next(iter(starts)))
    if len(block) > options.most_rows:
        block = block.take(torch.from_numpy(np.sort(rng.choice(len(block), options.most_rows, replace=False))))
    # the likeliest noise between copies is none, and the likeliest lengthscale then nothing
    block = block.distinct()
    seed = int(rng.integers(2**31))
    first = next(iter(starts.values()))
    limits = options.start.limits(block, first.noise_var, options.least_noise_fraction * first.noise_var)
    late = within.deadline(options.common_fraction)
    common = learned(first, block, limits, np.random.default_rng(seed), options.first_rounds, late)
    if not within.allows(judge.fewest_seconds):
        return ChosenKernel(next(iter(starts)), _start_of(common))
    judge = judge.prepared(block, common, np.random.default_rng(seed))
    scores, ends, started = dict[str, Score](), dict[str, Start](), within.clock()
    for name, start in starts.items():
        if scores and not within.allows((within.clock() - started) / len(scores)):
            break
        again = np.random.default_rng(seed)
        hyper = learned(_at_values_of(common, start), block, limits, again, options.rounds)
        ends[name] = _start_of(hyper)
        scores[name] = judge.score(hyper, block, again)
    best = winner(scores, options.errors_of_chance)
    return ChosenKernel(best, ends[best])


@dataclass(frozen=True)
class Score:
    """Mean log density and squared error of the rows of each cell, or of each row: the same for all kernels."""

    density: Array
    square_error: Array

    @classmethod
    def of(cls, density: float) -> "Score":
        """Of all rows together."""
        return cls(np.array([density]), np.zeros(1))


def winner(scores: dict[str, Score], errors_of_chance: float) -> str:
    """The first, unless the density of another is better by a standard error; or as good, and its means are nearer."""
    best, *others = scores
    for name in others:
        gain, chance = _mean_and_error(scores[name].density - scores[best].density)
        nearer, by_chance = _mean_and_error(scores[best].square_error - scores[name].square_error)
        if gain > chance or (gain > -errors_of_chance * chance and nearer > errors_of_chance * by_chance):
            best = name
    return best


def _mean_and_error(values: Array) -> tuple[float, float]:
    """And the standard error of the mean."""
    return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _at_values_of(common: Hyperparameters, start: Start) -> Start:
    """The same kind of kernel with the variance, lengthscales and noise of another."""
    kernel = deepcopy(start.kernel)
    kernel.load_state_dict(common.kernel.state_dict())
    return Start(kernel, float(common.noise_var))


def _start_of(hyper: Hyperparameters) -> Start:
    return Start(deepcopy(hyper.kernel), float(hyper.noise_var))


class Judge(Protocol):
    """Gives a learned kernel its score."""

    @property
    def fewest_seconds(self) -> float:
        """What a comparison of two kernels takes."""

    def prepared(self, block: Block, common: Hyperparameters, rng: np.random.Generator) -> "Judge":
        """With everything that does not depend on the kernel; `common` has the lengthscales that all start from."""

    def score(self, hyper: Hyperparameters, block: Block, rng: np.random.Generator) -> Score:
        """The more, the better; hardly anything where the kernel fails."""


@dataclass(frozen=True)
class LeftOutRows:
    """For constant noise: forecasts of every row of some cells by the exact GP on the others, after calibration.

    A row in the middle of its nearest neighbours is easy. In a cell, as in a block of pic, there are rows at the edge.
    """

    options: KernelOptions
    cells: tuple[Block, ...] = ()

    @property
    def fewest_seconds(self) -> float:
        return 2.0

    def prepared(self, block: Block, common: Hyperparameters, rng: np.random.Generator) -> "LeftOutRows":
        options = self.options
        if len(block) <= options.whole_rows:
            return replace(self, cells=(block,))
        metric = kernel_metric(common.kernel, block.X.shape[1]).to(block.X)
        cells = neighbourhoods.neighbourhoods(block, metric, options.judged_cells, options.judged_cell_rows, rng)
        return replace(self, cells=tuple(cells))

    def score(self, hyper: Hyperparameters, block: Block, rng: np.random.Generator) -> Score:
        def left_out(cell: Block) -> LeftOut:
            noise_var = hyper.noise_var.detach()
            return left_out_within(ExactPosterior.build(hyper.kernel, cell, noise_var), cell, noise_var)

        if len(block) < 2:
            return Score.of(0.0)
        try:
            threads = Threads()
            found = LeftOut.concat(threads.map(left_out, threads.place(self.cells)))
        except FactorizationError:
            return Score.of(OF_NO_USE)
        X, y = np.concatenate([cell.X.double().cpu().numpy() for cell in self.cells]), found.y.cpu().numpy()
        mean, std = found.mean.cpu().numpy(), found.var.sqrt().cpu().numpy()
        judged, log_c = self._scaled(X, (y - mean) / std, mean, std, rng)
        density = calibrated_log_density(
            y[judged], mean[judged], std[judged] * np.exp(log_c), rng, options=self.options.shape
        )
        cell = np.repeat(np.arange(len(self.cells)), [len(cell) for cell in self.cells])[judged]
        return Score(self._by_cell(cell, density), self._by_cell(cell, (y - mean)[judged] ** 2))

    def _scaled(
        self, X: Array, z: Array, mean: Array, std: Array, rng: np.random.Generator
    ) -> tuple[Any, Array | float]:
        """Which rows are judged, and log c there, grown on others: none where residuals are few."""
        options = self.options
        if len(z) < options.fewest_for_scale:
            return slice(None), 0.0
        order = rng.permutation(len(z))
        n = min(options.scale_rows, len(z) // 2)
        grow, judged = order[:n], order[n:]
        size = np.abs(np.clip(z, -FARTHEST, FARTHEST))
        size += OFFSET * (float(np.median(size)) or 1.0)
        seen = surroundings(X, mean, std)
        local = LocalScale(replace(trees.grown(seen[grow], size[grow], rng, options.trees), base=0.0))
        return judged, local.log_scale(local.trees(seen[judged]))

    def _by_cell(self, cell: Array, values: Array) -> Array:
        """Rows of a cell are alike, so cells tell what is chance; where there are too few of them, rows."""
        if len(self.cells) < FEWEST_CELLS:
            return values
        means: Array = np.bincount(cell, values, len(self.cells)) / np.maximum(
            np.bincount(cell, None, len(self.cells)), 1
        )
        return means


@dataclass(frozen=True)
class LearnedNoise:
    """For noise that is learned: the bound of exact experts on a few cells, after kernel and noise were learned there.

    The bound counts what the noise explains and what it costs, and holds no rows out. `inducing_per_row`: how fine the
    noise process of the model will be.
    """

    noise_kernel: Kernel
    inducing_per_row: float
    options: KernelOptions = field(default_factory=KernelOptions)
    cells: MemoryRows | None = None
    least_noise_var: float = 0.0

    @property
    def fewest_seconds(self) -> float:
        return 10.0

    def prepared(self, block: Block, common: Hyperparameters, rng: np.random.Generator) -> "LearnedNoise":
        metric = kernel_metric(common.kernel, block.X.shape[1]).to(block.X)
        options = self.options
        found = neighbourhoods.neighbourhoods(block, metric, options.n_cells, options.cell_rows, rng)
        smooth = global_start(block, _start_of(common), "lbfgs", rng, options.start)
        cells = MemoryRows(Block.concat(found), torch.tensor([0, *map(len, found)]).cumsum(0))
        return replace(self, cells=cells, least_noise_var=options.start.least_noise_fraction * smooth.noise_var)

    def score(self, hyper: Hyperparameters, block: Block, rng: np.random.Generator) -> Score:
        assert self.cells is not None
        noise_var = max(float(hyper.noise_var), self.least_noise_var)
        limits = self.options.start.limits(block, noise_var, self.least_noise_var)
        try:
            noise_kernel = deepcopy(self.noise_kernel)
            start = noise_start(self.cells, hyper.kernel, noise_var, noise_kernel, limits, rng, local=True)
            specs = self._specs(self.cells, hyper.kernel, start.kernel, limits, rng)
            first = block.X[:1]
            joint = JointHyperparameters(hyper.kernel, first, start.kernel, first, start.mean, learn_inducing=False)
            objective = threaded_sum(specs, joint)
            options = self.options
            found = lbfgs.maximize(
                objective, joint, limits, max_iterations=options.iterations, tolerance=options.tolerance
            )
            return Score.of(found.objective)
        except FactorizationError:
            return Score.of(OF_NO_USE)

    def _specs(
        self, cells: MemoryRows, kernel: Kernel, noise_kernel: Kernel, limits: Limits, rng: np.random.Generator
    ) -> list[LearnedNoiseSpec]:
        blocks = list(cells.blocks())
        n_noise_inducing = max(1, round(self.inducing_per_row * len(blocks[0])))
        exact = approximations.get("exact")
        recipe = LearnedNoiseRecipe(exact, 1, n_noise_inducing, "kmeans", kernel, noise_kernel, limits.noise_var, rng)
        return [recipe.spec(block) for block in blocks]


def learned(
    start: Start,
    block: Block,
    limits: Limits,
    rng: np.random.Generator,
    rounds: Rounds,
    deadline: Deadline | None = None,
) -> Hyperparameters:
    """Kernel and constant noise from neighbourhoods, in place; from where they are if that fails."""
    hyper = Hyperparameters(
        start.kernel, start.noise_var, block.X[:1], learn_noise=block.noise_var is None, learn_inducing=False
    )
    with suppress(FactorizationError):
        neighbourhoods.learn(block, hyper, Terms(limits, rng, deadline=deadline), rounds)
    hyper.clear_gradient()
    return hyper
