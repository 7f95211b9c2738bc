"""The state of learning in a file, so that a killed driver continues where it stopped."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsegp.errors import InputError
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.objective import Objective
from sparsegp.learn.schedules import Stage
from sparsegp.whole_file import replacing


@dataclass(frozen=True)
class LearningState:
    """The stage that learning is in, the best value there, and the hyper-parameters that gave it."""

    stage: int
    value: float
    parameters: dict[str, torch.Tensor]

    def restore(self, hyper: Hyperparameters) -> None:
        hyper.load_state_dict(self.parameters)


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds the random seed of a fit and its last `LearningState`; it is replaced whole or not at all."""

    path: Path

    def seed(self, fresh: int) -> int:
        """The seed of the fit that left the file, else the given one: samples and blocks come out the same again."""
        return int(self._content()["seed"]) if self.path.exists() else fresh

    def read(self, task: str) -> LearningState | None:
        """The state that the same task left behind; None where there is no file yet."""
        if not self.path.exists():
            return None
        found = self._content()
        if str(found["task"]) != task:
            raise InputError(
                f"The checkpoint '{self.path}' was left by a fit of other data or with other parameters. Name another "
                "file, or remove this one to start again."
            )
        parameters = {
            name.removeprefix("parameter."): torch.from_numpy(values)
            for name, values in found.items()
            if name.startswith("parameter.")
        }
        return LearningState(int(found["stage"]), float(found["value"]), parameters)

    def write(self, task: str, seed: int, state: LearningState) -> None:
        parameters = {f"parameter.{name}": value.cpu().numpy() for name, value in state.parameters.items()}
        facts = {"task": task, "seed": seed, "stage": state.stage, "value": state.value}
        with replacing(self.path) as out:
            np.savez(out, **{name: np.asarray(value) for name, value in {**facts, **parameters}.items()})  # type: ignore[arg-type]

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _content(self) -> dict[str, Any]:
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"'{self.path}' is not a checkpoint of sparsegp: {error}. Name another file.") from error


@dataclass
class CheckpointedObjective:
    """An objective that writes every point that is better than all before it."""

    objective: Objective
    checkpoint: Checkpoint
    task: str
    seed: int
    stage: int
    best: float = -np.inf

    @property
    def n_rows(self) -> int:
        return self.objective.n_rows

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        value = self.objective.value_and_gradient(hyper)
        if value > self.best:
            self.best = value
            parameters = {name: values.detach().clone() for name, values in hyper.state_dict().items()}
            self.checkpoint.write(self.task, self.seed, LearningState(self.stage, value, parameters))
        return value


@dataclass(frozen=True)
class Resumption:
    """`StageKeeper` of a fit: where the state of learning is kept, under which name and seed, and what an earlier
    process left there."""

    checkpoint: Checkpoint
    task: str
    seed: int
    left: LearningState | None

    @classmethod
    def of(cls, checkpoint: Checkpoint, task: str, seed: int) -> "Resumption":
        return cls(checkpoint, task, seed, checkpoint.read(task))

    def resumed(self, hyper: Hyperparameters) -> bool:
        if self.left is None:
            return False
        self.left.restore(hyper)
        return True

    def watched(self, stages: Iterator[Stage]) -> Iterator[Stage]:
        for number, stage in enumerate(stages):
            if self.left is None or number >= self.left.stage:
                kept = CheckpointedObjective(stage.objective, self.checkpoint, self.task, self.seed, number)
                yield replace(stage, objective=kept)


def task_name(*facts: Any) -> str:
    """A name that two fits share only when all facts agree."""
    return hashlib.sha256("|".join(map(repr, facts)).encode()).hexdigest()
