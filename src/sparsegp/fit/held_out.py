"""Calibrated fits: residuals of rows that the model has not seen give scale and shape of its forecasts.

Where rows are many, some are held out: the model is fitted to the others, calibrated on these, and then takes them in,
exactly. Where they are few, every row is left out in turn, in closed form.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsegp.calibration import shape_learning, trees
from sparsegp.calibration.calibration import Calibration
from sparsegp.calibration.scale import LocalScale, surroundings
from sparsegp.calibration.shape_learning import LearnedShape, ShapeOptions
from sparsegp.core import reasons
from sparsegp.core.approximations import Family
from sparsegp.core.block import Block, MemoryRows, Rows, equal_rows
from sparsegp.core.local import LocalPosterior
from sparsegp.core.predictive import Array
from sparsegp.core.trend import Trend, plane_of
from sparsegp.errors import FactorizationError, SparseGPError
from sparsegp.fit import pipeline
from sparsegp.fit.blocking import arranged
from sparsegp.fit.budget import Budget
from sparsegp.fit.kept import KeptRows
from sparsegp.fit.model import Found, Model
from sparsegp.fit.problem import SCALE, SHAPE, CalibrationOptions, Problem
from sparsegp.fit.progress import Progress
from sparsegp.fit.scaling import Scaling
from sparsegp.infer import batch
from sparsegp.learn.trace import is_over


@dataclass(frozen=True)
class Residuals:
    """Rows that a model has not seen, and what it says of them: mean and std of y, in the scaling of the model."""

    X: Tensor
    y: Array
    mean: Array
    std: Array
    weight: Array | None = None

    @classmethod
    def of(cls, model: Any, block: Block) -> "Residuals":
        """Of rows held out."""
        forecast = model.forecast(block.X, None, Scaling.identity(block.X.shape[1]))
        weight = None if block.weight is None else block.weight.double().cpu().numpy()
        return cls(block.X, block.y.double().cpu().numpy(), forecast.mean, forecast.std, weight)

    @classmethod
    def concat(cls, parts: Sequence["Residuals"]) -> "Residuals":
        y, mean, std = (np.concatenate([getattr(part, name) for part in parts]) for name in ("y", "mean", "std"))
        weights = [part.weight for part in parts if part.weight is not None]
        return cls(torch.cat([part.X for part in parts]), y, mean, std, np.concatenate(weights) if weights else None)

    @classmethod
    def within(
        cls, budget: Budget, model: Any, block: Block, options: CalibrationOptions, rng: np.random.Generator
    ) -> "Residuals":
        """Of rows held out, of as many as there is time for: a local model has to prepare every block it visits."""
        blocking = model.blocking if budget.limited and isinstance(model.posterior, LocalPosterior) else None
        if blocking is None:
            return cls.of(model, block)
        late = budget.deadline_of_rest(options.residuals_fraction)
        labels, parts, n_visited = blocking.nearest(block.X), list[Residuals](), 0
        for some in np.array_split(rng.permutation(blocking.n_blocks), -(-blocking.n_blocks // options.blocks_at_once)):
            index = torch.nonzero(torch.isin(labels, torch.from_numpy(some)))[:, 0]
            n_visited += len(some)
            if len(index):
                parts.append(cls.of(model, block.take(index)))
            is_enough = n_visited >= options.fewest_blocks and sum(map(len, parts)) >= options.fewest_residuals
            if is_over(late) and is_enough:
                break
        return cls.concat(parts)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Any) -> "Residuals":
        weight = None if self.weight is None else self.weight[index]
        return Residuals(self.X[torch.from_numpy(index)], self.y[index], self.mean[index], self.std[index], weight)

    @property
    def errors(self) -> dict[str, float]:
        """The RMSE of the means, and R^2, the part of the variance of the targets that they explain."""
        mean_square = float(np.average((self.y - self.mean) ** 2, weights=self.weight))
        centre = np.average(self.y, weights=self.weight)
        var = float(np.average((self.y - centre) ** 2, weights=self.weight))
        return {"rmse": math.sqrt(mean_square), "r2": 1.0 - mean_square / var if var > 0 else math.nan}

    @property
    def block(self) -> Block:
        weight = None if self.weight is None else torch.from_numpy(self.weight)
        return Block(self.X, torch.from_numpy(self.y).to(self.X.dtype), weight=weight)

    def behind_plane(self, rows: Block, trend: Trend | None) -> bool:
        """Whether the plane of these rows is nearer to the targets than the model."""
        if trend is None:
            return False
        plane = trend.features(self.X.double()) @ plane_of(rows, trend)
        return replace(self, mean=plane.numpy()).errors["rmse"] < self.errors["rmse"]

    @cached_property
    def twins(self) -> NDArray[np.int64] | None:
        """A number for each row, the same for rows with equal inputs; None where all rows differ."""
        group: NDArray[np.int64] = equal_rows(self.X.double().cpu().numpy())
        return group if len(group) and group.max() + 1 < len(group) else None

    @property
    def surroundings(self) -> Array:
        return surroundings(self.X.double().cpu().numpy(), self.mean, self.std)

    def standardized(self, farthest: float) -> Array:
        z: Array = np.clip((self.y - self.mean) / self.std, -farthest, farthest)
        return z


def steps(problem: Problem, rows: Rows, budget: Budget) -> Generator[Progress]:
    """The steps of the pipeline; where the problem asks for it, the last model comes with a calibration."""
    if problem.calibration is None or problem.noise is not None or problem.committee is not None:
        return pipeline.steps(problem, rows, budget)
    if _can_hold_out(problem, rows):
        assert isinstance(rows, MemoryRows)
        return _holding_out(problem, problem.calibration, rows, budget)
    return _leaving_out(problem, problem.calibration, rows, budget)


def _can_hold_out(problem: Problem, rows: Rows) -> bool:
    """Rows in memory, enough of them, in no order that counts, for a model that takes in rows as if it had had them."""
    options, approx = problem.calibration, problem.approx
    if options is None or not isinstance(rows, MemoryRows) or len(rows) < options.fewest_to_hold_out:
        return False
    takes_rows = approx.family is Family.INDUCING and (approx.is_local or not approx.by_block)
    return takes_rows and problem.window is None and problem.labels is None


def _holding_out(
    problem: Problem, options: CalibrationOptions, rows: MemoryRows, budget: Budget
) -> Generator[Progress]:
    rng = problem.rng.spawn(1)[0]
    train, held_out = divided(rows, options, rng)
    within = budget.sub(1.0 - options.budget_fraction) if budget.limited else budget
    last: Progress | None = None
    for last in pipeline.steps(replace(problem, calibration=None), train, within):
        yield _of_all(replace(last, reason=None), len(train), rows)
    assert last is not None
    seen = Residuals.within(budget, last.model, held_out.all, options, rng)
    if last.fraction < 1.0 and problem.smaller is not None and seen.behind_plane(train.all, problem.trend):
        last, seen = _of_all_rows(last, problem.smaller, train, seen)
    scale, judged = None, seen
    if options.kind != SHAPE and len(rows) >= options.fewest_for_scale:
        # a model of a part of its rows leaves none out, and leaving all out takes a pass
        if last.is_exact and within.pass_seconds(len(train)) < budget.remaining:
            scale = _local_scale(last.model, train, options, rng)
        if scale is None and len(seen) >= options.fewest_for_scale:
            # some rows held out give the scale, the others judge it
            first = drawn(seen.X, round(options.fraction_for_scale * len(seen)), rng)
            scale, judged = _scale_of(seen.take(first), options, rng), seen.take(~first)
    calibration, report = chosen(judged, scale, options, rng)
    model, exact = last.model, False
    if last.is_exact and within.pass_seconds(len(rows)) < max(budget.remaining, 0.0):
        with suppress(FactorizationError):  # a block that cannot take in more rows leaves the model as it is
            model, exact = _filled(last.model, rows), True
        if (
            exact
            and calibration.scale is not None
            and 2.0 * within.pass_seconds(len(rows)) < max(budget.remaining, 0.0)
        ):
            # with the rows held out the model is surer of itself, and c looks at how sure it is
            again = _local_scale(model, rows, options, rng)
            if again is not None:
                calibration = replace(calibration, scale=again.with_strength(calibration.scale.strength))
    info = {**last.info, "calibration": {"held_out": len(seen), **seen.errors, **report}}
    done = replace(last, model=model, info=info, calibration=calibration, log_evidence=model.log_evidence)
    if exact:
        yield replace(done, rows_seen=rows.total_weight, fraction=1.0)
        return
    # one pass over the rows that were not held out is not one over all of them
    reason = reasons.TIME_IS_UP if last.reason in (reasons.ONE_PASS, reasons.EXACT) else last.reason
    yield _of_all(replace(done, reason=reason), len(train), rows)


def _of_all_rows(last: Progress, smaller: Problem, train: MemoryRows, seen: Residuals) -> tuple[Progress, Residuals]:
    """A smaller model of all rows in place of one of a part of them, if it is nearer to the rows held out."""
    model, info = pipeline.fit(smaller, train, Budget())
    found = Residuals.of(model, seen.block)
    if found.errors["rmse"] >= seen.errors["rmse"]:
        return last, seen
    name, part = last.model.approx.name, f"{last.rows_seen:,.0f} rows"
    why = f"a plane through all rows was better than {name} of {part}, so a smaller model takes all rows"
    choice = {"approximation": smaller.approx.name, "n_inducing": smaller.n_inducing, "reason": why}
    done = replace(last, model=model, info={**info, "choice": choice}, rows_seen=train.total_weight, fraction=1.0)
    return replace(done, is_exact=True), found


def _of_all(progress: Progress, n_train: int, rows: MemoryRows) -> Progress:
    """What a model of the rows that were not held out has seen of all of them."""
    return replace(progress, fraction=progress.fraction * n_train / len(rows), is_exact=False)


def _leaving_out(problem: Problem, options: CalibrationOptions, rows: Rows, budget: Budget) -> Generator[Progress]:
    """Every row left out in turn. Neighbours are each other's witnesses then, so the shape alone is learned."""
    last: Progress | None = None
    for last in pipeline.steps(replace(problem, calibration=None), rows, budget):
        if last.reason is None:
            yield last
    assert last is not None
    try:
        seen = _left_out(last.model, problem, rows)
    except SparseGPError as error:
        yield replace(last, info={**last.info, "calibration": {"kind": None, "reason": str(error)}})
        return
    # hyper-parameters were learned from the rows that are left out
    n_learned = sum(parameter.numel() for parameter in last.model.kernel.parameters()) + 1
    looser = math.sqrt(1.0 + 2.0 * n_learned / len(seen))
    calibration, report = chosen(replace(seen, std=seen.std / looser), None, options, problem.rng.spawn(1)[0])
    info = {**last.info, "calibration": {"left_out": len(seen), **seen.errors, **report}}
    yield replace(last, info=info, calibration=calibration)


