"""`approximation="auto"` and `n_inducing="auto"`: a choice by the density of held-out rows, and the reasons for it."""

import math
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from sparsegp.errors import InputError, SparseGPError
from sparsegp.estimators.families import INTERRUPTED
from sparsegp.estimators.heteroscedastic import HeteroscedasticGPRegressor
from sparsegp.estimators.progress import StepListener
from sparsegp.sources import Batch

AUTO = "auto"
NOISY = "heteroscedastic "
SMALL_CANDIDATES = ("exact", NOISY + "exact")
CANDIDATES = ("vfe", "fitc", "pic", NOISY + "pic")
UNTRIED = "vfe"
EXACT_ROWS, FEWEST_TO_JUDGE = 1500, 200
HELD_OUT_SHARE, MOST_HELD_OUT = 0.2, 4000
TRIAL_ROWS = 16_000
TRIAL_SECONDS = 12.0
BUDGET_SHARE = 0.45
LONGEST_TRIALS = TRIAL_SECONDS * len(CANDIDATES)
INFERENCE_MARGIN = 1.5
MOST_INDUCING, FEWEST_INDUCING, ROWS_PER_INDUCING = 512, 32, 8
BLOCK_ROWS = 800  # of "pic": better than blocks as small as n_inducing on kin40k and pol, the two sets tried
# Learning visits about so many rows, each with the work of M^2 numbers (learning/progressive.py).
ROW_VISITS = 4e6
VISITS_PER_SECOND = 8e4


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
    """What was chosen, from which trials, in words."""

    approximation: Any
    n_inducing: int
    trials: tuple[Trial, ...]
    reason: str

    def report(self) -> dict[str, Any]:
        return asdict(self)


class TrialsInterrupted(Exception):
    """Somebody asked to stop while models were on trial. `model` is the best of them, fitted to a part of the rows."""

    def __init__(self, choice: Choice, model: Any) -> None:
        super().__init__(choice.reason)
        self.choice, self.model = choice, model


def is_asked(estimator: Any) -> bool:
    """Whether anything is left to choose."""
    return _is_auto(estimator.approximation) or _is_auto(estimator.n_inducing)


def settled_size(estimator: Any) -> Any:
    """The estimator with a number of inducing inputs in the place of "auto", for checks of the rest."""
    return clone(estimator).set_params(n_inducing=FEWEST_INDUCING) if _is_auto(estimator.n_inducing) else estimator


def _is_auto(value: Any) -> bool:
    """An approximation may also be a mapping, n_inducing any wrong value."""
    return isinstance(value, str) and value == AUTO


def untried(estimator: Any) -> Any:
    """The approximation where no trials are held: the one given, for "auto" the one that every kind of fit can do."""
    return UNTRIED if _is_auto(estimator.approximation) else estimator.approximation


def untried_report(estimator: Any) -> dict[str, Any]:
    """What `info_` says of a fit without trials."""
    if not _is_auto(estimator.approximation):
        return {}
    reason = f"{UNTRIED}, untried: rows that come in batches or steps, from a cluster or from disk are not held twice"
    return {"choice": Choice(UNTRIED, estimator.n_inducing, (), reason).report()}


def choose(estimator: Any, batch: Batch, rng: np.random.Generator, listener: StepListener) -> Choice:
    """The candidate with the best held-out density after equal time on equal rows; few rows have exact ones.

    Who is asked to stop by the listener, or by Ctrl-C, raises `TrialsInterrupted`.
    """
    budget, n_rows = estimator.time_budget, len(batch)
    n_inducing = _n_inducing(n_rows, budget) if estimator.n_inducing == AUTO else int(estimator.n_inducing)
    if estimator.approximation != AUTO:
        return Choice(estimator.approximation, n_inducing, (), _size_reason(n_inducing, n_rows, budget))
    candidates = _candidates(estimator, batch)
    if len(candidates) == 1:
        return Choice(candidates[0], n_inducing, (), f"{n_rows} rows are few enough for the exact model")
    seconds = TRIAL_SECONDS if budget is None else BUDGET_SHARE * budget / len(candidates)
    train, held_out = _split(batch if batch.weight is None else batch.take(batch.weight > 0), rng)
    fits: list[_Fit] = []
    for name in candidates:
        fits.append(_tried(made(estimator, name, n_inducing, seconds, len(train)), name, train, held_out, listener))
        if fits[-1].interrupted:
            raise _interrupted(fits, n_inducing, len(held_out))
    trials = tuple(_within(estimator, fit, n_rows) for fit in fits)
    best = min(trials, key=lambda trial: trial.nlpd)
    if best.error is not None:
        raise InputError(f"No approximation could be fitted to these rows; the last one said: {best.error}")
    return Choice(best.approximation, n_inducing, trials, _reason(best, trials, len(held_out)))


def _interrupted(fits: "list[_Fit]", n_inducing: int, n_held_out: int) -> BaseException:
    """What to raise: the best trial so far as the model, or Ctrl-C itself where there is none yet."""
    best = min(fits, key=lambda fit: fit.trial.nlpd)
    if best.model is None:
        return KeyboardInterrupt()
    trials = tuple(fit.trial for fit in fits)
    reason = f"stopped during the trials: {_reason(best.trial, trials, n_held_out)}"
    return TrialsInterrupted(Choice(best.trial.approximation, n_inducing, trials, reason), best.model)


