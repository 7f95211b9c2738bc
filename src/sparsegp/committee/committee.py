"""A committee at work: experts are asked where they may matter, and their answers aggregated function by function."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from sparsegp.committee.aggregation import EVERYWHERE, Aggregation, Answer, Moments, aggregate, expert_weight
from sparsegp.committee.experts import CommonPart, Expert, Process
from sparsegp.committee.influence import InfluenceBounds
from sparsegp.committee.split import Nearest
from sparsegp.core.posterior import SMALLEST_VARIANCE
from sparsegp.parallel import FEW_ROWS, Threads

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _Said:
    """What the k-th expert says of the rows `index`, latent function by latent function."""

    expert: int
    index: Tensor | slice
    moments: tuple[Moments, ...]


@dataclass(frozen=True)
class Committee:
    """Experts under one prior. `common` is the communications expert of the aggregations that have one.

    Experts that, all together, can change the variance by no more than `tolerance` relative and the mean by no more
    than `tolerance` standard deviations of the base are not asked (R3). A tolerance of 0 asks everybody everywhere.
    `nearest` limits the cost instead: who is not near is not asked, whatever it would have changed.
    """

    rule: Aggregation
    processes: tuple[Process, ...]
    experts: Sequence[Expert]
    common: Expert | None = None
    tolerance: float = 1e-6
    n_jobs: int | None = None
    nearest: Nearest | None = None

    def moments(self, X: Tensor) -> tuple[Moments, ...]:
        """Aggregated mean and variance of each latent function at each row of X."""
        parts = [self._chunk(rows, None, {}) for rows in X.split(ROWS_AT_ONCE)]
        return tuple(Moments.concat(functions) for functions in zip(*parts, strict=True))

    def moments_instead(self, X: Tensor, answers: Mapping[int, Moments], base: Moments | None = None) -> Moments:
        """Moments of f at each row of X if these experts, and the base, had said this of them."""
        parts = []
        for start in range(0, len(X), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            bases = None if base is None else (base.at(rows),)
            parts.append(self._chunk(X[rows], bases, {k: said.at(rows) for k, said in answers.items()})[0])
        return Moments.concat(parts)

    def _chunk(
        self, X: Tensor, bases: tuple[Moments, ...] | None, answers: Mapping[int, Moments]
    ) -> tuple[Moments, ...]:
        """`bases` None: what prior or communications expert say."""
        with torch.no_grad():
            shared = self._common_part(X)
            bases = self._bases(X, shared) if bases is None else bases
            asked = self._asked(X, bases)
        ask, workers = partial(self._ask, X, asked, shared), Threads(self.n_jobs)
        others = [k for k in asked.any(0).nonzero()[:, 0].tolist() if k not in answers]
        said = [ask(k) for k in others] if len(X) <= FEW_ROWS else workers.map(ask, workers.place(others))
        said = sorted(
            [*said, *(_Said(k, EVERYWHERE, (own,)) for k, own in answers.items())], key=lambda one: one.expert
        )
        return tuple(
            aggregate(self.rule, base, _answers(said, function), self.n_asked) for function, base in enumerate(bases)
        )

    @property
    def n_asked(self) -> int:
        """How many experts a row has: all of them, or the nearest."""
        return len(self.experts) if self.nearest is None else self.nearest.most

    def _bases(self, X: Tensor, shared: CommonPart | None) -> tuple[Moments, ...]:
        if self.common is None:
            return tuple(process.moments(X) for process in self.processes)
        return self.common.moments(X) if shared is None else (shared.said,)

    def _influence(self, X: Tensor) -> Tensor | None:
        """Where few experts are asked in any case, finding out who could be left out costs more than it saves."""
        return None if self.common is None or self.nearest is not None else self.common.row_influence(X)

    def _near(self, X: Tensor) -> Tensor | None:
        return None if self.nearest is None else self.nearest.near(X)

    def _common_part(self, X: Tensor) -> CommonPart | None:
        """What experts that have the rows of the communications expert need not compute one by one."""
        return None if self.common is None else self.common.common_part(X)

    def _ask(self, X: Tensor, asked: Tensor, shared: CommonPart | None, k: int) -> _Said:
        if bool(asked[:, k].all()):
            return _Said(k, EVERYWHERE, self.experts[k].moments(X, shared))
        index = asked[:, k].nonzero()[:, 0]
        return _Said(k, index, self.experts[k].moments(X[index], None if shared is None else shared.at(index)))

    def asked(self, X: Tensor) -> Tensor:
        """Whether each expert (column) is asked about each row of X."""
        with torch.no_grad():
            return self._asked(X, self._bases(X, self._common_part(X)))

    def _asked(self, X: Tensor, bases: tuple[Moments, ...]) -> Tensor:
        """Where experts are near enough and may matter, for any of the latent functions."""
        near, influence, stacked = self._near(X), self._influence(X), self._bounds
        if near is None:
            near = torch.ones(len(X), len(self.experts), dtype=torch.bool)
        is_open = self.common is not None and influence is None
        if self.tolerance <= 0.0 or is_open or stacked is None or not len(self.experts):
            return near
        asked = torch.zeros_like(near)
        if self.common is not None:
            # the first expert after a communications expert has weight 1 everywhere
            asked[:, 0] = near[:, 0]
        for process, bounds, base in zip(self.processes, stacked, bases, strict=True):
            given = X, process.kernel, influence, base.var, self.rule, self.n_asked, self.tolerance
            asked |= bounds.may_matter(near & ~asked, *given)
        return asked

    @cached_property
    def _bounds(self) -> tuple[InfluenceBounds, ...] | None:
        """Of each latent function; None where an expert is to be asked everywhere."""
        by_function = list(zip(*(expert.bounds for expert in self.experts), strict=True))
        known = [[bound for bound in bounds if bound is not None] for bounds in by_function]
        if any(len(bounds) < len(self.experts) for bounds in known):
            return None
        if self.common is not None and any(bound.common_covariance is None for bounds in known for bound in bounds):
            return None
        return tuple(InfluenceBounds.of(bounds) for bounds in known)

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of f at the rows of X together: the variances are those of `moments`.

        m_A is a weighted sum of the base and of the experts' answers. Its correlations, the answers taken as
        independent, are those of the committee (J1).
        """
        aggregated = self.moments(X)[0]
        base_mean, base_cov = self.processes[0].joint(X) if self.common is None else self.common.joint(X)
        base = Moments(base_mean, base_cov.diagonal())
        n, near = self.n_asked, self._near(X)
        spent, total = torch.zeros_like(base_mean), torch.full_like(base_mean, self.rule.first_total)
        cov = torch.zeros_like(base_cov)
        for k, expert in enumerate(self.experts):
            if near is not None and not near[:, k].any():
                continue
            mean, own_cov = expert.joint(X)
            own_var = torch.maximum(own_cov.diagonal(), SMALLEST_VARIANCE * base.var)
            answer = Answer(k, EVERYWHERE, Moments(mean, own_var))
            weight, var = expert_weight(self.rule, base, answer, n)
            if near is not None:
                weight = weight * near[:, k]
            gain = aggregated.var * weight / var
            cov += gain[:, None] * own_cov * gain
            spent += weight
            if self.rule.normalizes:
                total += weight
        cov /= total[:, None] * total
        gain = aggregated.var * (self.rule.base_weight(n) - spent / total) / base.var
        cov += gain[:, None] * base_cov * gain
        scale = (aggregated.var / torch.maximum(cov.diagonal(), SMALLEST_VARIANCE * aggregated.var)).sqrt()
        return aggregated.mean, scale[:, None] * cov * scale


def _answers(said: Sequence[_Said], function: int) -> Iterator[Answer]:
    for one in said:
        if len(one.moments[function].mean):
            yield Answer(one.expert, one.index, one.moments[function])
