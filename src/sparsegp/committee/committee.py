"""A committee at work: experts are asked where they may matter, and their answers aggregated function by function."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sparsegp.committee.aggregation import EVERYWHERE, Aggregation, Answer, Moments, aggregate, expert_weight
from sparsegp.committee.experts import Expert, Process
from sparsegp.committee.split import Nearest
from sparsegp.core.posterior import SMALLEST_VARIANCE
from sparsegp.parallel import Threads

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _Said:
    """What the k-th expert says of the rows `index`, latent function by latent function."""

    expert: int
    index: Tensor
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
        parts = [self._chunk(rows, self._bases(rows), {}) for rows in X.split(ROWS_AT_ONCE)]
        return tuple(Moments.concat(functions) for functions in zip(*parts, strict=True))

    def moments_instead(self, X: Tensor, answers: Mapping[int, Moments], base: Moments | None = None) -> Moments:
        """Moments of f at each row of X if these experts, and the base, had said this of them."""
        parts = []
        for start in range(0, len(X), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            bases = self._bases(X[rows]) if base is None else (base.at(rows),)
            parts.append(self._chunk(X[rows], bases, {k: said.at(rows) for k, said in answers.items()})[0])
        return Moments.concat(parts)

    def _chunk(self, X: Tensor, bases: tuple[Moments, ...], answers: Mapping[int, Moments]) -> tuple[Moments, ...]:
        ask = partial(self._ask, X, bases, self._influence(X), self._near(X))
        threads = Threads(self.n_jobs)
        others = [k for k in range(len(self.experts)) if k not in answers]
        said = threads.map(ask, threads.place(others))
        everywhere = torch.arange(len(X))
        said = sorted(
            [*said, *(_Said(k, everywhere, (own,)) for k, own in answers.items())], key=lambda one: one.expert
        )
        return tuple(
            aggregate(self.rule, base, _answers(said, function), self.n_asked) for function, base in enumerate(bases)
        )

    @property
    def n_asked(self) -> int:
        """How many experts a row has: all of them, or the nearest."""
        return len(self.experts) if self.nearest is None else self.nearest.most

    def _bases(self, X: Tensor) -> tuple[Moments, ...]:
        if self.common is None:
            return tuple(process.moments(X) for process in self.processes)
        return self.common.moments(X)

    def _influence(self, X: Tensor) -> Tensor | None:
        return None if self.common is None else self.common.row_influence(X)

    def _near(self, X: Tensor) -> Tensor | None:
        return None if self.nearest is None else self.nearest.near(X)

    def _ask(
        self, X: Tensor, bases: tuple[Moments, ...], influence: Tensor | None, near: Tensor | None, k: int
    ) -> _Said:
        index = self._asked(X, bases, influence, near, k).nonzero()[:, 0]
        return _Said(k, index, self.experts[k].moments(X[index]) if len(index) else ())

    def asked(self, X: Tensor) -> Tensor:
        """Whether each expert (column) is asked about each row of X."""
        given = self._bases(X), self._influence(X), self._near(X)
        return torch.stack([self._asked(X, *given, k) for k in range(len(self.experts))], dim=1)

    @torch.no_grad()
    def _asked(
        self, X: Tensor, bases: tuple[Moments, ...], influence: Tensor | None, near: Tensor | None, k: int
    ) -> Tensor:
        """The rows for which the k-th expert is near enough and may matter, for any of the latent functions."""
        everybody = torch.ones(X.shape[0], dtype=torch.bool) if near is None else near[:, k]
        # the first expert after a communications expert has weight 1 everywhere
        if self.tolerance <= 0.0 or (self.common is not None and (influence is None or k == 0)):
            return everybody
        asked, candidates = torch.zeros_like(everybody), everybody.nonzero()[:, 0]
        for process, bound, base in zip(self.processes, self.experts[k].bounds, bases, strict=True):
            if bound is None or (self.common is not None and bound.common_covariance is None):
                return everybody
            own_influence = None if influence is None else influence[candidates]
            largest = bound.largest_covariance(X[candidates], process.kernel, own_influence)
            asked[candidates] |= bound.covers(largest, base.var[candidates], self.rule, self.n_asked, self.tolerance)
        return asked

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
        if len(one.index):
            yield Answer(one.expert, one.index, one.moments[function])