def made(estimator: Any, name: str, n_inducing: int, seconds: float | None, n_rows: int) -> Any:
    """An estimator like the given one for a candidate, to be fitted to n_rows rows within so many seconds."""
    changes: dict[str, Any] = {"n_inducing": n_inducing, "time_budget": seconds}
    if name == "exact":
        # PIC with one block, whatever its inducing input: the same model, which takes rows in and gives them back
        return clone(estimator).set_params(
            approximation="pic", n_blocks=1, n_inducing=1, learn_inducing=False, time_budget=seconds
        )
    if not (isinstance(name, str) and name.startswith(NOISY)):
        if name == "pic" and estimator.n_blocks is None:
            changes["n_blocks"] = max(1, round(n_rows / max(n_inducing, BLOCK_ROWS)))
        return clone(estimator).set_params(approximation=name, **changes)
    shared = HeteroscedasticGPRegressor().get_params(deep=False).keys() & estimator.get_params(deep=False).keys()
    given = {key: getattr(estimator, key) for key in shared}
    given |= {"approximation": name.removeprefix(NOISY), "optimizer": "lbfgs", "inference": "exact", **changes}
    if estimator.learn_inducing:
        given["learn_inducing"] = None
    return clone(HeteroscedasticGPRegressor(**given))


def _candidates(estimator: Any, batch: Batch) -> tuple[str, ...]:
    """No noise to learn where it is known of every row, or nothing is learned; few rows do not tell models apart. Rows
    that fade or leave by themselves need a model that forgets, and chosen inducing inputs one that has some."""
    fades = estimator.window is not None or estimator.half_life is not None
    learns_noise = batch.noise_var is None and estimator.optimizer is not None and not fades
    few = len(batch) <= EXACT_ROWS and estimator.optimizer != "srgp"  # which learns rows of the table by points only
    if few and not fades and isinstance(estimator.inducing, str):
        return SMALL_CANDIDATES if learns_noise and len(batch) >= FEWEST_TO_JUDGE else SMALL_CANDIDATES[:1]
    return tuple(name for name in CANDIDATES if learns_noise or not name.startswith(NOISY))


def _n_inducing(n_rows: int, budget: float | None) -> int:
    """As many as the rows can determine and, with a budget, as leave learning enough visits of them."""
    most = min(MOST_INDUCING, max(FEWEST_INDUCING, n_rows // ROWS_PER_INDUCING))
    if budget is None:
        return most
    wanted = min(ROW_VISITS, 100.0 * n_rows)
    affordable = (1.0 - BUDGET_SHARE) * budget * VISITS_PER_SECOND
    return int(min(most, max(FEWEST_INDUCING, MOST_INDUCING * math.sqrt(affordable / wanted))))


def _split(batch: Batch, rng: np.random.Generator) -> tuple[Batch, Batch]:
    order = rng.permutation(len(batch))
    n_held_out = min(MOST_HELD_OUT, round(HELD_OUT_SHARE * len(batch)))
    index = np.zeros((2, len(batch)), dtype=np.bool_)
    index[0, order[n_held_out : n_held_out + TRIAL_ROWS]] = True
    index[1, order[:n_held_out]] = True
    return batch.take(index[0]), batch.take(index[1])


@dataclass(frozen=True)
class _Fit:
    """A trial, its model, the seconds of it in which all rows were visited, and whether somebody asked to stop."""

    trial: Trial
    model: Any = None
    pass_seconds: float = 0.0
    interrupted: bool = False


def _tried(model: Any, name: str, train: Batch, held_out: Batch, listener: StepListener) -> _Fit:
    trial = Trial(name, len(train), math.inf, model.time_budget)
    known = {} if train.noise_var is None else {"noise_var": train.noise_var}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of short budgets and the like: a trial is no promise
            listener.told_by(model.set_params(verbose=0)).fit(train.X, train.y, sample_weight=train.weight, **known)
        nlpd = -np.average(model.log_density(held_out.X, held_out.y), weights=held_out.weight)
    except SparseGPError as error:
        return _Fit(replace(trial, error=str(error)), interrupted=listener.asked_to_stop)
    except KeyboardInterrupt:
        return _Fit(replace(trial, error="interrupted"), interrupted=True)
    trial = replace(trial, nlpd=float(nlpd), seconds=model.info_["seconds"])
    pass_seconds = model.info_["inference_seconds"] if name.startswith(NOISY) else 0.0
    return _Fit(trial, model, pass_seconds, listener.asked_to_stop or _was_interrupted(model))


def _was_interrupted(model: Any) -> bool:
    """By a Ctrl-C that ended learning or inference and left a model."""
    reasons = [stage.reason for stage in model.info_.get("stages", ())]
    return INTERRUPTED in (*reasons, model.info_.get("budget", {}).get("reason"))


def _within(estimator: Any, fit: _Fit, n_rows: int) -> Trial:
    """Models with learned noise must visit all rows, so they are out of the question where that breaks the budget."""
    budget = estimator.time_budget
    if budget is None or fit.trial.error is not None:
        return fit.trial
    needed = INFERENCE_MARGIN * fit.pass_seconds * n_rows / fit.trial.n_rows
    if needed <= (1.0 - BUDGET_SHARE) * budget:
        return fit.trial
    return replace(fit.trial, nlpd=math.inf, error=f"all rows would take {needed:.0f} s of {budget:g} s")


def _reason(best: Trial, trials: tuple[Trial, ...], n_held_out: int) -> str:
    others = ", ".join(
        f"{trial.approximation} {f'{trial.nlpd:.3f}' if trial.error is None else trial.error}"
        for trial in trials
        if trial is not best
    )
    return (
        f"{best.approximation} had the best NLPD on {n_held_out:,} held-out rows, {best.nlpd:.3f} ({others}), "
        f"after {best.seconds:.3g} s on {best.n_rows:,} rows"
    )


def _size_reason(n_inducing: int, n_rows: int, budget: float | None) -> str:
    within = "" if budget is None else f" and a time_budget of {budget:g} s"
    return f"{n_inducing} inducing inputs suit {n_rows:,} rows{within}"
