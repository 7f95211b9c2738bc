"""SparseGPRegressor: the scikit-learn shell of every approximation in the table."""

import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import check_random_state
from torch import Tensor

from sparsegp import approximations, linalg
from sparsegp.approximations import Approximation
from sparsegp.data import Block
from sparsegp.errors import InputError
from sparsegp.estimators import families
from sparsegp.estimators.choices import choosing
from sparsegp.estimators.choices.noisy_choice import NoisyChoicePredictions, NoisyFit
from sparsegp.estimators.choices.starting_points import chosen_kernel, is_kernel_asked, starting_point
from sparsegp.estimators.heteroscedastic import HeteroscedasticGPRegressor
from sparsegp.estimators.incoming import arrivals, clusters, out_of_core, validation
from sparsegp.estimators.incoming.blocking import Blocking, drop_weightless
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.predicting.predictions import Array
from sparsegp.estimators.progress import StepListener, with_callbacks
from sparsegp.estimators.shell import Estimator
from sparsegp.estimators.stepping.anytime import AnytimeMixin
from sparsegp.estimators.tasks import Accepted, Task
from sparsegp.estimators.updating.streaming import StreamingMixin
from sparsegp.files import schema
from sparsegp.kernels import get as kernel_class
from sparsegp.learning import natural, srgp
from sparsegp.learning.progressive import OPTIMIZERS
from sparsegp.sources import Batch, to_block

