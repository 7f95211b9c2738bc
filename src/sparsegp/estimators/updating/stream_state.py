"""A model between updates: the state of recursive inference and the rows it must keep."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from sparsegp.approximations import Approximation
from sparsegp.data import CHUNK_ROWS, Block, Rows
from sparsegp.engines import recursive, revision
from sparsegp.engines.filter_state import FilterState
from sparsegp.engines.innovations import Innovations
from sparsegp.estimators.families import Fitted
from sparsegp.estimators.predictive import Array
from sparsegp.estimators.updating import kept_rows, local_rows
from sparsegp.estimators.updating.kept_rows import KeptRows
from sparsegp.estimators.updating.recent_level import RecentLevel
from sparsegp.kernels import Kernel
from sparsegp.local_posterior import LocalPosterior
from sparsegp.posterior import LatentPosterior, SparsePosterior
from sparsegp.statistics import BlockStatistics


@dataclass(frozen=True)
class RowSum:
    """Rows that were summed up elsewhere: their statistics and what else the state keeps of them.

    `n_weightless` rows of weight zero came too. `totals` and `target_total` are those of `RecentLevel`; `noise_total`
    is the sum of the known noise variances, None where the noise is learned.
    """

    statistics: BlockStatistics
    n_rows: int
    n_weightless: int
    totals: Array
    target_total: float
    noise_total: float | None

    def __add__(self, other: "RowSum") -> "RowSum":
        known = [total for total in (self.noise_total, other.noise_total) if total is not None]
        return RowSum(
            self.statistics + other.statistics,
            self.n_rows + other.n_rows,
            self.n_weightless + other.n_weightless,
            self.totals + other.totals,
            self.target_total + other.target_total,
            sum(known) if known else None,
        )


@dataclass(frozen=True)
class Streamed:
    """What `Fitted` is to a fit, after updates: posterior and evidence are computed when asked for."""

    kernel: Kernel
    noise_var: float
    inducing: Tensor
    state: FilterState
    kept: KeptRows | None = None
    innovations: Innovations = field(default_factory=Innovations)
    level: RecentLevel = field(default_factory=RecentLevel)
    n_arrived: int = 0
    n_rows: int = 0

    @classmethod
    def start(cls, fitted: Fitted, kept: KeptRows | None, window: int | None, n_rows: int) -> "Streamed":
        assert fitted.state is not None
        state = recursive.resume(fitted.state.prior, fitted.state.statistics)
        if window is not None and kept is not None and not state.prior.row.by_block and n_rows > window:
            state = kept_rows.rebase(state, kept)
        return cls(fitted.kernel, fitted.noise_var, fitted.inducing, state, kept, n_arrived=n_rows, n_rows=n_rows)

    @cached_property
    def posterior(self) -> LatentPosterior:
        if self.state.prior.row.is_local:
            return LocalPosterior(self.state.prior, self.state.q, self.kept or KeptRows(()))
        return SparsePosterior(self.state.prior, self.state.q, transient=True)

    @property
    def log_evidence(self) -> float:
        return self.state.log_evidence

    def with_rows(self, block: Block, labels: Tensor | None) -> "Streamed":
        """After adding rows. By blocks, rows with one label (or all, without labels) are one block."""
        row, state, kept = self.state.prior.row, self.state, self.kept
        if row.is_local and kept is not None and labels is not None:
            state, kept, infos = local_rows.add_to_blocks(state, kept, block, labels, self.n_arrived)
        else:
            infos, serial = [], self.n_arrived
            for unit in _units(row, block, labels):
                state, info = recursive.step(state, unit)
                infos.append(info)
                kept = None if kept is None else kept_rows.append_group(kept, unit, serial)
                serial += len(unit)
        innovations = self.innovations
        for info in infos:
            innovations = innovations.after(info)
        n = len(block)
        return Streamed(
            self.kernel,
            _running_mean(self.noise_var, self.n_rows, block, +1),
            self.inducing,
            state,
            kept,
            innovations,
            self.level.after(block.X, block.y),
            self.n_arrived + n,
            self.n_rows + n,
        )

    def with_sum(self, rows: RowSum) -> "Streamed":
        """After adding rows that were summed up elsewhere; nothing is kept of them but their sum."""
        state, info = revision.absorb(self.state, rows.statistics, rows.n_rows)
        n, noise_var = self.n_rows + rows.n_rows, self.noise_var
        if rows.noise_total is not None:
            noise_var = (noise_var * self.n_rows + rows.noise_total) / max(n, 1)
        return replace(
            self,
            state=state,
            innovations=self.innovations.after(info),
            level=self.level.after_totals(rows.n_rows, rows.totals, rows.target_total),
            n_arrived=self.n_arrived + rows.n_rows,
            n_rows=n,
            noise_var=noise_var,
        )

    def within(self, window: int) -> "Streamed":
        """Holding the last `window` rows only."""
        assert self.kept is not None
        expire = local_rows.shrink_blocks if self.state.prior.row.is_local else kept_rows.expire
        state, kept = expire(self.state, self.kept, self.n_arrived - window)
        noise_var = kept.mean_noise_var
        return replace(
            self,
            state=state,
            kept=kept,
            n_rows=kept.n_rows,
            noise_var=self.noise_var if noise_var is None else noise_var,
        )

    def without(self, block: Block, labels: Tensor | None) -> "Streamed":
        """After forgetting rows."""
        row, state, kept = self.state.prior.row, self.state, self.kept
        if row.is_local and kept is not None and labels is not None:
            state, kept = local_rows.remove_from_blocks(state, kept, block, labels)
        else:
            for unit in _units(row, block, labels):
                state = revision.forget(state, unit)
        noise_var = _running_mean(self.noise_var, self.n_rows, block, -1)
        return replace(self, state=state, kept=kept, n_rows=self.n_rows - len(block), noise_var=noise_var)

    def merged(self, other: "Streamed") -> "Streamed":
        """With the rows of another model, of which none may be in this one."""
        state, kept, n = revision.merge(self.state, other.state), self.kept, self.n_rows + other.n_rows
        if kept is not None and other.kept is not None:
            state, kept = local_rows.merge_blocks(state, kept, other.kept)
        noise_var = (self.noise_var * self.n_rows + other.noise_var * other.n_rows) / max(n, 1)
        return replace(self, state=state, kept=kept, n_rows=n, n_arrived=n, noise_var=noise_var)


def _units(row: Approximation, block: Block, labels: Tensor | None) -> list[Block]:
    if not row.by_block:
        return [block] if len(block) <= CHUNK_ROWS else list(Rows(block).chunks())
    return [block] if labels is None else [block.take(labels == k) for k in labels.unique().tolist()]


def _running_mean(mean: float, n_rows: int, block: Block, sign: int) -> float:
    """Mean of the known noise variances with those of a block added or taken away; as it is where noise is learned."""
    n = n_rows + sign * len(block)
    if block.noise_var is None or n <= 0:
        return mean
    return (mean * n_rows + sign * float(block.noise_var.sum(dtype=torch.float64))) / n
