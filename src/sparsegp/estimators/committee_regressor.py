"""CommitteeGPRegressor: the scikit-learn shell of committees of experts."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from sparsegp import linalg, parallel
from sparsegp.cluster import executor_of
from sparsegp.committee import aggregation
from sparsegp.committee.aggregation import Aggregation
from sparsegp.committee.split import CHOICES as PARTITIONS
from sparsegp.core.inducing import CHOICES as INDUCING_CHOICES
from sparsegp.errors import InputError
from sparsegp.estimators import checks
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.fitted import Fitted
from sparsegp.estimators.opening import Given, Opened, named_cluster, opened
from sparsegp.estimators.progress import StepListener, with_callbacks
from sparsegp.files import schema
from sparsegp.fit.budget import Budget
from sparsegp.fit.committees import ExpertKind
from sparsegp.fit.kernel_choice import LearnedNoise
from sparsegp.fit.pipeline import Progress, steps
from sparsegp.fit.problem import CommitteeSpec, NoiseSpec, Problem
from sparsegp.fit.start import starting_noise_kernel
from sparsegp.infer import anytime_run
from sparsegp.infer.drift import Innovations
from sparsegp.kernels import Kernel
from sparsegp.learn.schedules import OPTIMIZERS

BACKENDS = ("threads", "processes")
ROWS_PER_EXPERT = 500
ROWS_STAY = "the experts of a committee get their rows from this process."


class CommitteeGPRegressor(Estimator):
    """Gaussian-process regression by experts on disjoint rows, with shared hyper-parameters.

    Parameters
    ----------
    kernel : as for SparseGPRegressor.
    expert : "exact", an approximation (all but "sor" and "nystrom"), or an expert that learns how
        the noise varies: "vshgp" (f sparse) and "vhgp" (f exact).
    power : alpha of "pep" and "block-pep" experts.
    n_experts : number of experts; None gives about 500 rows each. k-means may end with a few more or less.
    aggregation : "grbcm" | "rbcm" | "bcm" | "tpoe" | "gpoe" | "poe", how their answers become one (docs/committees.md).
        None is "tpoe" for experts that learn how the noise varies and "grbcm" for all others.
    partition : "kmeans" (compact in the metric of the kernel) or "random"; fit(blocks=...) gives your own.
    n_inducing, inducing : inducing inputs of each sparse expert: "kmeans", "random", "greedy".
    noise_kernel, n_noise_inducing : of the log noise g of "vshgp" and "vhgp", as in HeteroscedasticGPRegressor.
    noise_var : starting value of the noise variance in squared units of y; the value itself if `optimizer=None`.
    optimizer : "lbfgs" | "adam" | None (hyper-parameters and inducing inputs stay as given).
    learn_inducing : whether sparse experts learn their own inducing inputs.
    skip_tolerance : what distant experts that are not asked may change, all together: the variance relative to
        itself, the mean in prior standard deviations. 0 asks all experts everywhere.
    most_asked : experts asked about a row at the most, those whose rows are centred nearest to it; None: no limit but
        `skip_tolerance`. It bounds what a prediction costs, however many experts there are (docs/committees.md).
    time_budget : seconds that `fit` may take. Learning ends in time for the posteriors of all experts, which cannot be
        cut short; `info_["budget"]` says how it went (docs/time-budgets.md).
    categorical, columns : what is known of columns, as for SparseGPRegressor.
    normalize : standardise X and y inside; predictions come back in the user's units.
    n_jobs : experts computed at the same time, each in a thread or process of its own; None uses all cores.
    backend : where they are computed during `fit`, "threads" or "processes". Processes take a few seconds to start and
        are faster where learning takes minutes; the model is the same. Predictions always use threads.

    Attributes
    ----------
    kernel_, noise_var_ : the shared hyper-parameters in the user's units. With learned noise, noise_var_ is its mean
        over a sample of the rows of the fit, and noise_kernel_ and noise_mean_ are the prior of g.
    log_evidence_ : sum of the experts' log evidences or bounds, in the units they were computed in.
    info_ : number and sizes of experts at the fit, jitter, seconds, evaluations and stages of learning; "innovations"
        after updates.
    """

    kind = schema.COMMITTEE

    def __init__(
        self,
        kernel: Any = "se",
        expert: Any = "exact",
        power: float = 0.5,
        n_experts: int | None = None,
        aggregation: str | None = None,
        partition: str = "kmeans",
        n_inducing: int = 100,
        inducing: str = "kmeans",
        noise_kernel: Any = "se",
        n_noise_inducing: int = 100,
        noise_var: float | None = None,
        optimizer: str | None = "lbfgs",
        learn_inducing: bool = True,
        skip_tolerance: float = 1e-6,
        most_asked: int | None = None,
        time_budget: float | None = None,
        normalize: bool = True,
        n_jobs: int | None = None,
        backend: str = "threads",
        categorical: Any = "auto",
        columns: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.expert = expert
        self.power = power
        self.n_experts = n_experts
        self.aggregation = aggregation
        self.partition = partition
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.noise_kernel = noise_kernel
        self.n_noise_inducing = n_noise_inducing
        self.noise_var = noise_var
        self.optimizer = optimizer
        self.learn_inducing = learn_inducing
        self.skip_tolerance = skip_tolerance
        self.most_asked = most_asked
        self.time_budget = time_budget
        self.normalize = normalize
        self.n_jobs = n_jobs
        self.backend = backend
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
        noise_var: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
        client: Any = None,
        cluster: Any = None,
    ) -> Self:
        """Learn the shared hyper-parameters and compute every expert's posterior.

        `blocks` is an integer label per row: the expert it belongs to. `client` or `cluster`, a Dask client, a cluster
        or a scheduler's address, has the experts on its workers; the rows come from this process. The rest is as for
        SparseGPRegressor.
        """
        given = Given(X, y, target, noise_var, sample_weight, blocks)
        return self._fit(given, named_cluster(client, cluster))

    def _fit(self, given: Given, where: Any = None) -> Self:
        budget, (kind, rule) = Budget(self.time_budget, options=self.fit_options.budget), self.check_parameters()
        if self.most_asked is not None and self.partition == "random" and given.blocks is None:
            raise InputError(
                "most_asked= asks the experts nearest to a row, and with partition='random' none is nearer than "
                "another: use partition='kmeans', or leave most_asked=None."
            )
        seed = self._seed()
        with opened(
            self,
            given,
            seed=seed,
            budget=budget,
            can_stream=False,
            not_on_cluster=ROWS_STAY,
        ) as data:
            if data.block.noise_var is not None and kind.learns_noise:
                raise InputError(
                    f"expert={self.expert!r} learns the noise: give noise_var= per row to other experts only."
                )
            n_rows = len(data.block)
            n_experts = self._n_experts(n_rows) if data.labels is None else len(np.unique(data.labels))
            listener = StepListener(self, self.verbose)
            try:
                with linalg.flushed_denormals(), self._executor(where, n_experts) as executor:
                    committee = CommitteeSpec(
                        rule,
                        n_experts,
                        self.partition,
                        float(self.skip_tolerance),
                        self.most_asked,
                        self.n_jobs,
                        executor,
                    )
                    problem = self._problem(data, kind, committee, np.random.default_rng(seed), listener)
                    *_, last = steps(problem, data.rows, budget)
            finally:
                listener.close()
        info = _report(last, budget)
        self.assign(Fitted(last.model, data.scaling, info, data.n_given, data.columns, given.target, given=given))
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        noise_var: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
    ) -> Self:
        """Add rows, exactly: the model is then that of one fit of all rows with the same hyper-parameters, inducing
        inputs and division of the rows.

        The first call on a fresh estimator is an ordinary `fit`. Later on a row joins the expert in whose cell it lies.
        Where experts were given by labels, `blocks` has those of the new rows, and a new label is a new expert; without
        it a row joins the expert whose rows are centred nearest. With partition="random" it joins the expert with the
        fewest rows. Experts with new rows are computed again, all others stay as they are. A batch without rows changes
        nothing; one with an error leaves the model as it was.
        """
        given = Given(X, y, target, noise_var, sample_weight, blocks)
        return self._add(given) if self._is_fitted else self._fit(given)

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
        """Remove rows that are in the model, given as they were added; an expert without rows is not asked any more.

        A row that no expert has is an error that says which, and the model stays as it was.
        """
        check_is_fitted(self)
        return self._remove(Given(X, y, target, noise_var, sample_weight, blocks))

    def _executor(self, where: Any, n_experts: int) -> AbstractContextManager[parallel.Executor]:
        if where is not None:
            return executor_of(where)
        if self.backend == "processes":
            return parallel.Processes(parallel.n_workers(self.n_jobs, n_experts))
        return nullcontext(parallel.Threads(self.n_jobs))

    def _problem(
        self,
        data: Opened,
        kind: ExpertKind,
        committee: CommitteeSpec,
        rng: np.random.Generator,
        listener: StepListener,
    ) -> Problem:
        noise_kernel = starting_noise_kernel(self.noise_kernel, data.scaling, data.block, rng, data.groups)
        noise, judge = None, None
        if kind.learns_noise:
            noise = NoiseSpec(noise_kernel, self.n_noise_inducing, self.inducing)
            per_row = self.n_noise_inducing * committee.n_experts / len(data.block)
            judge = LearnedNoise(noise_kernel, per_row, self.fit_options.kernel_choice)
        return Problem(
            approx=kind.approx,
            start=self._start(data, rng, noise_var=self.noise_var, judge=judge),
            inducing=self.inducing,
            n_inducing=self.n_inducing,
            rng=rng,
            labels=data.labels,
            learn_inducing=self.learn_inducing,
            optimizer=self.optimizer,
            noise=noise,
            committee=committee,
            learning=self.fit_options.learning,
            on_step=listener,
        )

    @property
    def noise_kernel_(self) -> Kernel:
        """The kernel of g in the user's units, where the noise is learned."""
        return self.scaling_.raw_noise_kernel(self._noise_process.kernel)

    @property
    def noise_mean_(self) -> float:
        """The mean of g, log of squared units of y, where the noise is learned."""
        return float(self._noise_process.mean) + self.scaling_.log_noise_shift

    @property
    def _noise_process(self) -> Any:
        if not self.model_.learns_noise:
            raise AttributeError(f"expert={self.expert!r} has no noise process: its noise_var_ is one number.")
        return self.model_.noise_process

    def _n_experts(self, n_rows: int) -> int:
        if self.n_experts is None:
            return max(1, round(n_rows / ROWS_PER_EXPERT))
        if self.n_experts > n_rows:
            warnings.warn(
                f"n_experts={self.n_experts} is more than the {n_rows} rows: there is an expert for each row. "
                "An expert needs some hundred rows to be worth asking.",
                stacklevel=5,
            )
        return min(self.n_experts, n_rows)

    def check_parameters(self) -> tuple[ExpertKind, Aggregation]:
        checks.require_choice("optimizer", self.optimizer, (*OPTIMIZERS, None))
        checks.require_choice("inducing", self.inducing, INDUCING_CHOICES)
        checks.require_choice("partition", self.partition, PARTITIONS)
        checks.require_choice("backend", self.backend, BACKENDS)
        counts = {"n_inducing": self.n_inducing, "n_noise_inducing": self.n_noise_inducing}
        optional = {"n_experts": self.n_experts, "n_jobs": self.n_jobs, "most_asked": self.most_asked}
        for name, value in (*counts.items(), *((n, v) for n, v in optional.items() if v is not None)):
            checks.positive_count(name, value)
        for name, number in (("noise_var", self.noise_var), ("time_budget", self.time_budget)):
            if number is not None:
                checks.positive_number(name, number)
        if not 0.0 <= float(self.skip_tolerance) < 1.0:
            raise InputError(
                f"skip_tolerance must be at least 0 (ask everybody) and below 1; got {self.skip_tolerance!r}."
            )
        kind = ExpertKind.get(self.expert, self.power)
        usual = "tpoe" if kind.learns_noise else "grbcm"
        return kind, aggregation.get(usual if self.aggregation is None else self.aggregation)


def _report(last: Progress, budget: Budget) -> dict[str, Any]:
    """What `info_` says of a fit."""
    used = budget.used
    info = {**last.info, "innovations": Innovations().summary(), "seconds": used}
    if not budget.limited:
        return info
    if last.reason == anytime_run.TOO_SHORT:
        warnings.warn(
            f"time_budget={budget.asked:g} s was shorter than the inference of all experts, and the fit took "
            f"{used:.2g} s. The model is valid but rests on starting values: give it more time, or smaller "
            "experts (n_experts=).",
            stacklevel=3,
        )
    seen = {"rows_seen": last.rows_seen, "fraction": last.fraction, "reason": last.reason}
    return {**info, "budget": {"asked": budget.asked, "used": used, **seen}}
