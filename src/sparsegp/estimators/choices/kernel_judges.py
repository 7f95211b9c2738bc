"""What makes a kernel good: rows predicted from their neighbours, or the bound of experts that learn their noise.

Under constant noise a rough kernel may be the best way to follow rows that are really noisier than others. A model that
learns the noise has no need of it, so it asks for the kernel with the highest bound once its noise is learned.
"""

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from sparsegp import approximations
from sparsegp.committee import neighbourhoods, training
from sparsegp.data import Block, Rows
from sparsegp.errors import FactorizationError
from sparsegp.estimators.families import LEAST_NOISE_SHARE, Start, limits_of, survey
from sparsegp.estimators.noisy_experts import NoisyPlan, NoisyRecipe
from sparsegp.heteroscedastic.hyperparameters import JointHyperparameters
from sparsegp.heteroscedastic.starting_values import local_noise_start
from sparsegp.kernels import Kernel
from sparsegp.learning import lbfgs
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.partition import kernel_metric
from sparsegp.sources.model_rows import joined

# Kernels differ by hundredths of the log density, rows by several: it takes many of them to tell kernels apart.
N_JUDGED = 1000
N_CELLS, CELL_ROWS = 8, 300
ITERATIONS, TOLERANCE = 20, 1e-5


class Judge(Protocol):
    """Gives a learned kernel its score."""

    @property
    def fewest_seconds(self) -> float:
        """What a comparison of two kernels takes."""

    def prepared(self, block: Block, common: Hyperparameters, rng: np.random.Generator) -> "Judge":
        """With everything that does not depend on the kernel; `common` has the lengthscales that all start from."""

    def score(self, hyper: Hyperparameters, block: Block, rng: np.random.Generator) -> float:
        """The more, the better; minus infinity where the kernel is of no use."""


@dataclass(frozen=True)
class HeldOutRows:
    """For constant noise: the mean log density of held-out rows given their neighbours."""

    n_neighbours: int

    @property
    def fewest_seconds(self) -> float:
        return 2.0

    def prepared(self, block: Block, common: Hyperparameters, rng: np.random.Generator) -> "HeldOutRows":
        return self

    def score(self, hyper: Hyperparameters, block: Block, rng: np.random.Generator) -> float:
        judged = torch.from_numpy(rng.choice(len(block), min(N_JUDGED, len(block)), replace=False))
        try:
            with torch.no_grad():
                return neighbourhoods.held_out_log_density(block, hyper, judged, self.n_neighbours)
        except FactorizationError:
            return -np.inf


@dataclass(frozen=True)
class LearnedNoise:
    """For noise that is learned: the bound of exact experts on a few cells, after kernel and noise were learned there.

    The bound counts what the noise explains and what it costs, and holds no rows out. `inducing_per_row`: how fine the
    noise process of the model will be.
    """

    noise_kernel: Kernel
    inducing_per_row: float
    cells: Rows | None = None
    least_noise_var: float = 0.0

    @property
    def fewest_seconds(self) -> float:
        return 10.0

    def prepared(self, block: Block, common: Hyperparameters, rng: np.random.Generator) -> "LearnedNoise":
        metric = kernel_metric(common.kernel, block.X.shape[1]).to(block.X)
        found = neighbourhoods.neighbourhoods(block, metric, N_CELLS, CELL_ROWS, rng)
        smooth = survey(block, Start(deepcopy(common.kernel), float(common.noise_var)), "lbfgs", rng)
        cells = Rows(joined(found), torch.tensor([0, *map(len, found)]).cumsum(0))
        return replace(self, cells=cells, least_noise_var=LEAST_NOISE_SHARE * smooth.noise_var)

    def score(self, hyper: Hyperparameters, block: Block, rng: np.random.Generator) -> float:
        assert self.cells is not None
        noise_var = max(float(hyper.noise_var), self.least_noise_var)
        limits = limits_of(block, noise_var, self.least_noise_var)
        try:
            noise_kernel = deepcopy(self.noise_kernel)
            start = local_noise_start(self.cells, hyper.kernel, noise_var, noise_kernel, limits, rng)
            plans = self._plans(self.cells, hyper.kernel, start.kernel, limits, rng)
            first = block.X[:1]
            joint = JointHyperparameters(hyper.kernel, first, start.kernel, first, start.mean, learn_inducing=False)
            objective = training.threaded_sum(plans, joint)
            return lbfgs.maximize(objective, joint, limits, max_iterations=ITERATIONS, tolerance=TOLERANCE).objective
        except FactorizationError:
            return -np.inf

    def _plans(
        self, cells: Rows, kernel: Kernel, noise_kernel: Kernel, limits: Limits, rng: np.random.Generator
    ) -> list[NoisyPlan]:
        blocks = list(cells.blocks())
        n_noise_inducing = max(1, round(self.inducing_per_row * len(blocks[0])))
        exact = approximations.get("exact")
        recipe = NoisyRecipe(exact, 1, n_noise_inducing, "kmeans", kernel, noise_kernel, limits.noise_var, rng)
        return [recipe.plan(block) for block in blocks]


def learned(
    start: Start, block: Block, limits: Limits, rng: np.random.Generator, rounds: neighbourhoods.Rounds
) -> Hyperparameters:
    """Kernel and constant noise from neighbourhoods, in place; from where they are if that fails."""
    hyper = Hyperparameters(
        start.kernel, start.noise_var, block.X[:1], learn_noise=block.noise_var is None, learn_inducing=False
    )
    with suppress(FactorizationError):
        neighbourhoods.learn(block, hyper, limits, optimizer="lbfgs", rng=rng, rounds=rounds)
    hyper.clear_gradient()
    return hyper