LEAST_BUDGET_LEFT = 0.1
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class SparseGPRegressor(
    NoisyChoicePredictions,
    StreamingMixin,
    AnytimeMixin,
    Estimator,
):
    """Gaussian-process regression by any approximation of the unifying view, for a hundred to millions of rows.

    Parameters
    ----------
    kernel : "se" | "matern12" | "matern32" | "matern52" | "rq" | "auto" | Kernel | scikit-learn kernel
        A name starts from median distances with one lengthscale per column; "auto" takes the se or Matern kernel by
        which neighbouring rows predict each other best. The parameters of a built-in Kernel object
        (or of a scikit-learn kernel) are in the units of the data, also with `normalize=True`; a kernel of your own
        class sees standardised inputs then.
    approximation : "auto", name of a row of the table, or a mapping of names to weights (a linear combination)
        "exact" "sod" "sor" "dtc" "fitc" "fic" "pitc" "pic" "vfe" "pep" "block-pep" "nystrom". "auto" takes the best of
        some of them, and of models with learned noise, on held-out rows; rows that come in batches or steps, from a
        cluster or from disk are left to "vfe". info_["choice"] says why.
    power : alpha of "pep" and "block-pep", from 0 (vfe) to 1 (fitc, pitc).
    n_inducing, inducing : number of inducing inputs ("auto": by rows and budget) and how they are chosen: "kmeans",
        "random", "greedy", or an array.
    n_blocks : blocks of "pitc", "pic", "block-pep"; None gives about `n_inducing` rows a block.
    noise_var : starting value of the noise variance in squared units of y; the value itself if `optimizer=None`.
    optimizer : "auto" | "lbfgs" | "srgp" | "ngd" | "adam" | None (hyper-parameters and inducing inputs stay as given).
        "auto" is "lbfgs", but "ngd" for approximations by blocks within a budget too short for many evaluations.
    learn_inducing : whether the inducing inputs are learned with the hyper-parameters.
    inference : "exact", one pass over all rows, or "anytime", block after block (docs/time-budgets.md).
    time_budget : seconds that `fit` may take as a whole; learning and inference share them.
    reading : what a model that has seen a part of the rows says: "all", extrapolated to all of them, or "seen".
    stop_error : "anytime" ends when the sampling error left in the mean is below this share of the predictive std.
    normalize : standardise X and y inside; predictions come back in the user's units.
    window : `partial_fit` keeps the last `window` rows and forgets older ones, exactly.
    half_life : `partial_fit` lets a row count half after this many rows.
    clip_variances : "nystrom" only: clip its negative variances instead of raising an error.
    device, dtype : where and in which precision the passes over rows run; everything M x M is float64.

    Attributes
    ----------
    kernel_, noise_var_, inducing_ : the fitted model in the user's units.
    log_evidence_ : log evidence or bound at the fitted hyper-parameters, in the units it was computed in.
    info_ : jitter, seconds, evaluations and stages of learning, number of blocks, innovations of a stream, budget.
    """

    kind = schema.SPARSE

    def __init__(
        self,
        kernel: Any = "se",
        approximation: Any = "auto",
        power: float = 0.5,
        n_inducing: Any = 512,
        inducing: Any = "kmeans",
        n_blocks: int | None = None,
        noise_var: float | None = None,
        optimizer: str | None = "auto",
        learn_inducing: bool = True,
        inference: str = "exact",
        time_budget: float | None = None,
        reading: str = "all",
        stop_error: float | None = None,
        normalize: bool = True,
        window: int | None = None,
        half_life: float | None = None,
        clip_variances: bool = False,
        device: str = "cpu",
        dtype: str = "float64",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.approximation = approximation
        self.power = power
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.n_blocks = n_blocks
        self.noise_var = noise_var
        self.optimizer = optimizer
        self.learn_inducing = learn_inducing
        self.inference = inference
        self.time_budget = time_budget
        self.reading = reading
        self.stop_error = stop_error
        self.normalize = normalize
        self.window = window
        self.half_life = half_life
        self.clip_variances = clip_variances
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks  # type: ignore[untyped-decorator]
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        noise_var: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
        client: Any = None,
        cluster: Any = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Learn hyper-parameters and compute the posterior.

        `noise_var` is the known noise variance of each row (nothing is learned about the noise then, and predictions of
        y use its mean). `sample_weight` w counts a row w times, exactly. `blocks` is an integer label per row for the
        approximations with blocks. `target` names the column of y when X is a table or a file (Parquet, CSV); then
        `noise_var` and `sample_weight` may be names of columns too. X may also be a dask collection or an iterable of
        batches. More rows than fit into memory are read as they are needed (docs/big-files.md).
        `client`, or `cluster`, is a Dask client, a cluster or a scheduler's address: its workers do the work; for a
        dask collection the client in use does (docs/clusters.md). `checkpoint` is a file for the state of such a fit,
        from which the same call goes on if this process was killed.
        """
        given: dict[str, Any] = {"noise_var": noise_var, "sample_weight": sample_weight}
        where = clusters.place("fit", self, X, clusters.chosen(client, cluster), blocks)
        if where is not None:
            on_workers = {"client": where, "target": target, "checkpoint": checkpoint, **given}
            fitted: Self = clusters.distributed().fit(self, X, y, **on_workers)
            return fitted
        if checkpoint is not None:
            raise InputError("checkpoint= is for fits on a cluster: give client= too.")
        started = time.perf_counter()
        in_steps = self.inference == "anytime" or self.time_budget is not None
        source = (
            None if in_steps or blocks is not None else out_of_core.large_source(self, X, y, target=target, **given)
        )
        if source is not None:
            out_of_core.fit(self, source)
        elif choosing.is_asked(self):
            if blocks is not None:
                raise InputError("blocks= goes with approximation='pitc', 'pic' or 'block-pep', not with 'auto'.")
            self._fit_chosen(arrivals.training_batch(self, X, y, target=target, **given), started)
        elif in_steps:
            return self._fit_in_steps(X, y, given, blocks, target)
        else:
            self._fit_in_memory(self._accepted(X, y, given, blocks, target))
        self.info_["seconds"] = time.perf_counter() - started
        return self

    def _fit_chosen(self, batch: Batch, started: float) -> None:
        """A fit of the approximation that trials find best; the time they take is part of the budget.

        Stopped during the trials, it is the best of their models.
        """
        choosing.settled_size(self)._checked_parameters()
        listener, budget = StepListener(self, self.verbose), {}
        try:
            best, choice = self._best_model(batch, started, listener)
        except choosing.TrialsInterrupted as stopped:
            best, choice = stopped.model, stopped.choice
            seen = int(best.n_samples_seen_)
            budget = {"rows_seen": seen, "fraction": seen / len(batch), "reason": families.INTERRUPTED}
            warnings.warn(f"The fit was interrupted: the model is of {seen:,} rows, see info_['choice'].", stacklevel=4)
        finally:
            listener.close()
        self._adopt(best)
        self.info_["choice"] = choice.report()
        if budget or self.time_budget is not None:
            whole = {"asked": self.time_budget, "used": time.perf_counter() - started}
            self.info_["budget"] = {**self.info_.get("budget", {}), **budget, **whole}

    def _best_model(self, batch: Batch, started: float, listener: StepListener) -> tuple[Any, choosing.Choice]:
        rng = self._generator()
        asked = self._with_kernel_named(batch, rng)
        choice = choosing.choose(asked, batch, rng, listener)
        left = None
        if self.time_budget is not None:
            left = max(self.time_budget - (time.perf_counter() - started), LEAST_BUDGET_LEFT * self.time_budget)
        best = choosing.made(asked, choice.approximation, choice.n_inducing, left, len(batch))
        known = {} if batch.noise_var is None else {"noise_var": batch.noise_var}
        best.set_params(verbose=0)  # the listener speaks
        return listener.told_by(best).fit(batch.X, batch.y, sample_weight=batch.weight, **known), choice

    def _with_kernel_named(self, batch: Batch, rng: np.random.Generator) -> Self:
        """A kernel that is left to choose is chosen from all rows, before the approximations are tried with it."""
        if not is_kernel_asked(self):
            return self
        units = Standardizer.of(batch, normalize=self.normalize)
        block, _ = drop_weightless(self._block_in(units, batch), None)
        named: Self = clone(self).set_params(kernel=chosen_kernel(self, units, block, rng))
        return named

    def _fit_untried(self, X: Any, y: Any, **given: Any) -> Self:
        settled = clone(self).set_params(approximation=choosing.untried(self))
        self._adopt(settled.fit(X, y, **given))
        self.info_ |= choosing.untried_report(self)
        return self

    def _adopt(self, best: Any) -> None:
        """All that a fit has left behind in another estimator, which knows the same parameters or learned noise."""
        if isinstance(best, HeteroscedasticGPRegressor):
            self.__dict__.update(NoisyFit(best).state({}), _fit_rows=None)
            return
        own = self.get_params(deep=False).keys()
        self.__dict__.update({name: value for name, value in vars(best).items() if name not in own})

    def _fit_in_memory(self, accepted: Accepted) -> None:
        listener = StepListener(self, self.verbose)
        with linalg.flushed_denormals():
            task = replace(accepted.task, on_step=listener)
            task = task.scouted() if task.scouts else task
            problem, blocking = task.arranged()
            fitted = families.fit(problem)
        listener.close()
        self._store(accepted, fitted, blocking)
        self._begin_stream(task.row, task.block, task.labels)

    def _accepted(
        self, X: Any, y: Any, given: dict[str, Any], blocks: ArrayLike | None, target: str | None
    ) -> Accepted:
        """Everything checked and in the model's units."""
        row = self._checked_parameters()
        batch = arrivals.training_batch(self, X, y, target=target, **given)
        rng = self._generator()
        units = Standardizer.of(batch, normalize=self.normalize)
        block, labels = drop_weightless(self._block_in(units, batch), blocks)
        start = starting_point(self, units, block, rng)
        return Accepted(self._task(row, units, block, labels, start, rng), units, len(batch))

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(check_random_state(self.random_state).randint(2**31))

    def _checked_parameters(self) -> Approximation:
        validation.require_choice("optimizer", self.optimizer, (*OPTIMIZERS, None))
        validation.require_choice("dtype", self.dtype, tuple(DTYPES))
        validation.positive_count("n_inducing", self.n_inducing)
        if isinstance(self.kernel, str) and not is_kernel_asked(self):
            kernel_class(self.kernel)
        if self.n_blocks is not None:
            validation.positive_count("n_blocks", self.n_blocks)
        if self.noise_var is not None:
            validation.positive_number("noise_var", self.noise_var)
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise InputError("device='cuda' was asked for, but torch sees no CUDA device. Use device='cpu'.")
        row = approximations.get(choosing.untried(self), self.power)
        if self.optimizer == "srgp":
            srgp.require_points(row)
        if self.optimizer == "ngd":
            natural.require_inducing(row)
        self._check_stream_parameters(row)
        self._check_anytime_parameters(row)
        return row

    def _tensor(self, X: Array) -> Tensor:
        return self._standardizer.tensor(X, DTYPES[self.dtype], self.device)

    def _block_in(self, units: Standardizer, batch: Batch) -> Block:
        return to_block(batch, units, torch.empty(0, dtype=DTYPES[self.dtype], device=self.device))

    def _task(
        self,
        row: Approximation,
        units: Standardizer,
        block: Block,
        labels: ArrayLike | None,
        start: families.Start,
        rng: np.random.Generator,
    ) -> Task:
        inducing = self.inducing
        if not isinstance(inducing, str):
            inducing = units.inputs(validation.inducing_array(inducing, self.n_features_in_))
        return Task(
            row=row,
            block=block,
            labels=labels,
            start=start,
            inducing=inducing,
            n_inducing=self.n_inducing,
            n_blocks=self.n_blocks,
            learn_inducing=self.learn_inducing,
            optimizer=self.optimizer,
            rng=rng,
            clip_variances=self.clip_variances,
        )

    def _store(self, accepted: Accepted, fitted: families.Fitted, blocking: Blocking | None) -> None:
        """The fitted attributes, all at once: an interrupt leaves the model before or after, never a mixture."""
        units = accepted.units
        blocks = {} if blocking is None else {"n_blocks": blocking.partition.n_blocks}
        self.__dict__.update(
            _fitted=fitted,
            _row=accepted.task.row,
            _blocking=blocking,
            _standardizer=units,
            kernel_=units.raw_kernel(fitted.kernel),
            noise_var_=fitted.noise_var * units.y_scale**2,
            inducing_=units.raw_inputs(fitted.inducing.cpu().numpy()),
            n_samples_seen_=accepted.n_rows,
            info_={**fitted.info, **blocks, **choosing.untried_report(self)},
        )
