"""`approximation="auto"` and `n_inducing="auto"`: a choice among problems by the density of held-out rows."""

import math
import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sparsegp.calibration.shape_learning import calibrated_log_density
from sparsegp.core import approximations
from sparsegp.core.block import MemoryRows, Rows
from sparsegp.core.predictive import Array, Gaussian
from sparsegp.core.reasons import INTERRUPTED
from sparsegp.errors import InputError, SparseGPError
from sparsegp.fit.budget import Budget, Clock
from sparsegp.fit.kernel_choice import clear_winner
from sparsegp.fit.pipeline import Progress, steps
from sparsegp.fit.problem import NoiseSpec, Problem
from sparsegp.fit.scaling import Scaling
from sparsegp.learn.trace import LearningStep

AUTO = "auto"
LEARNED_NOISE = "heteroscedastic "


@dataclass(frozen=True)
class AutoOptions:
    """What is tried, from simple to complex, on how many rows and for how long.

    Up to `exact_rows` rows have exact candidates. `block_rows` of "pic" are better than blocks as small as `n_inducing`
    on kin40k and pol, the two sets tried. Learning visits about `row_visits` rows, each with the work of M^2 numbers.
    """

    small_candidates: tuple[str, ...] = ("exact",)
    candidates: tuple[str, ...] = ("pic",)
    fading_candidates: tuple[str, ...] = ("vfe",)
    exact_rows: int = 1500
    fewest_to_judge: int = 200
    held_out_fraction: float = 0.2
    most_held_out: int = 4000
    trial_rows: int = 16_000
    trial_seconds: float = 5.0
    budget_fraction: float = 0.12
    least_budget_left: float = 0.1
    inference_margin: float = 1.5
    most_inducing: int = 512
    fewest_inducing: int = 32
    rows_per_inducing: int = 8
    block_rows: int = 800
    row_visits: float = 4e6
    visits_per_second: float = 8e4


@dataclass(frozen=True)
class Trial:
    """One candidate on a part of the rows; `nlpd` of rows it did not see, or why it is out of the question."""

    approximation: str
    n_rows: int
    nlpd: float
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Choice:
    """What was chosen, from which trials, in words. A choice that was stopped has the best trial so far."""

    approximation: Any
    n_inducing: int
    trials: tuple[Trial, ...]
    reason: str
    stopped: Progress | None = None

    def report(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(replace(self, stopped=None)).items() if name != "stopped"}


@dataclass(frozen=True)
class Question:
    """A problem with something left to choose, and what candidates need besides.

    `n_inducing` None: to be chosen. `fades`: rows leave by themselves, by a window or a half-life; `decays`: by the
    latter. The clock is that of the trials' budgets, the seed that of their draws.
    """

    problem: Problem
    approximation: Any
    n_inducing: int | None
    noise: NoiseSpec
    fades: bool
    decays: bool
    power: float
    time_budget: float | None
    options: AutoOptions
    clock: Clock
    seed: int = 0

    @property
    def is_open(self) -> bool:
        return is_auto(self.approximation) or self.n_inducing is None


def is_auto(value: Any) -> bool:
    """An approximation may also be a mapping, n_inducing any wrong value."""
    return isinstance(value, str) and value == AUTO


def choose(question: Question, rows: Rows, scaling: Scaling) -> Choice:
    """The candidate with the best held-out density, once calibrated; the simplest of those that chance could rank.

    A callback, or Ctrl-C, that asks to stop ends with the best trial so far.
    """
    options, budget, sample, n_rows = question.options, question.time_budget, rows.sample, len(rows)
    n_inducing = question.n_inducing or _n_inducing(n_rows, budget, options)
    if not is_auto(question.approximation):
        return Choice(question.approximation, n_inducing, (), _size_reason(n_inducing, n_rows, budget))
    names = _candidates(question, rows)
    if len(names) == 1:
        return Choice(names[0], n_inducing, (), _only_reason(names[0], n_rows, question))
    seconds = options.trial_seconds if budget is None else options.budget_fraction * budget / len(names)
    # a generator of its own: the fit that follows draws what it would have drawn without trials
    train, held_out = _split(sample, np.random.default_rng(question.seed), options)
    done: list[_Tried] = []
    for name in names:
        problem = candidate(question, name, n_inducing, len(train))
        if question.decays and problem.approx.is_local:
            done.append(_Tried(Trial(name, len(train), math.inf, 0.0, "half_life is not for rows that are kept")))
            continue
        done.append(_tried(question, problem, name, train, held_out, seconds, scaling))
        if done[-1].interrupted:
            return _stopped(done, n_inducing, len(held_out))
    trials = tuple(_affordable(question, tried, n_rows) for tried in done)
    usable = {
        trial.approximation: tried.densities for trial, tried in zip(trials, done, strict=True) if trial.error is None
    }
    name = clear_winner(usable) if usable else trials[-1].approximation
    best = next(trial for trial in trials if trial.approximation == name)
    if best.error is not None:
        raise InputError(f"No approximation could be fitted to these rows; the last one said: {best.error}")
    return Choice(best.approximation, n_inducing, trials, _reason(best, trials, len(held_out)))