def _left_out(model: Any, problem: Problem, rows: Rows) -> Residuals:
    in_order = rows
    if problem.labels is not None:
        given = problem.wanted_blocks(len(rows)), problem.labels, problem.rng
        in_order, _ = arranged(problem.approx, rows, model.kernel, *given)
    left = model.left_out(in_order)
    mean, y, std = left.mean.numpy(), left.y.numpy(), left.var.sqrt().numpy()
    if not isinstance(in_order, MemoryRows):
        return Residuals(torch.zeros(len(y), 0), y, mean, std)
    weight = in_order.all.weight
    return Residuals(in_order.all.X, y, mean, std, None if weight is None else weight.double().cpu().numpy())


def divided(rows: MemoryRows, options: CalibrationOptions, rng: np.random.Generator) -> tuple[MemoryRows, MemoryRows]:
    """Rows to fit and rows held out, each in their order."""
    wanted = min(options.most_held_out, round(options.held_out_fraction * len(rows)))
    held = drawn(rows.all.X, wanted, rng)
    return rows.subset(torch.from_numpy(np.flatnonzero(~held))), rows.subset(torch.from_numpy(np.flatnonzero(held)))


def drawn(X: Tensor, wanted: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which rows are drawn, about as many as wanted. Rows with equal inputs stay together: their targets are often
    equal, too, and one would tell what another is."""
    group = equal_rows(X.double().cpu().numpy())
    size = np.bincount(group)
    order = rng.permutation(len(size))
    # a group larger than what is wanted stays behind
    fits = order[size[order] <= wanted]
    is_chosen = np.zeros(len(size), dtype=bool)
    is_chosen[fits[: int(np.searchsorted(size[fits].cumsum(), wanted, side="right"))]] = True
    is_drawn: NDArray[np.bool_] = is_chosen[group]
    if is_drawn.sum() < wanted // 2:
        is_drawn[:] = False
        is_drawn[rng.choice(len(X), wanted, replace=False)] = True
    return is_drawn


def chosen(
    seen: Residuals, scale: LocalScale | None, options: CalibrationOptions, rng: np.random.Generator
) -> tuple[Calibration, dict[str, Any]]:
    """Shape, and strength of the local scale, by the density of rows that neither was learned from."""
    z, seed = seen.standardized(options.farthest), int(rng.integers(2**31))
    best, used = _learned_shape(z, seen, options.shape, seed), None
    gain = best.gain
    if scale is not None:
        local, log_c = _strong_enough(scale, z, seen, options, seed)
        found = _learned_shape(z / np.exp(log_c), seen, options.shape, seed)
        better = float(np.average(found.densities - log_c - best.densities, weights=seen.weight))
        if better > 0.0 or options.kind == SCALE:
            gain, best, used = gain + better, found, local
    report = {
        "kind": SHAPE if used is None else SCALE,
        "parts": len(best.shape.weight),
        "strength": 0.0 if used is None else used.strength,
        "widened": best.widened,
        "gain": gain,
        "coverage_95": best.coverage_95,
    }
    return Calibration(best.shape, used, len(seen), gain), report


def _strong_enough(
    scale: LocalScale, z: Array, seen: Residuals, options: CalibrationOptions, seed: int
) -> tuple[LocalScale, Array]:
    """The local scale with its best strength, and its log at the rows, judged with the simplest shape."""
    level, simple = scale.trees(seen.surroundings), replace(options.shape, starts=options.shape.starts[:1])

    def judged(tried: LocalScale) -> float:
        log_c = tried.log_scale(level)
        found = _learned_shape(z / np.exp(log_c), seen, simple, seed)
        return float(np.average(found.densities - log_c, weights=seen.weight))

    best = max((scale.with_strength(strength) for strength in options.strengths), key=judged)
    return best, best.log_scale(level)


def _learned_shape(r: Array, seen: Residuals, options: ShapeOptions, seed: int) -> LearnedShape:
    """All strengths are judged on the same folds."""
    return shape_learning.learned(r, np.random.default_rng(seed), seen.weight, options, seen.twins)


def _local_scale(
    model: Any, rows: MemoryRows, options: CalibrationOptions, rng: np.random.Generator
) -> LocalScale | None:
    """From rows of the fit left out in closed form; neighbours that know of each other show on the rows held out."""
    try:
        left = model.left_out(rows)
    except SparseGPError:
        return None
    mean, std, y = (values.numpy() for values in (left.mean, left.var.sqrt(), left.y))
    return _scale_of(Residuals(rows.all.X, y, mean, std), options, rng)


def _scale_of(near: Residuals, options: CalibrationOptions, rng: np.random.Generator) -> LocalScale | None:
    """Trees for the size of residuals; None where nothing but chance is found."""
    near = near.take(np.sort(rng.choice(len(near), min(len(near), options.scale_rows), replace=False)))
    size = np.abs(near.standardized(options.farthest_for_scale))
    size += options.offset * (float(np.median(size)) or 1.0)
    found = trees.grown(near.surroundings, size, rng, options.trees)
    # of any size: the shape makes up for it
    return LocalScale(replace(found, base=0.0)) if len(found.columns) else None


def _filled(model: Model, rows: MemoryRows) -> Model:
    """The model of these rows, with the same hyper-parameters, inducing inputs and blocks."""
    assert model.state is not None
    in_order, blocking = rows, model.blocking
    if model.approx.by_block:
        assert blocking is not None
        in_order = rows.in_blocks(blocking.nearest, blocking.n_blocks)
    state, posterior, found = batch.infer(model.state.prior, in_order)
    kept = None
    if isinstance(posterior, LocalPosterior):
        kept = KeptRows.of(in_order)
        posterior = replace(posterior, rows=kept)
    n = len(rows)
    return replace(model, state=state, found=Found(posterior, found.log_evidence), kept=kept, n_arrived=n, n_rows=n)
