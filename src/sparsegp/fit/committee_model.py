"""A fitted committee: a frozen value that takes rows in and gives them back, at fixed hyper-parameters.

Experts have disjoint rows, so an update computes those again whose rows have changed and leaves all others: the model
is that of one fit of the rows it holds, with the same hyper-parameters, inducing inputs and division of the rows.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.committee import shared_learning
from sparsegp.committee.aggregation import Moments
from sparsegp.committee.committee import Committee
from sparsegp.committee.experts import Expert, ExpertSpec, Process, Recipe, Trained
from sparsegp.committee.learned_noise_experts import LearnedNoiseRecipe
from sparsegp.committee.split import Nearest
from sparsegp.core.approximations import Family
from sparsegp.core.block import Block, MemoryRows, Rows
from sparsegp.core.left_out import LeftOut
from sparsegp.core.partition import NO_BLOCK, Blocking, require_integers
from sparsegp.core.predictive import Array, Joint, NoiseMixture
from sparsegp.errors import InputError
from sparsegp.fit.committee_left_out import left_out_of_committee
from sparsegp.fit.learned_noise import NOISE_IS_OF_ALL_ROWS
from sparsegp.fit.scaling import Scaling
from sparsegp.infer.drift import Innovations, RecentLevel
from sparsegp.infer.recursive import OUTLIER_SQ
from sparsegp.kernels import Kernel
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.noise.joint_hyperparameters import JointHyperparameters
from sparsegp.parallel import Threads

COMMON = -2
"""The number of the communications expert among the others."""


@dataclass(frozen=True)
class GrowthOptions:
    """Rows that an expert may grow to: the cost of an update is cubic in those of an exact one."""

    dense_rows: int = 10_000
    sparse_rows: int = 200_000


@dataclass(frozen=True)
class Member:
    """What an expert is made from, the expert (None: it has no rows at present), and the log evidence of its rows."""

    spec: ExpertSpec
    expert: Expert | None = None
    log_evidence: float = 0.0

    @classmethod
    def of(cls, spec: ExpertSpec, trained: Trained) -> "Member":
        return cls(spec, trained.expert, trained.log_evidence)


@dataclass(frozen=True)
class Members:
    """All experts with their rows, the communications expert, and what it takes to give rows to them.

    `blocking` says where rows belong: to the nearest centroid, or by labels of the user. None: the split was random,
    and a row goes to the expert with the fewest rows. `recipe` makes experts for labels that are new.
    """

    recipe: Recipe | LearnedNoiseRecipe
    others: tuple[Member, ...]
    common: Member | None = None
    blocking: Blocking | None = None
    most_asked: int | None = None
    options: GrowthOptions = field(default_factory=GrowthOptions)

    @property
    def all(self) -> tuple[Member, ...]:
        return self.others if self.common is None else (self.common, *self.others)

    @property
    def n_rows(self) -> int:
        return sum(len(member.spec.block) for member in self.all)

    @property
    def mean_noise_var(self) -> float | None:
        """Mean of the known noise variances; None if they are not known."""
        known = [member.spec.block.noise_var for member in self.all if len(member.spec.block)]
        found = [noise for noise in known if noise is not None]
        return float(torch.cat(found).mean()) if found else None

    @property
    def log_evidence(self) -> float:
        """As `shared_learning.Inference` has it."""
        base = 0.0 if self.common is None else self.common.log_evidence
        return float(base + sum(member.log_evidence - base for member in self.others if member.expert is not None))

    def seated(self, committee: Committee) -> Committee:
        """The committee of those who have rows."""
        filled = [member for member in self.others if member.expert is not None]
        nearest = None
        if self.blocking is not None and self.most_asked is not None and self.most_asked < len(filled):
            nearest = Nearest.of(self.most_asked, [member.spec.block.X for member in filled], self.blocking.metric)
        experts = [member.expert for member in filled if member.expert is not None]
        common = None if self.common is None else self.common.expert
        return replace(committee, experts=experts, common=common, nearest=nearest)

    def rows_of(self, k: int) -> Block:
        member = self.common if k == COMMON else self.others[k]
        assert member is not None
        return member.spec.block

    def for_labels(self, block: Block, labels: ArrayLike | None) -> "Members":
        """With experts, still without rows, for labels not seen before."""
        if labels is None or self.blocking is None:
            return self
        unseen, given = self.blocking.unseen(labels), np.asarray(labels)
        if not len(unseen):
            return self
        new = [self._new_expert(block.take(torch.from_numpy(given == label)), label) for label in unseen.tolist()]
        blocking, order = self.blocking.with_labels(unseen, block.X, labels)
        members = (*self.others, *new)
        return replace(self, others=tuple(members[k] for k in order.tolist()), blocking=blocking)

    def _new_expert(self, block: Block, label: int) -> Member:
        """Inducing inputs are chosen from the first rows; the label seeds the choice."""
        recipe = replace(self.recipe, rng=np.random.default_rng((0, label & (2**32 - 1))))
        return Member(recipe.spec(block).with_rows(block.take(slice(0, 0))))

    def numbers(self, X: Tensor, labels: ArrayLike | None) -> Tensor:
        """The expert of each new row."""
        if not self.others:
            return torch.full((len(X),), COMMON)
        if self.blocking is not None and (labels is not None or self.blocking.originals is None):
            return self.blocking.labels(X, labels)
        if self.blocking is not None:
            return self._nearest_mean(self.blocking, X)
        sizes = [(len(member.spec.block), k) for k, member in enumerate(self.others)]
        heapq.heapify(sizes)
        numbers = []
        for _ in range(len(X)):
            size, k = sizes[0]
            heapq.heapreplace(sizes, (size + 1, k))
            numbers.append(k)
        return torch.tensor(numbers, dtype=torch.int64)

    def _nearest_mean(self, blocking: Blocking, X: Tensor) -> Tensor:
        """Experts by labels are where their rows are; those without any are nowhere."""
        filled = torch.tensor([k for k, member in enumerate(self.others) if len(member.spec.block)])
        if not len(filled):
            raise InputError("No expert has rows, so none is near: give the labels of these rows with blocks=.")
        return filled[blocking.moved_to(blocking.partition.centroids[filled]).nearest(X)]

    def holders(self, k: int, labels: ArrayLike | None) -> Iterable[int]:
        """Experts that may have a row which belongs to expert k, in the order to ask them."""
        first = [] if k in (NO_BLOCK, COMMON) else [k]
        common = [] if self.common is None else [COMMON]
        is_certain = self.blocking is not None and (self.blocking.originals is None or labels is not None)
        rest = [] if is_certain else [other for other in range(len(self.others)) if other != k]
        return [*first, *common, *rest]

    def require_room(self, n_rows: int) -> None:
        is_dense = self.recipe.approx.family is Family.EXACT
        most = self.options.dense_rows if is_dense else self.options.sparse_rows
        if n_rows > most:
            raise InputError(
                f"An expert would have {n_rows:,} rows; updates are for experts of up to {most:,}. The model is "
                "unchanged. Fit again with all rows, so that there are more experts."
            )

    def with_rows(self, changed: Mapping[int, Block], hyper: Hyperparameters, n_jobs: int | None) -> "Members":
        """With other rows for some experts. They are computed again, and all are where the common rows have changed."""
        common, others = self.common, list(self.others)
        for k, block in changed.items():
            if k != COMMON:
                others[k] = Member(others[k].spec.with_rows(block))
        again = [k for k in changed if k != COMMON]
        if common is not None and COMMON in changed:
            spec = common.spec.with_rows(changed[COMMON])
            common, again = Member.of(spec, shared_learning.train(spec, hyper)), list(range(len(others)))
        again = [k for k in again if len(others[k].spec.block)]
        specs, threads = [others[k].spec for k in again], Threads(n_jobs)
        shared = None if common is None else common.spec
        placed = threads.place(specs, [spec.inference_work for spec in specs])
        for k, trained in zip(again, threads.map(shared_learning.train, placed, hyper, shared), strict=True):
            others[k] = Member.of(others[k].spec, trained)
        blocking = self.blocking
        if blocking is not None:
            blocking = blocking.with_moved_means({k: others[k].spec.block.X for k in changed if k != COMMON})
        return replace(self, common=common, others=tuple(others), blocking=blocking)


@dataclass(frozen=True)
class CommitteeModel:
    """Experts that share their hyper-parameters. `noise_var` is the mean over rows where the noise is learned.

    `members` None: the rows are not known, and the model only predicts.
    """

    committee: Committee
    noise_var: float
    log_evidence: float
    known_noise: bool = False
    members: Members | None = None
    innovations: Innovations = field(default_factory=Innovations)
    level: RecentLevel = field(default_factory=RecentLevel)
    approx: None = None
    blocking: None = None
    inducing: None = None
    trend: None = None

    @property
    def kernel(self) -> Kernel:
        return self.committee.processes[0].kernel

    @property
    def learns_noise(self) -> bool:
        return len(self.committee.processes) > 1

    @property
    def noise_process(self) -> Process:
        """The prior of g, the log noise variance, where it is learned."""
        return self.committee.processes[1]

    @property
    def n_rows(self) -> int:
        return self._updatable().n_rows

    def check_labels(self, blocks: ArrayLike | None, n_rows: int) -> None:
        """Labels of new rows only where experts were given by labels."""
        if blocks is None:
            return
        blocking = self._updatable().blocking
        if blocking is None or blocking.originals is None:
            raise InputError(
                "blocks= labels new rows of a committee whose experts were given by labels, with fit(blocks=...). "
                "These experts were found from the rows: leave blocks= out."
            )
        require_integers(blocks, n_rows)

    def expected(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> Array:
        """Experts count by their variances, so that the mean takes as long as the forecast."""
        return self.forecast(X, blocks, scaling).mean

    def forecast(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> NoiseMixture:
        _refuse_blocks(blocks)
        f, *noise = self.committee.moments(X)
        return self._with_noise(*scaling.raw_moments(f.mean, f.var), noise, scaling)

    def joint_forecast(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> Joint:
        _refuse_blocks(blocks)
        _, cov = scaling.raw_moments(*self.committee.joint(X))
        return Joint.of(self.forecast(X, blocks, scaling), cov)

    def _with_noise(self, mean: Array, f_var: Array, noise: Sequence[Moments], scaling: Scaling) -> NoiseMixture:
        """Without a noise process, log noise is a known number: a mixture with a single part."""
        if not noise:
            log_noise = math.log(self.noise_var) + scaling.log_noise_shift
            return NoiseMixture(mean, f_var, np.full_like(mean, log_noise), np.zeros_like(mean))
        (g,) = noise
        return NoiseMixture(mean, f_var, g.mean.numpy() + scaling.log_noise_shift, g.var.numpy())

    def add(self, block: Block, labels: ArrayLike | None = None) -> "CommitteeModel":
        members = self._updatable().for_labels(block, labels)
        numbers = members.numbers(block.X, labels)
        changed = {
            k: Block.concat([members.rows_of(k), block.take(numbers == k)], fill=True)
            for k in numbers.unique().tolist()
        }
        members.require_room(max(map(len, changed.values())))
        grown = self._with(members, changed)
        innovations = self.innovations.after_rows(len(block), self._mean_square_error(block))
        return replace(grown, innovations=innovations, level=self.level.after(block.X, block.y))

    def remove(self, block: Block, labels: ArrayLike | None = None) -> "CommitteeModel":
        members = self._updatable()
        belongs = members.numbers(block.X, labels).tolist()
        remains: dict[int, Tensor] = {}
        for i, own in enumerate(belongs):
            k, place = _found(members, members.holders(own, labels), remains, block, i)
            remains[k][place] = False
        changed = {k: members.rows_of(k).take(mask) for k, mask in remains.items() if not bool(mask.all())}
        if COMMON in changed and not len(changed[COMMON]):
            raise InputError(
                "The communications expert of 'grbcm' would be left without rows. The model is unchanged: fit again on "
                "the rows that stay, or use an aggregation without it, as 'rbcm'."
            )
        return self._with(members, changed)

    def scale(self, factor: float) -> "CommitteeModel":
        members = self._updatable()
        held = {k: members.rows_of(k) for k in range(len(members.others))}
        if members.common is not None:
            held[COMMON] = members.common.spec.block
        return self._with(members, {k: replace(rows, weight=factor * rows.weights) for k, rows in held.items()})

    def merge(self, other: "CommitteeModel") -> "CommitteeModel":
        raise InputError(
            "Committees cannot be merged: each has divided its own rows among experts of its own. Add the rows of one "
            "to the other with partial_fit, or fit again on all rows."
        )

    def marginals(self, X: Tensor, blocks: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at each row."""
        f = self.committee.moments(X)[0]
        return f.mean, f.var

    def require_left_out(self) -> None:
        if self.learns_noise:
            raise InputError(NOISE_IS_OF_ALL_ROWS)
        if self.members is None:
            raise InputError("This committee came from a file without the rows of its experts: fit it again.")

    def left_out(self, rows: Rows) -> LeftOut:
        """Every expert in closed form. A row that a subset has not chosen gets its prediction."""
        self.require_left_out()
        members = self.members
        assert members is not None
        if not isinstance(rows, MemoryRows):
            raise InputError("Rows of a committee are left out in the memory of this process.")
        specs = [member.spec for member in members.others if member.expert is not None]
        common = None if members.common is None else members.common.spec
        holds_all = members.recipe.approx.family is not Family.SUBSET
        return left_out_of_committee(self.committee, specs, common, rows.all, self.noise_var, holds_all=holds_all)

    def reported(self) -> "CommitteeModel":
        level = self.level.reported_once()
        return self if level is self.level else replace(self, level=level)

    def _updatable(self) -> Members:
        members = self.members
        if members is None:
            raise InputError(
                "This committee came from a file without the rows of its experts, so it predicts but cannot be "
                "updated. Fit it again with this version and save it."
            )
        if members.recipe.approx.family is Family.SUBSET:
            raise InputError(
                "expert='sod' keeps a random subset of its rows, chosen once: rows cannot be added or removed. Use "
                "'exact' or 'vfe', or fit again on all rows."
            )
        return members

    @cached_property
    def _hyper(self) -> Hyperparameters:
        """The hyper-parameters of the experts, with the very kernels they have."""
        f, *noise = self.committee.processes
        somewhere = self._updatable().all[0].spec.block.X[:1]
        hyper = Hyperparameters(f.kernel, self.noise_var, somewhere, learn_inducing=False)
        if noise:
            (g,) = noise
            hyper = JointHyperparameters(f.kernel, somewhere, g.kernel, somewhere, g.mean, learn_inducing=False)
            hyper.noise_kernel = g.kernel
        hyper.kernel = f.kernel
        return hyper

    def _with(self, members: Members, changed: Mapping[int, Block]) -> "CommitteeModel":
        held = members.with_rows(changed, self._hyper, self.committee.n_jobs)
        known = held.mean_noise_var
        return replace(
            self,
            committee=held.seated(self.committee),
            log_evidence=held.log_evidence,
            noise_var=self.noise_var if known is None else known,
            members=held,
        )

    def _mean_square_error(self, block: Block) -> float:
        """Of rows not yet added, each in units of what is expected of it alone, and bounded as elsewhere."""
        f, *noise = self.committee.moments(block.X)
        noise_var = f.var.new_full((len(block),), self.noise_var) if block.noise_var is None else block.noise_var
        if noise:
            noise_var = torch.exp(noise[0].mean + 0.5 * noise[0].var)
        squares = (block.y - f.mean).square() / (f.var + noise_var)
        return float(squares.clamp_max(OUTLIER_SQ).mean())


def _found(
    members: Members, holders: Iterable[int], remains: dict[int, Tensor], block: Block, i: int
) -> tuple[int, int]:
    """The expert that has row i of a block, and its place there; a row taken before is not there any more."""
    for k in holders:
        held = members.rows_of(k)
        mask = remains.setdefault(k, torch.ones(len(held), dtype=torch.bool))
        equal = mask & (block.X[i] == held.X).all(1) & (block.y[i] == held.y)
        if bool(equal.any()):
            return k, int(equal.int().argmax())
    raise InputError(
        "Rows to forget must have been added before: no expert has a row with exactly the inputs and the target of "
        f"row {i} of these {len(block)}, counted from 0. The model is unchanged. Rows that were added with blocks= "
        "must be forgotten with the same labels."
    )


def _refuse_blocks(blocks: ArrayLike | None) -> None:
    if blocks is not None:
        raise InputError("blocks= is for fit and partial_fit. A prediction asks every expert that matters at a row.")