def candidate(question: Question, name: Any, n_inducing: int, n_rows: int) -> Problem:
    """The problem of a candidate, to be fitted to n_rows rows."""
    problem = question.problem
    if not isinstance(name, str):
        return replace(problem, approx=approximations.get(name, question.power), n_inducing=n_inducing)
    learns_noise = name.startswith(LEARNED_NOISE)
    inner = name.removeprefix(LEARNED_NOISE)
    if inner == "exact":
        # PIC with one block, whatever its inducing input: the same model, which takes rows in and gives them back
        problem = replace(problem, approx=approximations.get("pic"), n_blocks=1, n_inducing=1, learn_inducing=False)
    else:
        n_blocks = problem.n_blocks
        if inner == "pic" and n_blocks is None:
            n_blocks = max(1, round(n_rows / max(n_inducing, question.options.block_rows)))
        approx = approximations.get(inner, question.power)
        problem = replace(problem, approx=approx, n_inducing=n_inducing, n_blocks=n_blocks)
    if not learns_noise:
        return problem
    learned = problem.learn_inducing and not problem.approx.by_block
    return replace(problem, noise=question.noise, optimizer="lbfgs", learn_inducing=learned)


def _candidates(question: Question, rows: Rows) -> tuple[str, ...]:
    """No noise to learn where it is known of every row, or nothing is learned; few rows do not tell models apart. Rows
    that fade or leave by themselves need a model that forgets, and chosen inducing inputs one that has some."""
    problem, options, n_rows = question.problem, question.options, len(rows)
    learns_noise = rows.least_noise_var is None and problem.optimizer is not None and not question.fades
    # srgp learns approximations by points only
    few = n_rows <= options.exact_rows and problem.optimizer != "srgp" and isinstance(rows, MemoryRows)
    if few and not question.fades and isinstance(problem.inducing, str):
        judged = learns_noise and n_rows >= options.fewest_to_judge
        return options.small_candidates if judged else options.small_candidates[:1]
    if question.fades or problem.optimizer == "srgp":
        return options.fading_candidates
    return tuple(name for name in options.candidates if learns_noise or not name.startswith(LEARNED_NOISE))


