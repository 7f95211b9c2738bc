"""A fitted model: a frozen value that takes rows in and gives them back, at fixed hyper-parameters.

Statistics of rows are a commutative group, so `add`, `remove`, `scale` and `merge` are exact: the model is that of one
pass over the rows it holds.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.block import CHUNK_ROWS, Block, MemoryRows, Rows
from sparsegp.core.dense import ExactPosterior, NystromPosterior
from sparsegp.core.left_out import OTHER_ROWS, LeftOut, LeftOutOfRows, left_out_of_exact, left_out_of_nystrom
from sparsegp.core.local import LocalPosterior
from sparsegp.core.partition import NO_BLOCK, Blocking
from sparsegp.core.posterior import LatentPosterior, SparsePosterior
from sparsegp.core.predictive import Gaussian, Joint
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.core.trend import Trend
from sparsegp.data.disk_rows import DiskRows
from sparsegp.errors import FingerprintError, InputError
from sparsegp.fit import kept as kept_rows
from sparsegp.fit.blocking import require_blocks, require_labels
from sparsegp.fit.kept import KeptRows
from sparsegp.fit.scaling import Scaling
from sparsegp.infer import recursive, revise
from sparsegp.infer.batch import BatchState, statistics_of
from sparsegp.infer.drift import Array, Innovations, RecentLevel, clipped_total
from sparsegp.infer.recursive import FilterState
from sparsegp.kernels import Kernel


@dataclass(frozen=True)
class Found:
    """Posterior and log evidence as a fit has found them."""

    posterior: LatentPosterior
    log_evidence: float


@dataclass(frozen=True)
class RowSum:
    """Rows that were summed up elsewhere: their statistics and what else a model keeps of them.

    `n_weightless` rows of weight zero came too. `totals` and `target_total` are those of `RecentLevel`; `noise_total`
    is the sum of the known noise variances, None where the noise is the model's own.
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
class RowSumOf:
    """Sums up rows for a model with this prior. Where the approximation has blocks, the rows are one."""

    prior: SparsePrior

    def __call__(self, block: Block, n_weightless: int) -> RowSum:
        rows = MemoryRows(block, torch.tensor([0, len(block)]) if self.prior.approx.by_block else None)
        return RowSum(
            statistics_of(self.prior, rows),
            len(block),
            n_weightless,
            clipped_total(block.X),
            float(clipped_total(block.y)),
            None if block.noise_var is None else float(block.noise_var.sum(dtype=torch.float64)),
        )


