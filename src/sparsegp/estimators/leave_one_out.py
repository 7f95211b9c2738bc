"""Leave-one-out predictions of an estimator, in the user's units and in the order of the user's rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsegp.core.block import MemoryRows, Rows
from sparsegp.core.left_out import LeftOut
from sparsegp.core.predictive import Array, Gaussian
from sparsegp.data import Batch
from sparsegp.data.rows import to_block
from sparsegp.estimators.given import Given
from sparsegp.estimators.opening import Opened
from sparsegp.fit.model import Model
from sparsegp.fit.scaling import Scaling

NO_ROWS = (
    "The rows of the fit are not at hand: after a file, a copy or an update the model has only what it learned from "
    "them. Give the rows it holds: loo(X, y)."
)


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Of each training row, what the model of all other rows says: the Gaussian of its y, in the user's units, or of
    its transformed y, carried back.

    `std` is that of y: it includes the noise. `log_density` is that of the row's own target.
    """

    mean: Array
    std: Array
    log_density: Array

    @classmethod
    def of(cls, found: LeftOut, scaling: Scaling) -> "LeaveOneOut":
        mean, var = scaling.raw_moments(found.mean, found.var)
        y, _ = scaling.raw_moments(found.y, found.noise)
        forecast = scaling.carried(Gaussian(mean, var))
        target = y if scaling.transform is None else scaling.transform.inverse(y)
        return cls(forecast.mean, forecast.std, forecast.log_density(target))


def left_out_of_own_rows(model: Any) -> LeftOut | None:
    """From the rows that the model keeps, in the order in which they came; None: it keeps none."""
    rows = model.own_rows if isinstance(model, Model) else None
    return None if rows is None else model.left_out(rows).unsorted(rows.serials)


def left_out_of_given(model: Any, data: Opened, given: Given) -> LeftOut:
    """In the order of the rows given. Rows of weight zero are not in the model: they are predicted as they are."""
    rows = _in_blocks_of_the_user(model, data)
    found: LeftOut = model.left_out(rows)
    if rows is not data.rows:
        found = found.unsorted(rows.serials)
    return found if len(found) == data.n_given else _with_weightless(model, data, given, found)


def _in_blocks_of_the_user(model: Any, data: Opened) -> Rows:
    if data.labels is None or not isinstance(model, Model):
        return data.rows
    assert isinstance(data.rows, MemoryRows)
    model.check_labels(data.labels, len(data.rows))
    originals, numbers = np.unique(np.asarray(data.labels), return_inverse=True)
    return data.rows.in_blocks(lambda _: torch.from_numpy(numbers), len(originals))


def _with_weightless(model: Any, data: Opened, given: Given, found: LeftOut) -> LeftOut:
    """One more pass over what was given says which rows these are."""
    masks, parts, start = [], [], 0
    for batch in given.source():
        if batch.weight is None:
            continue
        weightless = batch.weight <= 0
        labels = None if given.blocks is None else np.asarray(given.blocks)[start : start + len(batch)][weightless]
        if weightless.any():
            parts.append(_predicted(model, batch.take(weightless), labels, data.scaling))
        masks.append(weightless)
        start += len(batch)
    mask = torch.from_numpy(np.concatenate(masks))
    order = torch.cat([(~mask).nonzero()[:, 0], mask.nonzero()[:, 0]])
    return LeftOut.concat([found, *parts]).unsorted(order)


def _predicted(model: Any, batch: Batch, labels: NDArray[np.int64] | None, scaling: Scaling) -> LeftOut:
    block = to_block(batch, scaling)
    mean, f_var = model.marginals(block.X, labels)
    noise = torch.full_like(block.y, model.noise_var) if block.noise_var is None else block.noise_var
    return LeftOut(mean.to(torch.float64), f_var.to(torch.float64), noise, block.y)
