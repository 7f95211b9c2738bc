"""HeteroscedasticGPRegressor: learned input-dependent noise for any approximation of the table."""

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from sparsegp import linalg
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.dense import require_dense_size
from sparsegp.core.predictive import Array
from sparsegp.errors import InputError
from sparsegp.estimators import checks
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.fitted import Fitted
from sparsegp.estimators.opening import Given, Opened, named_cluster, opened
from sparsegp.estimators.progress import StepListener, with_callbacks
from sparsegp.files import schema
from sparsegp.fit.kernel_choice import LearnedNoise
from sparsegp.fit.learned_noise import ALL_ROWS, INFERENCES
from sparsegp.fit.pipeline import fit
from sparsegp.fit.problem import NoiseSpec, Problem
from sparsegp.fit.start import starting_noise_kernel
from sparsegp.fit.trends import TRENDS
from sparsegp.infer.drift import Innovations
from sparsegp.kernels import Kernel


class HeteroscedasticGPRegressor(Estimator):
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
    learn_inducing : whether the inducing inputs of f and g are learned. None: yes, but not for approximations with
        blocks, which carry what is local (measured in docs/heteroscedastic.md).
    inference : "exact" (natural gradients, f eliminated) or "stochastic" (SVSHGP: mini-batches; "vfe" only).
    batch_size, n_steps : of "stochastic".
    time_budget : seconds that `fit` may take. Learning ends in time for inference, but that is from all rows: it takes
        a few passes over them however short the budget is.
    trend : "auto" | "linear" | "constant" | None, of f, as in SparseGPRegressor.
    categorical, columns : what is known of columns, as in SparseGPRegressor.

    Attributes
    ----------
    kernel_, inducing_, noise_kernel_, noise_inducing_, noise_mean_ : the fitted model in the user's units.
    noise_var_ : mean noise variance over the rows of `fit`.
    log_evidence_ : the bound at the fitted hyper-parameters, in the units it was computed in.
    info_ : jitter, seconds, evaluations and stages of learning, number of blocks, innovations of a stream.
    """

    kind = schema.LEARNED_NOISE

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
        trend: str | None = "auto",
        normalize: bool = True,
        categorical: Any = "auto",
        columns: Any = None,
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
        self.trend = trend
        self.normalize = normalize
        self.categorical = categorical
        self.columns = columns
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks  # type: ignore[untyped-decorator]
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
        client: Any = None,
        cluster: Any = None,
    ) -> Self:
        """Learn hyper-parameters and the posteriors of f and g. Arguments as in SparseGPRegressor.fit.

        Rows of a file larger than memory are read in every pass, those of a cluster stay on its workers; "exact" needs
        all of them in memory.
        """
        named = named_cluster(client, cluster)
        return self._fit(Given(X, y, target, None, sample_weight, blocks, named))

    def _fit(self, given: Given) -> Self:
        budget, approx, seed = self.fit_options.started(self.time_budget), self.check_parameters(), self._seed()
        is_sum = approx.family is Family.INDUCING
        with opened(
            self,
            given,
            seed=seed,
            budget=budget,
            can_stream=is_sum,
            streams_arrays=not approx.by_block,
            not_on_cluster=None if is_sum else f"approximation={approx.name!r} is one block of all rows.",
            options=self.fit_options.opening,
        ) as data:
            listener = StepListener(self, self.verbose)
            try:
                with linalg.flushed_denormals():
                    problem = self._problem(data, approx, np.random.default_rng(seed), listener)
                    model, info = fit(problem, data.rows, budget)
            finally:
                listener.close()
        trend = None if model.trend is None else model.trend.name
        info = {**info, "innovations": Innovations().summary(), "trend": trend, "seconds": budget.used}
        if budget.limited:
            fraction = data.n_given / max(data.n_all, 1) if data.was_cut else 1.0
            seen = {"rows_seen": data.n_given, "fraction": fraction, "reason": ALL_ROWS}
            info["budget"] = {"asked": budget.asked, "used": budget.used, **seen}
        self.assign(Fitted(model, data.scaling, info, data.n_given, data.columns, given.target))
        return self

    def _problem(
        self, data: Opened, approx: Approximation, rng: np.random.Generator, listener: StepListener
    ) -> Problem:
        n_rows = len(data.rows)
        is_exact = approx.family is Family.EXACT
        if is_exact:
            require_dense_size(n_rows)
        noise_kernel = starting_noise_kernel(self.noise_kernel, data.scaling, data.block, rng, data.groups)
        mean = None if self.noise_mean is None else self.noise_mean - data.scaling.log_noise_shift
        # an exact f is PIC with one block, whatever its inducing input
        approx = approximations.get("pic") if is_exact else approx
        noise = NoiseSpec(
            noise_kernel,
            self.n_noise_inducing,
            self._scaled(self.noise_inducing, data),
            mean,
            self.inference,
            self.batch_size,
            self.n_steps,
        )
        trend = self._trend(data, self.trend)
        judge = LearnedNoise(noise_kernel, self.n_noise_inducing / n_rows, self.fit_options.kernel_choice)
        return Problem(
            approx=approx,
            start=self._start(data, rng, judge=judge, trend=trend),
            inducing=self._scaled(self.inducing, data),
            n_inducing=1 if is_exact else self.n_inducing,
            rng=rng,
            n_blocks=1 if is_exact else self.n_blocks,
            labels=data.labels,
            learn_inducing=not approx.by_block if self.learn_inducing is None else self.learn_inducing,
            optimizer=self.optimizer,
            trend=trend,
            noise=noise,
            learning=self.fit_options.learning,
            on_step=listener,
        )

    def _scaled(self, inducing: Any, data: Opened) -> Any:
        if isinstance(inducing, str):
            return inducing
        return data.scaling.inputs(checks.inducing_array(inducing, data.columns.layout.n_features))

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
        given = Given(X, y, target, None, sample_weight, blocks)
        if self._is_fitted:
            return self._add(given)
        approx = self.check_parameters()
        if blocks is None and approx.by_block and not approx.is_local:
            batch, _ = checks.training_batch(self, X, y, target=target, sample_weight=sample_weight)
            given = replace(given, blocks=np.zeros(len(batch), dtype=np.int64))
        return self._fit(given)

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
        return self._remove(Given(X, y, target, None, sample_weight, blocks))

    @property
    def inducing_(self) -> Array:
        """The inducing inputs of f in the user's units."""
        return self.scaling_.raw_inputs(self.model_.inducing.numpy())

    @property
    def noise_kernel_(self) -> Kernel:
        """The kernel of g in the user's units."""
        return self.scaling_.raw_noise_kernel(self.model_.process.prior.kernel)

    @property
    def noise_inducing_(self) -> Array:
        """The inducing inputs of g in the user's units."""
        return self.scaling_.raw_inputs(self.model_.process.prior.inducing.numpy())

    @property
    def noise_mean_(self) -> float:
        """The mean of g, log of squared units of y."""
        return float(self.model_.process.mean) + self.scaling_.log_noise_shift

    def check_parameters(self) -> Approximation:
        if self.inference == "lambda":
            raise InputError(
                "inference='lambda', one variational parameter a row, is no longer here: it had the same optimum as "
                "inference='exact', which is faster. Use 'exact'."
            )
        checks.require_choice("inference", self.inference, INFERENCES)
        checks.require_choice("optimizer", self.optimizer, ("lbfgs", None))
        checks.require_choice("trend", self.trend, TRENDS)
        for name in ("n_inducing", "n_noise_inducing", "batch_size", "n_steps"):
            checks.positive_count(name, getattr(self, name))
        if self.n_blocks is not None:
            checks.positive_count("n_blocks", self.n_blocks)
        if self.time_budget is not None:
            checks.positive_number("time_budget", self.time_budget)
        if self.noise_mean is not None and not math.isfinite(self.noise_mean):
            raise InputError(f"noise_mean is the log of a noise variance: a finite number; got {self.noise_mean!r}.")
        approx = approximations.get(self.approximation, self.power)
        if approx.family not in (Family.INDUCING, Family.EXACT):
            raise InputError(
                f"approximation={approx.name!r} has no bound to learn a noise process from. Use 'vfe', 'pic', 'fitc' "
                "or 'exact'; for a subset of data, fit one of them to the rows of your choice."
            )
        if self.inference == "stochastic" and not (approx.is_lower_bound and approx.family is Family.INDUCING):
            raise InputError(
                "inference='stochastic' is for approximation='vfe', whose bound is a sum over rows; got "
                f"{approx.name!r}."
            )
        return approx
