"""HeteroscedasticGPRegressor: learned input-dependent noise for any row of the table."""

import math
import time
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from torch import Tensor

from sparsegp import approximations, linalg
from sparsegp.approximations import Approximation, Family
from sparsegp.data import Block
from sparsegp.dense import require_dense_size
from sparsegp.errors import InputError
from sparsegp.estimators import families
from sparsegp.estimators.choices.kernel_judges import LearnedNoise
from sparsegp.estimators.choices.starting_points import starting_noise_kernel, starting_point
from sparsegp.estimators.incoming import arrivals, validation
from sparsegp.estimators.incoming.blocking import drop_weightless, labels_of_new, make_rows
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.predicting.mixture import MixturePredictions, NoiseMixture
from sparsegp.estimators.predicting.predictions import Array
from sparsegp.estimators.progress import StepListener, with_callbacks
from sparsegp.estimators.shell import Estimator, all_or_nothing
from sparsegp.estimators.stepping.budget import Budget
from sparsegp.estimators.updating.noisy_streaming import NoisyStreamingMixin
from sparsegp.heteroscedastic.fitting import INFERENCE, NoisyProblem
from sparsegp.heteroscedastic.fitting import fit as fit_noisy
from sparsegp.heteroscedastic.learning import NoisyModel
from sparsegp.learning.deadline import is_over
from sparsegp.sources import to_block

ALL_ROWS = "all rows were visited"
# Shares of a budget by whose ends the start and the hyper-parameters are learned; the rest is for inference.
SURVEY_SHARE, START_SHARE, LEARNING_SHARE = 0.1, 0.35, 0.75