@dataclass(frozen=True)
class Model:
    """A Gaussian process by any approximation of the table.

    `state` holds prior and statistics of the rows seen; None: there are none to add to, because the model is dense, or
    because its fit has not seen all rows that it holds. `found` is what the fit gave; after an update posterior and
    evidence are computed when asked for. `kept` are rows that the model needs again. `n_arrived` counts rows ever
    added, `n_rows` those held.
    """

    approx: Approximation
    kernel: Kernel
    noise_var: float
    inducing: Tensor
    state: BatchState | FilterState | None = None
    found: Found | None = None
    blocking: Blocking | None = None
    kept: KeptRows | None = None
    known_noise: bool = False
    window: int | None = None
    n_arrived: int = 0
    n_rows: int = 0
    innovations: Innovations = field(default_factory=Innovations)
    level: RecentLevel = field(default_factory=RecentLevel)

    learns_noise: ClassVar[bool] = False

    @property
    def posterior(self) -> LatentPosterior:
        return self._updated_posterior if self.found is None else self.found.posterior

    @cached_property
    def _updated_posterior(self) -> LatentPosterior:
        state = self.filter_state
        if self.approx.is_local:
            return LocalPosterior(state.prior, state.q, self.kept or KeptRows(()))
        return SparsePosterior(state.prior, state.q, transient=True)

    @property
    def trend(self) -> Trend | None:
        """What f has besides the kernel."""
        return self.posterior.trend

    @property
    def log_evidence(self) -> float:
        return self.filter_state.log_evidence if self.found is None else self.found.log_evidence

    @cached_property
    def filter_state(self) -> FilterState:
        """The state from which updates continue."""
        if self.approx.family is not Family.INDUCING:
            raise InputError(
                f"approximation={self.approx.name!r} cannot be updated: it has no additive statistics. Use 'vfe', "
                "'fitc' or another approximation with inducing inputs, or fit again on all rows."
            )
        if self.state is None:
            return recursive.resume(*self._state_of_own_rows())
        if isinstance(self.state, FilterState):
            return self.state
        state = recursive.resume(self.state.prior, self.state.statistics)
        if self.window is not None and self.kept is not None and not self.approx.by_block and self.n_rows > self.window:
            state = kept_rows.rebased(state, self.kept)
        return state

    def _state_of_own_rows(self) -> tuple[SparsePrior, BlockStatistics]:
        """A fit that was short of time has not seen all rows that a local model holds: they are seen now."""
        posterior = self.posterior
        if not isinstance(posterior, LocalPosterior) or self.window is not None:
            raise InputError(
                "This model rests on a part of its rows, and which of them a window holds is not known, so rows cannot "
                "be added. Give fit more time (info_['budget'] says how far it came), or leave window= out."
            )
        rows = posterior.rows
        filled = [block for block in map(rows.block, range(rows.n_blocks)) if len(block)]
        return posterior.prior, BlockStatistics.from_blocks(posterior.prior, filled)

    def check_labels(self, blocks: ArrayLike | None, n_rows: int) -> None:
        require_labels(self.approx, blocks, n_rows)

    def labels_of_new(self, X: Tensor, blocks: ArrayLike | None) -> Tensor | None:
        """The block of each row to predict at, where predictions depend on it."""
        require_blocks(self.approx, blocks)
        if self.blocking is None or not self.approx.is_local:
            return None
        labels = self.blocking.labels(X, blocks)
        if blocks is None:
            return labels
        # Each label without training rows is a block of its own: rows go together only with those of the same label.
        own = torch.from_numpy(np.unique(np.asarray(blocks), return_inverse=True)[1])
        return torch.where(labels == NO_BLOCK, NO_BLOCK - own, labels)

    def marginals(self, X: Tensor, blocks: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at each row."""
        return self.posterior.marginals(X, self.labels_of_new(X, blocks))

    def joint(self, X: Tensor, blocks: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        """Mean and covariance matrix of f at the rows together."""
        return self.posterior.joint(X, self.labels_of_new(X, blocks))

    def expected(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> Array:
        return scaling.raw_mean(self.posterior.mean(X, self.labels_of_new(X, blocks)))

    def forecast(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> Gaussian:
        return Gaussian(*scaling.raw_moments(*self.marginals(X, blocks)), self.noise_var * scaling.y_scale**2)

    def joint_forecast(self, X: Tensor, blocks: ArrayLike | None, scaling: Scaling) -> Joint:
        mean, cov = scaling.raw_moments(*self.joint(X, blocks))
        if isinstance(self.posterior, NystromPosterior) and not self.posterior.clip:  # no covariance: shown as it is
            return Joint(Gaussian(mean, cov.diagonal(), self.noise_var * scaling.y_scale**2), cov)
        return Joint.of(self.forecast(X, blocks, scaling), cov)

    def add(self, block: Block, labels: ArrayLike | None = None) -> "Model":
        state, kept, blocking = self.filter_state, self.kept, self.blocking
        if self.window is not None and kept is None:
            raise InputError("window was set after fit, which did not keep its rows: set it first and fit again.")
        innovations = self.innovations
        if self.approx.is_local:
            state, kept, blocking, innovations = self._grown_blocks(state, block, labels)
        else:
            serial = self.n_arrived
            for group in _groups(self.approx, block, labels):
                state, info = recursive.step(state, group)
                innovations = innovations.after(info)
                kept = None if kept is None else kept.appended(group, serial)
                serial += len(group)
        n = len(block)
        grown = Model(
            self.approx,
            self.kernel,
            _running_mean(self.noise_var, self.n_rows, block, +1),
            self.inducing,
            state,
            None,
            blocking,
            kept,
            self.known_noise,
            self.window,
            self.n_arrived + n,
            self.n_rows + n,
            innovations,
            self.level.after(block.X, block.y),
        )
        return grown if self.window is None else grown._within(self.window)

    def _grown_blocks(
        self, state: FilterState, block: Block, labels: ArrayLike | None
    ) -> tuple[FilterState, KeptRows, Blocking, Innovations]:
        """Rows join the blocks of a local model; for labels of the user, unknown ones are new blocks."""
        assert self.blocking is not None
        blocking, kept = kept_rows.with_new_labels(self.blocking, self._kept_in_blocks(), block, labels)
        numbers = blocking.labels(block.X, labels)
        if bool((numbers < 0).any()):
            raise InputError(
                "blocks has labels that are no blocks of this model. Its blocks were found from the rows: leave "
                f"blocks= out, or use the numbers 0 to {blocking.n_blocks - 1}."
            )
        kept.require_room(numbers)
        state, kept, infos = kept_rows.add_to_blocks(state, kept, block, numbers, self.n_arrived)
        clipped, expected = (sum(getattr(info, name) for info in infos) for name in ("clipped_nis", "expected_nis"))
        innovations = self.innovations.after_rows(len(block), clipped / expected)
        return state, kept, kept_rows.with_moved_means(blocking, kept, numbers), innovations

    def _kept_in_blocks(self) -> KeptRows:
        """The rows of a local model, which its posterior has in any case."""
        if self.kept is not None:
            return self.kept
        assert isinstance(self.posterior, LocalPosterior)
        return KeptRows.of(self.posterior.rows)

    def _within(self, window: int) -> "Model":
        """Holding the last `window` rows only."""
        assert self.kept is not None
        state, kept = kept_rows.expire(self.filter_state, self.kept, self.n_arrived - window)
        noise_var, blocking = kept.mean_noise_var, self.blocking
        if blocking is not None and self.approx.is_local:
            blocking = kept_rows.with_moved_means(blocking, kept, torch.arange(kept.n_blocks))
        return replace(
            self,
            state=state,
            blocking=blocking,
            kept=kept,
            n_rows=kept.n_rows,
            noise_var=self.noise_var if noise_var is None else noise_var,
        )

    def add_sum(self, rows: RowSum) -> "Model":
        """With rows that were summed up elsewhere; nothing is kept of them but their sum."""
        state, info = revise.absorb(self.filter_state, rows.statistics, rows.n_rows)
        n, noise_var = self.n_rows + rows.n_rows, self.noise_var
        if rows.noise_total is not None:
            noise_var = (noise_var * self.n_rows + rows.noise_total) / max(n, 1)
        return replace(
            self,
            state=state,
            found=None,
            innovations=self.innovations.after(info),
            level=self.level.after_totals(rows.n_rows, rows.totals, rows.target_total),
            n_arrived=self.n_arrived + rows.n_rows,
            n_rows=n,
            noise_var=noise_var,
        )

    def remove(self, block: Block, labels: ArrayLike | None = None) -> "Model":
        state, kept, blocking = self.filter_state, self.kept, self.blocking
        if self.approx.is_local:
            assert blocking is not None
            kept, numbers = self._kept_in_blocks(), blocking.labels(block.X, labels)
            state, kept = kept_rows.remove_from_blocks(state, kept, block, numbers)
            blocking = kept_rows.with_moved_means(blocking, kept, numbers)
        else:
            for group in _groups(self.approx, block, labels):
                state = revise.forget(state, group)
        return replace(
            self,
            state=state,
            found=None,
            kept=kept,
            blocking=blocking,
            n_rows=self.n_rows - len(block),
            noise_var=_running_mean(self.noise_var, self.n_rows, block, -1),
        )

    def scale(self, factor: float) -> "Model":
        return replace(self, state=revise.decay(self.filter_state, factor), found=None)

    def merge(self, other: "Model") -> "Model":
        mine, theirs = self.filter_state, other.filter_state
        if self.window is not None or other.window is not None:
            raise InputError("Models with a window cannot be merged: which of the rows are the last is not known.")
        state, kept, blocking = revise.merge(mine, theirs), self.kept, self.blocking
        if self.approx.is_local:
            if blocking is None or other.blocking is None or not blocking.same_as(other.blocking):
                raise FingerprintError(
                    "Models can only be merged when pic has the same blocks in both; these have different ones."
                )
            state, kept = kept_rows.merge_blocks(state, self._kept_in_blocks(), other._kept_in_blocks())
            blocking = kept_rows.with_moved_means(blocking, kept, torch.arange(kept.n_blocks))
        n = self.n_rows + other.n_rows
        noise_var = (self.noise_var * self.n_rows + other.noise_var * other.n_rows) / max(n, 1)
        return replace(
            self, state=state, found=None, kept=kept, blocking=blocking, n_rows=n, n_arrived=n, noise_var=noise_var
        )

    def require_left_out(self) -> None:
        if self.approx.family is Family.INDUCING and self.state is None:
            raise InputError(
                "This model rests on a part of its rows, extrapolated to all of them, so none of them can be left out. "
                "Give fit more time (info_['budget'] says how far it came), or use inference='exact'."
            )

    def left_out(self, rows: Rows) -> LeftOut:
        """In closed form, in one pass; other rows than those of the model are refused."""
        self.require_left_out()
        posterior = self.posterior
        if isinstance(posterior, ExactPosterior | NystromPosterior):
            return self._left_out_densely(posterior, rows)
        assert isinstance(posterior, SparsePosterior | LocalPosterior)
        assert self.state is not None
        in_order = rows
        if self.approx.by_block and not rows.n_blocks and self.blocking is not None:
            in_order = rows.in_blocks(self.blocking.nearest, self.blocking.n_blocks)
        found = in_order.sum(LeftOutOfRows(posterior.prior, posterior.q))
        found.require_rows_of(self.state.statistics, rows.dtype)
        return found.left_out if in_order is rows else found.left_out.unsorted(in_order.serials)

    @property
    def own_rows(self) -> Rows | None:
        """The rows that the model holds, where it keeps all of them itself."""
        if self.kept is not None:
            return self.kept.together(by_block=self.approx.by_block) if self.kept.n_rows == self.n_rows else None
        stored = self.posterior.rows if isinstance(self.posterior, LocalPosterior) else None
        return stored if isinstance(stored, MemoryRows | DiskRows) else None

    def _left_out_densely(self, posterior: ExactPosterior | NystromPosterior, rows: Rows) -> LeftOut:
        if not isinstance(rows, MemoryRows):
            raise InputError(f"approximation={self.approx.name!r} needs its rows in the memory of this process.")
        if isinstance(posterior, NystromPosterior):
            return left_out_of_nystrom(posterior, rows.all)
        found, held = left_out_of_exact(posterior, rows.all, torch.tensor(self.noise_var, dtype=torch.float64))
        if self.approx.family is Family.EXACT and not bool(held.all()):
            raise InputError(OTHER_ROWS.format(what=f"it holds {int(held.sum()):,} of these {len(rows):,}"))
        return found

    def without_rows(self) -> "Model":
        """The same hyper-parameters, inducing inputs and blocks, ready for other rows."""
        kept = self._kept_in_blocks().without_rows() if self.approx.is_local else None
        state = recursive.init(self.filter_state.prior)
        return Model(
            self.approx, self.kernel, self.noise_var, self.inducing, state, None, self.blocking, kept, self.known_noise
        )

    def reported(self) -> "Model":
        level = self.level.reported_once()
        return self if level is self.level else replace(self, level=level)


def _groups(approx: Approximation, block: Block, labels: ArrayLike | None) -> list[Block]:
    if not approx.by_block:
        return [block] if len(block) <= CHUNK_ROWS else list(MemoryRows(block).chunks())
    if labels is None:
        return [block]
    numbers = torch.from_numpy(np.asarray(labels).astype(np.int64))
    return [block.take(numbers == k) for k in numbers.unique().tolist()]


def _running_mean(mean: float, n_rows: int, block: Block, sign: int) -> float:
    """Mean of the known noise variances with those of a block added or taken away; as it is where noise is learned."""
    n = n_rows + sign * len(block)
    if block.noise_var is None or n <= 0:
        return mean
    return (mean * n_rows + sign * float(block.noise_var.sum(dtype=torch.float64))) / n
