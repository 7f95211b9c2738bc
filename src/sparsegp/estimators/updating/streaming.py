"""partial_fit, forget and merge: a fitted model that takes rows in and gives them back, at fixed hyper-parameters."""

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sparsegp.approximations import Approximation, Family
from sparsegp.data import Block
from sparsegp.engines import revision
from sparsegp.engines.innovations import Innovations
from sparsegp.errors import FingerprintError, InputError
from sparsegp.estimators.choices import choosing
from sparsegp.estimators.choices.noisy_choice import NoisyFit
from sparsegp.estimators.families import Fitted
from sparsegp.estimators.incoming import arrivals, clusters, validation
from sparsegp.estimators.incoming.blocking import Blocking, drop_weightless
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.updating import local_rows, placing
from sparsegp.estimators.updating.kept_rows import KeptRows
from sparsegp.estimators.updating.stream_state import Streamed
from sparsegp.sources import Batch


class StreamingMixin:
    """Exact recursive updates of an estimator that has been fitted, or starts with its first batch."""

    approximation: Any
    window: int | None
    half_life: float | None
    normalize: bool
    info_: dict[str, Any]
    n_samples_seen_: int
    noise_var_: float
    _fitted: Fitted | Streamed | NoisyFit
    _fit_rows: KeptRows | None
    _n_fit_rows: int
    _known_noise: bool
    _blocking: Blocking | None
    _standardizer: Standardizer
    _row: Approximation

    @abstractmethod
    def fit(self, X: Any, y: Any = None, **given: Any) -> Self:
        """Learn hyper-parameters and compute the posterior."""

    @abstractmethod
    def _checked_parameters(self) -> Approximation:
        """The row of the table, after checking every parameter of the estimator."""

    @abstractmethod
    def _fit_untried(self, X: Any, y: Any, **given: Any) -> Self:
        """`fit` with "auto" settled without trials."""

    @abstractmethod
    def _block_in(self, units: Standardizer, batch: Batch) -> Block:
        """Rows in the units of the model."""

    @property
    def log_evidence_(self) -> float:
        """Log evidence or bound of the rows the model holds."""
        return self._fitted.log_evidence

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        noise_var: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
        client: Any = None,
    ) -> Self:
        """Add rows, exactly: the model is then that of one fit of all rows with the same hyper-parameters.

        The first call on a fresh estimator is an ordinary `fit` of its rows: it fixes the standardisation, and with an
        optimizer also hyper-parameters and inducing inputs. Later calls change none of these. For "pitc" and
        "block-pep" the rows of a call are one new block, or one for each label in `blocks`; for "pic" rows join the
        block they belong to. A batch without rows changes nothing; one with an error leaves the model as it was.
        With `client` (as for `fit`), or for a dask collection, workers read and sum up the rows (docs/clusters.md).
        """
        given = {"noise_var": noise_var, "sample_weight": sample_weight}
        if "_fitted" not in vars(self):
            return self._fit_first(X, y, given, blocks, target, client)
        if isinstance(self._fitted, NoisyFit):
            return self._ask_chosen("partial_fit", X, y, given, blocks, target)
        if client is not None or clusters.is_dask(X):
            where = clusters.place("update", self, X, client, blocks)
            if where is not None:
                updated: Self = clusters.distributed().partial_fit(self, X, y, client=where, target=target, **given)
                return updated
        streamed, window = self._streamed(), self.window
        batch = arrivals.later_batch(self, X, y, target=target, **given)
        if len(batch) == 0:
            return self
        block, labels = self._batch(batch, blocks)
        if len(block) == 0:
            return self
        streamed, blocking, numbers = placing.placed(self._row, self._blocking, streamed, block, labels)
        if self.half_life is not None:
            factor = 0.5 ** (len(block) / self.half_life)
            streamed = replace(streamed, state=revision.decay(streamed.state, factor))
        streamed = streamed.with_rows(block, numbers)
        self._commit(streamed if window is None else streamed.within(window), blocking, numbers, len(batch))
        self._warn_when_far()
        return self

    def forget(
        self,
        X: Any,
        y: Any = None,
        *,
        noise_var: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
    ) -> Self:
        """Remove rows that were added before, exactly, given as they were then.

        For "pitc" and "block-pep" whole blocks are forgotten: the rows of one call are one block unless `blocks` says
        otherwise. Rows that cannot have been added are refused and the model stays as it was.
        """
        check_is_fitted(self)
        if isinstance(self._fitted, NoisyFit):
            given = {"noise_var": noise_var, "sample_weight": sample_weight}
            return self._ask_chosen("forget", X, y, given, blocks, target)
        streamed = self._streamed()
        if self.window is not None or self.half_life is not None:
            raise InputError(
                "A model with a window or a half_life forgets by itself: how much a row still counts is known to it "
                "alone. Use forget() with window=None and half_life=None."
            )
        batch = arrivals.later_batch(self, X, y, target=target, noise_var=noise_var, sample_weight=sample_weight)
        if len(batch) == 0:
            return self
        block, labels = self._batch(batch, blocks)
        numbers = placing.numbers_of(self._row, self._blocking, block, labels)
        self._commit(streamed.without(block, numbers), self._blocking, numbers, -len(batch))
        return self

    def merge(self, other: Any) -> Self:
        """Take in the rows of another model: exactly the model of both, if none of its rows is in this one.

        Both must have the same approximation, inducing inputs, hyper-parameters and standardisation.
        """
        check_is_fitted(self)
        if not isinstance(other, StreamingMixin):
            raise InputError(f"merge takes another fitted SparseGPRegressor; got {type(other).__name__}.")
        check_is_fitted(other)
        mine, theirs = self._streamed(), other._streamed()
        if self.window is not None or other.window is not None:
            raise InputError("Models with a window cannot be merged: which of the rows are the last is not known.")
        self._require_same_units(other)
        every_block = torch.arange(0 if mine.kept is None else mine.kept.n_blocks)
        self._commit(mine.merged(theirs), self._blocking, every_block, other.n_samples_seen_)
        return self

    def _ask_chosen(
        self, update: str, X: Any, y: Any, given: dict[str, Any], blocks: ArrayLike | None, target: str | None
    ) -> Self:
        """The update by the chosen model with learned noise: a copy of it, so that an error leaves all as it was."""
        assert isinstance(self._fitted, NoisyFit)
        batch = arrivals.later_batch(self, X, y, target=target, **given)
        if batch.noise_var is not None:
            raise InputError("The chosen model has learned the noise of every place: noise_var= must not be given.")
        chosen = copy(self._fitted.model)
        getattr(chosen, update)(batch.X, batch.y, sample_weight=batch.weight, blocks=blocks)
        self.__dict__.update(NoisyFit(chosen).state(self.info_))
        return self

    def _fit_first(
        self, X: Any, y: Any, given: dict[str, Any], blocks: ArrayLike | None, target: str | None, client: Any
    ) -> Self:
        row = self._checked_parameters()
        _require_statistics(row)
        if choosing.untried(self) is not self.approximation:
            return self._fit_untried(X, y, **given, blocks=blocks, target=target, client=client)
        if placing.batch_is_block(row) and blocks is None and client is None:
            blocks = np.zeros(len(arrivals.training_batch(self, X, y, target=target, **given)), dtype=np.int64)
        return self.fit(X, y, **given, blocks=blocks, target=target, client=client)

    def _check_stream_parameters(self, row: Approximation) -> None:
        if self.window is not None:
            validation.positive_count("window", self.window)
        if self.half_life is not None:
            validation.positive_number("half_life", self.half_life)
        if self.window is not None and self.half_life is not None:
            raise InputError("Give window or half_life, not both: each says how rows lose their influence.")
        if self.half_life is not None and row.is_local:
            raise InputError(
                f"half_life is not for approximation={row.name!r}, which predicts from rows themselves: use window=."
            )

    def _begin_stream(self, row: Approximation, block: Block, labels: ArrayLike | None) -> None:
        """After a fit: keep the rows that updates will need."""
        self._known_noise, self._n_fit_rows, self._fit_rows = block.noise_var is not None, len(block), None
        self.info_["innovations"] = Innovations().summary()
        if row.family is Family.INDUCING and (row.is_local or self.window is not None):
            numbers = None if self._blocking is None else self._blocking.labels(block.X, labels)
            n_blocks = 0 if self._blocking is None else self._blocking.partition.n_blocks
            self._fit_rows = KeptRows.of_fit(row, block, numbers, n_blocks, self.window)

    def _streamed(self) -> Streamed:
        """The state to update, made from the fit at the first update."""
        _require_statistics(self._row)
        if isinstance(self._fitted, NoisyFit):
            raise InputError(
                "approximation='auto' has chosen a model with learned noise (info_['choice'] says why), which cannot "
                "be merged. Name an approximation, as 'pic', and fit again."
            )
        if isinstance(self._fitted, Streamed):
            streamed = self._fitted
        else:
            _require_all_rows(self._fitted)
            streamed = Streamed.start(self._fitted, self._fit_rows, self.window, self._n_fit_rows)
        if self.window is not None and streamed.kept is None:
            raise InputError("window was set after fit, which did not keep its rows: set it first and fit again.")
        return streamed

    def _commit(self, streamed: Streamed, blocking: Blocking | None, changed: Tensor | None, n_new: int) -> None:
        self._fitted, self._fit_rows = streamed, None
        self._blocking = placing.moved(self._row, blocking, streamed, changed)
        self.noise_var_ = streamed.noise_var * self._standardizer.y_scale**2
        self.n_samples_seen_ = streamed.n_rows if self.window is not None else self.n_samples_seen_ + n_new
        self.info_ = {**self.info_, "innovations": streamed.innovations.summary()}

    def _batch(self, batch: Batch, blocks: ArrayLike | None) -> tuple[Block, ArrayLike | None]:
        if (batch.noise_var is not None) != self._known_noise:
            was = "was given the noise variance of each row" if self._known_noise else "learned one noise variance"
            raise InputError(
                f"The first fit {was}, so noise_var= must {'' if self._known_noise else 'not '}be given here."
            )
        placing.require_labels(self._row, blocks, len(batch))
        return drop_weightless(self._block_in(self._standardizer, batch), blocks)

    def _require_same_units(self, other: "StreamingMixin") -> None:
        mine, theirs = vars(self._standardizer), vars(other._standardizer)
        same = all(np.array_equal(mine[name], theirs[name]) for name in mine)
        if same and self._blocking is not None and other._blocking is not None and self._row.is_local:
            same = local_rows.same_blocks(self._blocking, other._blocking)
        if not same:
            raise FingerprintError(
                "Models can only be merged when they see rows in the same units (and pic in the same blocks); these "
                "were standardised with different data. Use normalize=False with the same kernel, noise_var, inducing "
                "and optimizer=None in both."
            )

    def _warn_when_far(self) -> None:
        streamed = self._fitted
        if not isinstance(streamed, Streamed) or not self.normalize:
            return
        level = streamed.level.reported_once()
        if level is not streamed.level:
            self._fitted = replace(streamed, level=level)


def _require_statistics(row: Approximation) -> None:
    if row.family is not Family.INDUCING:
        raise InputError(
            f"approximation={row.name!r} cannot be updated: it has no additive statistics. Use 'vfe', 'fitc' or "
            "another approximation with inducing inputs, or fit again on all rows."
        )


def _require_all_rows(fitted: Fitted) -> None:
    if fitted.state is None:
        raise InputError(
            "This model rests on a part of its rows, extrapolated to all of them, so rows cannot be added or removed "
            "exactly. Give fit more time (info_['budget'] says how far it came), or use inference='exact'."
        )
