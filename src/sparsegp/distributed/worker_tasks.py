"""What workers do with their share of the rows. Every function is pure: a lost result is computed again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp import partition
from sparsegp.data import Block, Rows
from sparsegp.distributed.executor import all_threads
from sparsegp.distributed.messages import Model, PackedAdjoint, PackedStatistics, PackedSum, Question
from sparsegp.distributed.pieces import Joined
from sparsegp.engines import batch
from sparsegp.errors import InputError
from sparsegp.estimators.incoming.blocking import Blocking
from sparsegp.estimators.updating.recent_level import clipped_total
from sparsegp.estimators.updating.stream_state import RowSum
from sparsegp.learning import direct
from sparsegp.learning.objective import push_rows
from sparsegp.parallel import unpacked
from sparsegp.prior import SparsePrior
from sparsegp.sources import ModelRows, Survey, Units, survey
from sparsegp.sources.batch import Batch, Source
from sparsegp.sources.model_rows import joined, to_block
from sparsegp.sources.survey import valid_batches, with_weight
from sparsegp.statistics import BlockStatistics


@dataclass(frozen=True)
class ShareSurvey:
    """The survey of a share (None: it has no rows that count), rows of weight zero, and what is wrong with it."""

    found: Survey | None = None
    n_weightless: int = 0
    error: InputError | None = None


def survey_share(source: Source, seed: tuple[int, int], sample_rows: int) -> ShareSurvey:
    """Bad input is a result, not a failure: reading it again would not help."""
    try:
        if not any(len(with_weight(part)) for part in valid_batches(source)):
            return ShareSurvey(None, sum(len(part) for part in valid_batches(source)))
        found = survey(source, np.random.default_rng(seed), sample_rows)
        return ShareSurvey(found, found.n_weightless)
    except InputError as error:
        return ShareSurvey(error=error)


def without_sample(share: ShareSurvey) -> ShareSurvey:
    """The facts, which are small."""
    if share.found is None:
        return share
    found = share.found
    empty = found.sample.take(slice(0, 0))
    facts = (found.n_rows, found.n_weightless, found.inputs, found.targets, empty)
    return ShareSurvey(Survey(*facts, found.least_noise_var, found.mean_noise_var), share.n_weightless)


def some_rows(share: ShareSurvey, n_rows: int, seed: tuple[int, ...]) -> Batch | None:
    """A random part of the sample, in the order of the sample; all of it when it is not larger."""
    if share.found is None or n_rows == 0:
        return None
    sample = share.found.sample
    if n_rows >= len(sample):
        return sample
    chosen = np.zeros(len(sample), dtype=bool)
    chosen[np.random.default_rng(seed).choice(len(sample), n_rows, replace=False)] = True
    return sample.take(chosen)


def load_share(source: Source, units: Units, n_rows: int, dtype: torch.dtype) -> Rows:
    """The share in the model's units, in memory."""
    blocks = [rows.all for rows in ModelRows(source, units, n_rows, dtype)]
    return Rows(joined(blocks) if blocks else empty_block(source.n_features, dtype))


def sum_of_share(source: Joined, units: Units, message: bytes, dtype: torch.dtype) -> PackedSum | InputError:
    """Rows for a model at fixed hyper-parameters, summed up while they are read, one part of the share at a time.

    Bad input is a result, not a failure: reading it again would not help.
    """
    with all_threads():
        prior = unpacked(message).unpacked()
        total = row_sum(prior, empty_block(source.n_features, dtype), 0)
        try:
            for part in source.sources:
                batches = list(valid_batches(part))
                counted = [to_block(with_weight(batch), units, total.statistics.shift.to(dtype)) for batch in batches]
                block = joined([block for block in counted if len(block)] or [empty_block(source.n_features, dtype)])
                total += row_sum(prior, block, sum(map(len, batches)) - len(block))
        except InputError as error:
            return error
        return PackedSum.of(total)