def _n_inducing(n_rows: int, budget: float | None, options: AutoOptions) -> int:
    """As many as the rows can determine and, with a budget, as leave learning enough visits of them."""
    most = min(options.most_inducing, max(options.fewest_inducing, n_rows // options.rows_per_inducing))
    if budget is None:
        return most
    wanted = min(options.row_visits, 100.0 * n_rows)
    affordable = (1.0 - options.budget_fraction) * budget * options.visits_per_second
    return int(min(most, max(options.fewest_inducing, options.most_inducing * math.sqrt(affordable / wanted))))


def _split(sample: MemoryRows, rng: np.random.Generator, options: AutoOptions) -> tuple[MemoryRows, MemoryRows]:
    """Rows to learn from and rows held out, each in their order."""
    order = rng.permutation(len(sample))
    n_held_out = min(options.most_held_out, round(options.held_out_fraction * len(sample)))
    train, held_out = order[n_held_out : n_held_out + options.trial_rows], order[:n_held_out]
    return sample.subset(torch.from_numpy(np.sort(train))), sample.subset(torch.from_numpy(np.sort(held_out)))


@dataclass(frozen=True)
class _Tried:
    """A trial, its model, the seconds of it in which all rows were visited, and whether the caller asked to stop."""

    trial: Trial
    progress: Progress | None = None
    pass_seconds: float = 0.0
    interrupted: bool = False
    densities: Array = field(default_factory=lambda: np.zeros(0))


def _tried(
    question: Question,
    problem: Problem,
    name: str,
    train: MemoryRows,
    held_out: MemoryRows,
    seconds: float,
    scaling: Scaling,
) -> _Tried:
    trial, asked = Trial(name, len(train), math.inf, seconds), False
    clock, rng = question.clock, np.random.default_rng(question.seed)
    budget = Budget(seconds, clock(), clock)

    def on_step(step: LearningStep) -> bool:
        nonlocal asked
        reported = replace(step, stage=f"trial of {name}")
        asked = asked or (problem.on_step is not None and problem.on_step(reported))
        return asked

    last: Progress | None = None
    interrupted = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of short budgets and the like: a trial is no promise
            try:
                for progress in steps(replace(problem, on_step=on_step, rng=rng), train, budget):
                    last = progress
            except KeyboardInterrupt:
                interrupted = True
                if last is None:
                    return _Tried(replace(trial, error=INTERRUPTED), interrupted=True)
        assert last is not None
        used = budget.used
        target = held_out.all.y.double().cpu().numpy() * scaling.y_scale + scaling.y_mean
        forecast = last.model.forecast(held_out.all.X, None, scaling)
        densities = (
            calibrated_log_density(target, forecast.mean, forecast.std, rng)
            if isinstance(forecast, Gaussian)
            else forecast.log_density(target)
        )
    except SparseGPError as error:
        return _Tried(replace(trial, error=str(error)), interrupted=asked)
    weight = held_out.all.weight
    nlpd = -np.average(densities, weights=None if weight is None else weight.cpu().numpy())
    trial = replace(trial, nlpd=float(nlpd), seconds=used)
    reasons = [stage.reason for stage in last.info.get("stages", ())]
    pass_seconds = last.info["inference_seconds"] if problem.noise is not None else 0.0
    interrupted = interrupted or asked or INTERRUPTED in (*reasons, last.reason)
    return _Tried(trial, last, pass_seconds, interrupted, densities)


def _affordable(question: Question, tried: _Tried, n_rows: int) -> Trial:
    """Models with learned noise must visit all rows, so they are out of the question where that breaks the budget."""
    budget, options = question.time_budget, question.options
    if budget is None or tried.trial.error is not None:
        return tried.trial
    needed = options.inference_margin * tried.pass_seconds * n_rows / tried.trial.n_rows
    if needed <= (1.0 - options.budget_fraction) * budget:
        return tried.trial
    return replace(tried.trial, nlpd=math.inf, error=f"all rows would take {needed:.0f} s of {budget:g} s")


def _stopped(done: list[_Tried], n_inducing: int, n_held_out: int) -> Choice:
    """The best trial so far as the model, or Ctrl-C itself where there is none yet."""
    best = min(done, key=lambda tried: tried.trial.nlpd)
    if best.progress is None:
        raise KeyboardInterrupt
    trials = tuple(tried.trial for tried in done)
    reason = f"stopped during the trials: {_reason(best.trial, trials, n_held_out)}"
    return Choice(best.trial.approximation, n_inducing, trials, reason, best.progress)


def _reason(best: Trial, trials: tuple[Trial, ...], n_held_out: int) -> str:
    better = (
        "had the best density"
        if best.nlpd <= min(trial.nlpd for trial in trials)
        else "is the simplest that chance could rank first"
    )
    others = ", ".join(
        f"{trial.approximation} {f'{trial.nlpd:.3f}' if trial.error is None else trial.error}"
        for trial in trials
        if trial is not best
    )
    return (
        f"{best.approximation} {better} of {n_held_out:,} held-out rows: calibrated NLPD {best.nlpd:.3f} ({others}), "
        f"after {best.seconds:.3g} s on {best.n_rows:,} rows"
    )


def _only_reason(name: str, n_rows: int, question: Question) -> str:
    if name == "exact":
        return f"{n_rows} {'row is' if n_rows == 1 else 'rows are'} few enough for the exact model"
    if question.fades:
        return f"{name}: rows that fade leave a sum over rows, and no blocks of them"
    return f"{name}: {n_rows:,} rows are too many for the exact model, and neighbours tell more than inducing inputs"


def _size_reason(n_inducing: int, n_rows: int, budget: float | None) -> str:
    within = "" if budget is None else f" and a time_budget of {budget:g} s"
    return f"{n_inducing} inducing inputs suit {n_rows:,} rows{within}"
