"""The sum of objectives of independent parts that share their hyper-parameters, wherever the parts are."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.block import Block
from sparsegp.learn.hyperparameters import Gradients, Hyperparameters, add_gradients, gradients_of
from sparsegp.learn.objective import ExactObjective, Objective
from sparsegp.parallel import Executor, Placed, Threads


class Part(Protocol):
    """Rows with an objective of their own: an expert, a neighbourhood."""

    @property
    def objective(self) -> Objective:
        """Log evidence or bound of the part's own rows."""

    @property
    def work(self) -> float:
        """What an evaluation costs, in multiplications up to a factor; for dividing parts among workers."""

    def hyperparameters(self, shared: Hyperparameters) -> Hyperparameters:
        """A private copy of the shared hyper-parameters."""


@dataclass(frozen=True)
class ExactPart:
    """An exact GP on a few rows."""

    block: Block

    @property
    def objective(self) -> Objective:
        return ExactObjective(self.block)

    @property
    def work(self) -> float:
        return float(len(self.block)) ** 3

    def hyperparameters(self, shared: Hyperparameters) -> Hyperparameters:
        return private_copy(shared, self.block.X[:1], learn_inducing=False)


def private_copy(shared: Hyperparameters, own_inducing: Tensor, *, learn_inducing: bool) -> Hyperparameters:
    """Kernel and noise of `shared` with other inducing inputs."""
    learn_noise = shared.log_noise_var.requires_grad
    noise_var = float(shared.noise_var)
    given = {"learn_noise": learn_noise, "learn_inducing": learn_inducing}
    return Hyperparameters(shared.kernel, noise_var, own_inducing, **given, trend=shared.trend)


@dataclass(frozen=True)
class Member:
    """The objective of a part and its private copy of the shared hyper-parameters, where it computes its gradient."""

    objective: Objective
    hyper: Hyperparameters


@dataclass
class SumObjective:
    """sum_i J_i(theta), the log evidence of independent parts with shared theta; gradients add up (001 sec. IV-A).

    The sum runs in the order of the parts wherever they are, so its last digits do not depend on that. `members` are
    those of the last evaluation that did not fail: parts start where they ended.
    """

    executor: Executor
    members: Placed
    n_rows: int

    @classmethod
    def of(cls, parts: Placed, shared: Hyperparameters, executor: Executor) -> "SumObjective":
        members, n_rows = executor.step(as_member, parts, shared)
        return cls(executor, members, sum(n_rows))

    def value_and_gradient(self, hyper: Hyperparameters) -> float:
        hyper.clear_gradient()
        self.members, answers = self.executor.step(evaluated, self.members, hyper.vector())
        for _, gradients in answers:
            add_gradients(hyper, gradients)
        return float(sum(value for value, _ in answers))


def place(parts: Sequence[Part], executor: Executor, beside: Placed | None = None) -> Placed:
    """Every part at its home, by the work of an evaluation."""
    return executor.place(parts, [part.work for part in parts], beside)


def threaded_sum(parts: Sequence[Part], shared: Hyperparameters, n_jobs: int | None = None) -> SumObjective:
    """`SumObjective` in threads of this process."""
    executor = Threads(n_jobs)
    return SumObjective.of(place(parts, executor), shared, executor)


def as_member(part: Part, shared: Hyperparameters) -> tuple[Member, int]:
    """The member, and the number of its rows."""
    member = Member(part.objective, part.hyperparameters(shared))
    return member, member.objective.n_rows


@linalg.flushed_denormals()
def evaluated(member: Member, vector: NDArray[np.float64]) -> tuple[Member, tuple[float, Gradients]]:
    """J_i and its gradient. What an objective remembers of it, a copy does: this one can be evaluated again."""
    objective = copy.copy(member.objective)
    member.hyper.load_vector(vector)
    value = objective.value_and_gradient(member.hyper)
    return Member(objective, member.hyper), (value, gradients_of(member.hyper))
