"""Rows in and out of a model with learned noise: f exactly, under the noise process as it was learned (H8)."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from sparsegp.approximations import Approximation
from sparsegp.data import Block
from sparsegp.engines import recursive
from sparsegp.engines.batch import BatchState
from sparsegp.engines.innovations import Innovations
from sparsegp.estimators.base import all_or_nothing
from sparsegp.estimators.incoming import arrivals
from sparsegp.estimators.incoming.blocking import Blocking, drop_weightless
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.updating import placing
from sparsegp.estimators.updating.kept_rows import Kept, KeptRows
from sparsegp.estimators.updating.recent_level import RecentLevel
from sparsegp.estimators.updating.stream_state import Streamed
from sparsegp.heteroscedastic.coupling import row_weights
from sparsegp.heteroscedastic.learning import NoisyModel
from sparsegp.local_posterior import BlockStore, LocalPosterior
from sparsegp.sources import Batch, to_block


class NoisyStreamingMixin:
    """Mixin: `partial_fit` and `forget` of an estimator with learned noise."""

    normalize: bool
    info_: dict[str, Any]
    n_samples_seen_: int
    log_evidence_: float
    noise_var_: float
    _model: NoisyModel
    _blocking: Blocking | None
    _standardizer: Standardizer
    _row: Approximation
    _innovations: Innovations
    _level: RecentLevel

    @abstractmethod
    def _checked_parameters(self) -> Approximation:
        """The row of the table that models f, once all parameters are known to be right."""

    @abstractmethod
    def fit(self, X: Any, y: Any = None, **given: Any) -> Self:
        """Learn hyper-parameters and the posteriors of f and g."""

    @all_or_nothing
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
    ) -> Self:
        """Add rows; the first call on a fresh estimator is an ordinary `fit`.

        Hyper-parameters and the noise process stay as they were learned: a row counts with the noise that is expected
        at its place, and f is then exactly that of one pass over all rows. Fit again when the noise itself changes.
        A batch without rows changes nothing; one with an error leaves the model as it was.
        """
        if "_model" not in vars(self):
            if blocks is None and placing.batch_is_block(self._checked_parameters()):
                batch = arrivals.training_batch(self, X, y, target=target, sample_weight=sample_weight)
                blocks = np.zeros(len(batch), dtype=np.int64)
            return self.fit(X, y, sample_weight=sample_weight, blocks=blocks, target=target)
        batch = arrivals.later_batch(self, X, y, target=target, sample_weight=sample_weight)
        block, labels = self._noisy_block(batch, blocks)
        if len(block) == 0:
            return self
        streamed, blocking, numbers = placing.placed(self._row, self._blocking, self._streamed(), block, labels)
        streamed = streamed.with_rows(block, numbers)
        if self.normalize:
            streamed = replace(streamed, level=streamed.level.reported_once())
        self._commit(streamed, placing.moved(self._row, blocking, streamed, numbers), block, len(batch))
        return self

    def forget(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
    ) -> Self:
        """Remove rows that were added before, given as they were then; the noise process stays as it was learned.

        Rows that cannot have been added are refused and the model stays as it was.
        """
        check_is_fitted(self)
        batch = arrivals.later_batch(self, X, y, target=target, sample_weight=sample_weight)
        block, labels = self._noisy_block(batch, blocks)
        if len(block) == 0:
            return self
        numbers = placing.numbers_of(self._row, self._blocking, block, labels)
        streamed = self._streamed().without(block, numbers)
        self._commit(streamed, placing.moved(self._row, self._blocking, streamed, numbers), block, -len(batch))
        return self

    def _begin_stream(self) -> None:
        self._innovations, self._level = Innovations(), RecentLevel()

    def _noisy_block(self, batch: Batch, blocks: ArrayLike | None) -> tuple[Block, ArrayLike | None]:
        """Rows in the units of the model, each with the noise variance R = exp(mu_g - v_g/2) of its place."""
        placing.require_labels(self._row, blocks, len(batch))
        block, labels = drop_weightless(to_block(batch, self._standardizer), blocks)
        return replace(block, noise_var=self._model.process.moments(block.X).R), labels

    def _streamed(self) -> Streamed:
        state, posterior, n = self._model.state, self._model.posterior, self.n_samples_seen_
        kept = _kept(posterior.rows) if isinstance(posterior, LocalPosterior) else None
        noise_var = self.noise_var_ / self._standardizer.y_scale**2
        return Streamed(
            state.prior.kernel,
            noise_var,
            state.prior.inducing,
            recursive.resume(state.prior, state.statistics),
            kept,
            vars(self).get("_innovations", Innovations()),
            vars(self).get("_level", RecentLevel()),
            n,
            n,
        )

    def _commit(self, streamed: Streamed, blocking: Blocking | None, block: Block, n_new: int) -> None:
        """The bound is J(R) - sum_i w_i v_g,i/4 - KL: with the rows both sums change, and KL does not."""
        model, state, sign = self._model, streamed.state, 1.0 if n_new > 0 else -1.0
        before = recursive.resume(model.state.prior, model.state.statistics).log_evidence
        spread = 0.25 * float(row_weights(block) @ model.process.moments(block.X).var)
        bound = model.bound + state.log_evidence - before - sign * spread
        statistics = BatchState(state.prior, state.statistics)
        self.__dict__.update(
            _model=replace(model, posterior=streamed.posterior, state=statistics, bound=bound),
            _blocking=blocking,
            _innovations=streamed.innovations,
            _level=streamed.level,
            log_evidence_=bound,
            n_samples_seen_=self.n_samples_seen_ + n_new,
            info_={**self.info_, "innovations": streamed.innovations.summary()},
        )


def _kept(rows: BlockStore) -> KeptRows:
    """The rows of a local posterior, block by block."""
    if isinstance(rows, KeptRows):
        return rows
    blocks = [rows.block(k) for k in range(rows.n_blocks)]
    serials = torch.arange(sum(map(len, blocks))).split([len(block) for block in blocks])
    return KeptRows(tuple(Kept(block, serial) for block, serial in zip(blocks, serials, strict=True)))
