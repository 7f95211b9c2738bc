"""A regression task as the user gave it, before there are blocks and inducing inputs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from sparsegp.approximations import Approximation
from sparsegp.data import Block
from sparsegp.estimators import families
from sparsegp.estimators.families import Problem, Start
from sparsegp.estimators.incoming.blocking import Blocking, make_rows
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.learning.recorder import StepCallback


@dataclass(frozen=True)
class Task:
    """Rows in the model's units and every choice the user made. `n_blocks` None: about `n_inducing` rows a block."""

    row: Approximation
    block: Block
    labels: ArrayLike | None
    start: Start
    inducing: Any
    n_inducing: int
    n_blocks: int | None
    learn_inducing: bool
    optimizer: str | None
    rng: np.random.Generator
    on_step: StepCallback | None = None
    clip_variances: bool = False

    @property
    def scouts(self) -> bool:
        """Whether kernel and noise are learned from neighbourhoods before there are blocks."""
        return self.row.by_block and self.optimizer is not None

    @property
    def wanted_blocks(self) -> int:
        return self.n_blocks or max(1, round(len(self.block) / self.n_inducing))

    def scouted(self, on_step: StepCallback | None = None) -> "Task":
        """From the start that neighbourhoods give."""
        if self.optimizer is None:
            return self
        start = families.scout(self.block, self.start, self.optimizer, self.rng, on_step or self.on_step)
        return replace(self, start=start)

    def arranged(self) -> tuple[Problem, Blocking | None]:
        """The rows sorted into blocks where the approximation has them."""
        rows, blocking = make_rows(self.row, self.block, self.start.kernel, self.wanted_blocks, self.labels, self.rng)
        problem = Problem(
            rows=rows,
            row=self.row,
            start=self.start,
            inducing=self.inducing,
            n_inducing=self.n_inducing,
            learn_inducing=self.learn_inducing,
            optimizer=self.optimizer,
            rng=self.rng,
            on_step=self.on_step,
            clip_variances=self.clip_variances,
        )
        return problem, blocking

    def sample(self, n_rows: int, rng: np.random.Generator) -> "Task":
        """The same task on random rows, with as many blocks as suit them."""
        if n_rows >= len(self.block):
            return replace(self, rng=rng)
        index = torch.from_numpy(np.sort(rng.choice(len(self.block), n_rows, replace=False)))
        labels = None if self.labels is None else np.asarray(self.labels)[index.numpy()]
        n_blocks = None if self.n_blocks is None else max(1, round(self.n_blocks * n_rows / len(self.block)))
        return replace(self, block=self.block.take(index), labels=labels, n_blocks=n_blocks, rng=rng)


@dataclass(frozen=True)
class Accepted:
    """A task that passed all checks, the units it is in, and the number of rows that came."""

    task: Task
    units: Standardizer
    n_rows: int
