"""Experts shared out among workers that have no memory in common: who has which, and sums as in one process."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparsegp.committee.training import CommitteeObjective
from sparsegp.learning.gradients import Gradients, add_gradients, gradients_of
from sparsegp.learning.hyperparameters import Hyperparameters

Home = TypeVar("Home", bound=Hashable)
Answer = tuple[float, Gradients]
"""The value and the gradient of one expert."""


@dataclass(frozen=True)
class Share(Generic[Home]):
    """The experts of one worker, by their places among all."""

    home: Home
    places: tuple[int, ...]


def largest_first(work: Sequence[float]) -> list[int]:
    """Places in the order in which to begin: what is begun last should be small."""
    return sorted(range(len(work)), key=lambda place: -work[place])


def shared_out(
    work: Sequence[float], threads: Mapping[Home, int], settled: Mapping[int, Home] | None = None
) -> list[Share[Home]]:
    """One share for each worker. All wait for the slowest: each piece goes where a thread has least to do so far.

    `settled`: pieces that have a home already, by place.
    """
    homes = dict(settled or {})
    load = dict.fromkeys(threads, 0.0)
    for place, home in homes.items():
        load[home] += work[place]
    for place in largest_first(work):
        if place not in homes:
            homes[place] = min(load, key=lambda home: load[home] / threads[home])
            load[homes[place]] += work[place]
    return [Share(home, tuple(sorted(p for p in homes if homes[p] == home))) for home in threads]


def answers_of(objective: CommitteeObjective, vector: NDArray[np.float64]) -> list[Answer]:
    """On a worker: what each of its experts says of these hyper-parameters."""
    values = objective.evaluate(vector)
    gradients = [gradients_of(member.hyper) for member in objective.members]
    return list(zip(values, gradients, strict=True))


def add_up(hyper: Hyperparameters, shares: Sequence[Share[Home]], answers: Sequence[Sequence[Answer]]) -> float:
    """The sum over all experts; gradients are added to those of `hyper`.

    It runs in the order of the experts: its last digits, and with them the path of an optimiser, do not depend on who
    had which.
    """
    by_place = {
        place: answer
        for share, found in zip(shares, answers, strict=True)
        for place, answer in zip(share.places, found, strict=True)
    }
    in_order = [by_place[place] for place in sorted(by_place)]
    for _, gradients in in_order:
        add_gradients(hyper, gradients)
    return float(sum(value for value, _ in in_order))