class HeteroscedasticGPRegressor(MixturePredictions, NoisyStreamingMixin, Estimator):
    """Gaussian-process regression whose noise variance exp(g(x)) is learned as a second, sparse Gaussian process.

    Parameters
    ----------
    kernel, approximation, power, n_inducing, inducing, n_blocks, normalize, random_state, verbose
        As in SparseGPRegressor, for f. "vfe" is VSHGP of paper 001, "pic" keeps f local and the noise process global,
        "exact" is VHGP with a sparse noise process. Not "sod" and "nystrom".
    noise_kernel : kernel of g = log noise variance: a name, or a kernel in the units of X (g itself has no unit).
    n_noise_inducing, noise_inducing : number of inducing inputs of g and how they are chosen.
    noise_mean : starting value of the mean of g, log of squared units of y; the value itself if `optimizer=None`.
    optimizer : "lbfgs" | None (hyper-parameters and inducing inputs stay as given).
    learn_inducing : whether the inducing inputs of f and g are learned. None: yes, but not for rows of the table with
        blocks, which carry what is local (measured in docs/heteroscedastic.md).
    inference : "exact" (natural gradients, f eliminated) or "stochastic" (SVSHGP: mini-batches; "vfe" only).
    batch_size, n_steps : of "stochastic".
    time_budget : seconds that `fit` may take. Learning ends in time for inference, but that is from all rows: it takes
        a few passes over them however short the budget is.

    Attributes
    ----------
    kernel_, inducing_, noise_kernel_, noise_inducing_, noise_mean_ : the fitted model in the user's units.
    noise_var_ : mean noise variance over the rows of `fit`.
    log_evidence_ : the bound at the fitted hyper-parameters, in the units it was computed in.
    info_ : jitter, seconds, evaluations and stages of learning, number of blocks, innovations of a stream.
    """

    def __init__(
        self,
        kernel: Any = "se",
        approximation: Any = "vfe",
        power: float = 0.5,
        n_inducing: int = 512,
        inducing: Any = "kmeans",
        n_blocks: int | None = None,
        noise_kernel: Any = "se",
        n_noise_inducing: int = 128,
        noise_inducing: Any = "kmeans",
        noise_mean: float | None = None,
        optimizer: str | None = "lbfgs",
        learn_inducing: bool | None = None,
        inference: str = "exact",
        batch_size: int = 1024,
        n_steps: int = 2000,
        time_budget: float | None = None,
        normalize: bool = True,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.approximation = approximation
        self.power = power
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.n_blocks = n_blocks
        self.noise_kernel = noise_kernel
        self.n_noise_inducing = n_noise_inducing
        self.noise_inducing = noise_inducing
        self.noise_mean = noise_mean
        self.optimizer = optimizer
        self.learn_inducing = learn_inducing
        self.inference = inference
        self.batch_size = batch_size
        self.n_steps = n_steps
        self.time_budget = time_budget
        self.normalize = normalize
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks  # type: ignore[untyped-decorator]
    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
    ) -> Self:
        """Learn hyper-parameters and the posteriors of f and g. Arguments as in SparseGPRegressor.fit."""
        started = time.perf_counter()
        row = self._checked_parameters()
        batch = arrivals.training_batch(self, X, y, target=target, sample_weight=sample_weight)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        self._standardizer = Standardizer.of(batch, normalize=self.normalize)
        block, labels = drop_weightless(to_block(batch, self._standardizer), blocks)
        listener = StepListener(self, self.verbose)
        with linalg.flushed_denormals():
            budget = Budget(self.time_budget, started)
            model, stages = self._fit_block(row, block, labels, rng, listener, budget)
        listener.close()
        self.n_samples_seen_ = len(batch)
        self._store(model, block, {"stages": stages, "seconds": budget.used})
        if budget.limited:
            seen = {"rows_seen": len(batch), "fraction": 1.0, "reason": ALL_ROWS}
            self.info_["budget"] = {"asked": budget.asked, "used": budget.used, **seen}
        self._begin_stream()
        return self

    def _fit_block(
        self,
        row: Approximation,
        block: Block,
        labels: ArrayLike | None,
        rng: np.random.Generator,
        listener: StepListener,
        budget: Budget,
    ) -> tuple[NoisyModel, list[Any]]:
        noise_kernel = starting_noise_kernel(self.noise_kernel, self._standardizer, block, rng)
        judge = LearnedNoise(noise_kernel, self.n_noise_inducing / len(block))
        start = starting_point(self, self._standardizer, block, rng, judge)
        found = families.NoisyStart(start)
        if self.optimizer is not None:
            start_until, survey_until = budget.deadline(START_SHARE), budget.deadline(SURVEY_SHARE)
            found = families.noisy_start(
                block,
                start,
                "lbfgs",
                rng,
                lambda step: listener(step) or is_over(start_until),
                local=self._row.by_block,
                on_survey_step=lambda step: listener(step) or is_over(survey_until),
            )
        start = found.start
        n_blocks = self._n_blocks(row, len(block))
        rows, self._blocking = make_rows(self._row, block, start.kernel, n_blocks, labels, rng)
        is_exact = row.family is Family.EXACT
        problem = NoisyProblem(
            rows=rows,
            row=self._row,
            limits=families.limits_of(block, start.noise_var, found.least_noise_var),
            kernel=start.kernel,
            noise_var=start.noise_var,
            noise_kernel=noise_kernel,
            noise_mean=None if self.noise_mean is None else self.noise_mean - self._standardizer.log_noise_shift,
            inducing=self._in_units(self.inducing),
            noise_inducing=self._in_units(self.noise_inducing),
            # one block is the exact GP whatever the inducing inputs are
            n_inducing=1 if is_exact else self.n_inducing,
            n_noise_inducing=self.n_noise_inducing,
            learn=self.optimizer is not None,
            learn_inducing=not self._row.by_block if self.learn_inducing is None else self.learn_inducing,
            inference=self.inference,
            batch_size=self.batch_size,
            n_steps=self.n_steps,
            rng=rng,
            on_step=listener,
            learn_until=budget.deadline(LEARNING_SHARE),
            infer_until=budget.deadline(1.0),
        )
        model, stages = fit_noisy(problem)
        return model, [*start.stages, *stages]

    def _checked_parameters(self) -> Approximation:
        if self.inference == "lambda":
            raise InputError(
                "inference='lambda', one variational parameter a row, is no longer here: it had the same optimum as "
                "inference='exact', which is faster. Use 'exact'."
            )
        validation.require_choice("inference", self.inference, INFERENCE)
        validation.require_choice("optimizer", self.optimizer, ("lbfgs", None))
        for name in ("n_inducing", "n_noise_inducing", "batch_size", "n_steps"):
            validation.positive_count(name, getattr(self, name))
        if self.n_blocks is not None:
            validation.positive_count("n_blocks", self.n_blocks)
        if self.time_budget is not None:
            validation.positive_number("time_budget", self.time_budget)
        if self.noise_mean is not None and not math.isfinite(self.noise_mean):
            raise InputError(f"noise_mean is the log of a noise variance: a finite number; got {self.noise_mean!r}.")
        row = approximations.get(self.approximation, self.power)
        if row.family not in (Family.INDUCING, Family.EXACT):
            raise InputError(
                f"approximation={row.name!r} has no bound to learn a noise process from. Use 'vfe', 'pic', 'fitc' "
                "or 'exact'; for a subset of data, fit one of them to the rows of your choice."
            )
        if self.inference == "stochastic" and not (row.is_lower_bound and row.family is Family.INDUCING):
            raise InputError(
                f"inference='stochastic' is for approximation='vfe', whose bound is a sum over rows; got {row.name!r}."
            )
        self._row = approximations.get("pic") if row.family is Family.EXACT else row
        return row

    def _n_blocks(self, row: Approximation, n_rows: int) -> int:
        if row.family is Family.EXACT:
            require_dense_size(n_rows)
            return 1
        return self.n_blocks or max(1, round(n_rows / self.n_inducing))

    def _in_units(self, inducing: Any) -> Any:
        if isinstance(inducing, str):
            return inducing
        return self._standardizer.inputs(validation.inducing_array(inducing, self.n_features_in_))

    def _store(self, model: NoisyModel, block: Block, info: dict[str, Any]) -> None:
        units, g = self._standardizer, model.process
        self._model = model
        self.kernel_ = units.raw_kernel(model.state.prior.kernel)
        self.inducing_ = units.raw_inputs(model.state.prior.inducing.numpy())
        self.noise_kernel_ = units.raw_noise_kernel(g.prior.kernel)
        self.noise_inducing_ = units.raw_inputs(g.prior.inducing.numpy())
        self.noise_mean_ = float(g.mean) + units.log_noise_shift
        mean, var = g.predict(block.X)
        self.noise_var_ = float(torch.exp(mean + 0.5 * var).mean()) * units.y_scale**2
        self.log_evidence_ = model.bound
        self.info_ = {
            **info,
            "jitter": model.jitter,
            "inference_seconds": model.seconds,
            "evaluations": sum(stage.evaluations for stage in info["stages"]) + model.ascent_evaluations,
        }
        if self._blocking is not None:
            self.info_["n_blocks"] = self._blocking.partition.n_blocks

    def _new_rows(self, X: Any, blocks: ArrayLike | None) -> tuple[Tensor, Tensor | None]:
        """New rows in the model's units, and their blocks where predictions depend on them."""
        X = arrivals.new_inputs(self, X)
        inputs = self._standardizer.tensor(X)
        return inputs, labels_of_new(self._row, self._blocking, inputs, blocks)

    def _mixture(self, X: Any, blocks: ArrayLike | None) -> NoiseMixture:
        inputs, labels = self._new_rows(X, blocks)
        units = self._standardizer
        f_mean, f_var = units.raw_moments(*self._model.posterior.marginals(inputs, labels))
        g_mean, g_var = self._model.process.predict(inputs)
        return NoiseMixture(f_mean, f_var, g_mean.numpy() + units.log_noise_shift, g_var.numpy())

    def _latent_joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array]:
        inputs, labels = self._new_rows(X, blocks)
        return self._standardizer.raw_moments(*self._model.posterior.joint(inputs, labels))