def row_sum(prior: SparsePrior, block: Block, n_weightless: int) -> RowSum:
    """Where the approximation has blocks, the rows are one."""
    rows = Rows(block, torch.tensor([0, len(block)]) if prior.row.by_block else None)
    return RowSum(
        batch.statistics_of(prior, rows),
        len(block),
        n_weightless,
        clipped_total(block.X),
        float(clipped_total(block.y)),
        None if block.noise_var is None else float(block.noise_var.sum(dtype=torch.float64)),
    )


def empty_block(n_features: int, dtype: torch.dtype) -> Block:
    empty = torch.zeros(0, n_features, dtype=dtype)
    return Block(empty, empty.new_zeros(0))


def statistics_of_share(rows: Rows, model: Model) -> PackedStatistics:
    """First round: the sum over the share."""
    return PackedStatistics.of((direct if model.direct else batch).statistics_of(model.prior(), rows))


@torch.no_grad()
def adjoint_of_share(rows: Rows, question: Question) -> PackedAdjoint:
    """Second round: the gradient through the share, and the totals of its adjoints."""
    hyper, prior = question.model.hyper, question.model.prior()
    hyper.clear_gradient()
    return PackedAdjoint.of(hyper, push_rows(hyper, prior, question.shared(prior), rows))


def built_prior(message: bytes) -> SparsePrior:
    """For many steps with the same hyper-parameters."""
    prior: SparsePrior = unpacked(message).unpacked()
    return prior


def statistics_of_blocks(rows: Rows, prior: SparsePrior, blocks: list[int]) -> list[PackedStatistics]:
    """Of an anytime step: the statistics of single blocks of the share."""
    with all_threads():
        return [PackedStatistics.of(BlockStatistics.from_block(prior, rows.block(k))) for k in blocks]


def block_of(rows: Rows, k: int) -> Block:
    return rows.block(k)


def shuffled_share(rows: Rows, n_blocks: int, seed: tuple[int, ...]) -> Rows:
    """The rows in random blocks of equal size (up to one row)."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))
    return Rows(rows.all.take(order), torch.arange(n_blocks + 1) * len(rows) // n_blocks)


def block_weights(rows: Rows) -> NDArray[np.float64]:
    """Rows of each block, counted with their weights."""
    return np.array([rows.block(k).n_rows for k in range(rows.n_blocks)])


def random_share(rows: Rows, fraction: float, seed: tuple[int, int]) -> Rows:
    """A random part of the rows, nested: a larger fraction with the same seed has the same rows and more."""
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows.subset(torch.from_numpy(np.sort(order[: round(fraction * len(rows))])))


def sorted_share(rows: Rows, blocking: Blocking) -> Rows:
    """The rows sorted by block."""
    labels = blocking.labels(rows.all.X, None)
    order, offsets = partition.block_slices(labels, blocking.partition.n_blocks)
    return Rows(rows.all.take(order), offsets)


def block_sizes(rows: Rows) -> NDArray[np.int64]:
    assert rows.offsets is not None
    return rows.offsets.diff().numpy()


def some_blocks(rows: Rows, blocks: NDArray[np.int64]) -> Rows:
    return rows.subset_of_blocks(torch.from_numpy(np.array(blocks)))


def merged_blocks(parts: list[Rows]) -> Rows:
    """The same blocks from several shares, each made whole; rows of earlier shares come first in it."""
    numbers = [torch.repeat_interleave(torch.arange(p.n_blocks), torch.from_numpy(block_sizes(p))) for p in parts]
    order, offsets = partition.block_slices(torch.cat(numbers), parts[0].n_blocks)
    return Rows(joined([part.all for part in parts]).take(order), offsets)


def predictions_of(model: Any, X: Any, options: dict[str, Any]) -> Any:
    """What the model's own `predict` gives; None for no rows."""
    with all_threads():
        return model.predict(X, **options) if len(X) else None
