"""CommitteeGPRegressor: the scikit-learn shell of committees of experts."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from sparsegp import memory, parallel, processes
from sparsegp.calibration.transform import TRANSFORMS
from sparsegp.cluster import executor_of
from sparsegp.committee import aggregation
from sparsegp.committee.aggregation import Aggregation
from sparsegp.committee.split import CHOICES as PARTITIONS
from sparsegp.core.inducing import CHOICES as INDUCING_CHOICES
from sparsegp.errors import InputError
from sparsegp.estimators import checks
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.fitting import Call, Posed
from sparsegp.estimators.given import Given
from sparsegp.estimators.listener import StepListener, with_callbacks
from sparsegp.estimators.opening import Needs, Opened, named_cluster
from sparsegp.files import schema
from sparsegp.fit.committees import ExpertKind
from sparsegp.fit.kernel_choice import LearnedNoise
from sparsegp.fit.posing import is_auto
from sparsegp.fit.problem import CommitteeSpec, NoiseSpec, Problem
from sparsegp.fit.start import starting_noise_kernel
from sparsegp.kernels import Kernel
from sparsegp.learn.schedules import OPTIMIZERS

BACKENDS = ("threads", "processes")
ROWS_PER_EXPERT = 500
USUALLY_ASKED = 8
ROWS_STAY = "the experts of a committee get their rows from this process."


class CommitteeGPRegressor(Estimator):
    """Gaussian-process regression by a committee: experts on disjoint rows, with shared hyper-parameters.

    Parameters
    ----------
    kernel : str, Kernel or scikit-learn kernel, default="se"
        The kernel of all experts, as in SparseGPRegressor.
    expert : str or mapping of str to float, default="exact"
        What an expert is: "exact", an approximation (not "sor" or "nystrom"), or "vshgp" or "vhgp", which learn how
        the noise varies with f sparse or exact.
    power : float, default=0.5
        The alpha of "pep" and "block-pep" experts.
    n_experts : int, default=None
        Number of experts. None gives each about 500 rows. k-means may end with a few more or fewer.
    aggregation : {"grbcm", "rbcm", "bcm", "tpoe", "gpoe", "poe"} or None, default=None
        How their answers become one. None is "tpoe" for experts that learn the noise and "grbcm" for all others.
    partition : {"kmeans", "random"}, default="kmeans"
        How rows are divided. `fit(blocks=...)` takes your own division.
    n_inducing : int, default=100
        Number of inducing inputs of each sparse expert.
    inducing : {"kmeans", "random", "greedy"}, default="kmeans"
        How they are chosen.
    noise_kernel : str or Kernel, default="se"
        The kernel of the log noise variance of "vshgp" and "vhgp".
    n_noise_inducing : int, default=100
        Number of inducing inputs of the log noise variance, for each expert.
    noise_var : float, default=None
        Where the noise variance starts, in squared units of y. It stays there if `optimizer` is None.
    optimizer : {"auto", "lbfgs", "adam"} or None, default="lbfgs"
        How hyper-parameters are learned. None learns nothing.
    learn_inducing : bool, default=True
        Whether sparse experts learn their inducing inputs.
    skip_tolerance : float, default=1e-6
        Distant experts are not asked if all of them together change the variance by less than this, relative to
        itself, and the mean by less than this many prior standard deviations. 0 asks all experts everywhere.
    most_asked : int, "auto" or None, default="auto"
        The largest number of experts asked about a row: those whose rows are centred nearest to it. "auto" is 8 where
        the cells of experts were found by k-means, and no limit elsewhere. None sets no limit.
    time_budget : float, default=None
        Seconds that `fit` may take. The posteriors of all experts are always computed in full.
    normalize : bool, default=True
        Standardise X and y inside. Everything that comes out is in the units of the data.
    target_transform : {"log", "log1p", "sqrt"} or None, default=None
        For targets with a natural zero, such as prices and durations: the model learns the transformed targets, and
        forecasts are carried back exactly. No interval reaches below zero. "log" takes targets above zero, "log1p" and
        "sqrt" also targets of zero. Kernel, noise and `latent=True` are those of the transformed targets.
    n_jobs : int, default=None
        Experts computed at the same time. None uses all cores.
    backend : {"threads", "processes"}, default="threads"
        Where experts are computed during `fit`. Processes take a few seconds to start and pay off where learning takes
        minutes. Predictions always use threads.
    categorical : "auto" or list of columns, default="auto"
        Columns that are categories though they hold numbers. Text, categories, booleans, dates and missing values are
        found in any case; `info_["columns"]` says as what.
    columns : mapping, default=None
        From columns to "number", "category", "date" or "ignore", or to the list of all levels of a category in their
        order. What is not named is found.
    random_state : int, RandomState or None, default=None
        Seed of every random choice.
    verbose : int or None, default=None
        1 prints a line a second during a fit, 0 nothing. None shows one line of progress after two seconds, on a
        terminal or in a notebook.

    Attributes
    ----------
    kernel_ : Kernel
        The shared kernel, in the units of the data.
    noise_var_ : float
        The noise variance, or its mean over a sample of rows where it is learned.
    noise_kernel_ : Kernel
        The kernel of the log noise variance, for "vshgp" and "vhgp".
    noise_mean_ : float
        The mean of the log noise variance, for "vshgp" and "vhgp".
    log_evidence_ : float
        Sum of the log evidences, or bounds, of the experts.
    info_ : dict
        How the model came about, with the number and sizes of the experts.

    See Also
    --------
    SparseGPRegressor : One model of all rows, with calibrated forecasts.

    Examples
    --------
    >>> import numpy as np
    >>> from sparsegp import CommitteeGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (120, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(120)
    >>> gp = CommitteeGPRegressor(n_experts=3, random_state=0).fit(X, y)
    >>> bool(abs(gp.predict([[0.5]])[0] - np.sin(1.0)) < 0.1)
    True
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
        most_asked: int | str | None = "auto",
        time_budget: float | None = None,
        normalize: bool = True,
        target_transform: str | None = None,
        n_jobs: int | None = None,
        backend: str = "threads",
        categorical: Any = "auto",
        columns: Any = None,
        random_state: Any = None,
        verbose: int | None = None,
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
        self.target_transform = target_transform
        self.n_jobs = n_jobs
        self.backend = backend
        self.categorical = categorical
        self.columns = columns
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks  # type: ignore[untyped-decorator]
    @memory.explained
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
        """Learn the shared hyper-parameters and compute the posterior of every expert.

        Parameters
        ----------
        X : array, table or path
            The rows, as in `SparseGPRegressor.fit`. They must fit into memory.
        y : array of shape (n_rows,), default=None
            The targets. Not given if `target` names their column.
        noise_var : array of shape (n_rows,) or str, default=None
            The known noise variance of each row. Not for experts that learn the noise.
        sample_weight : array of shape (n_rows,) or str, default=None
            A row with weight w counts as w equal rows.
        blocks : array of int of shape (n_rows,), default=None
            A label per row: the expert it belongs to.
        target : str, default=None
            The column of y, if X is a table or a file.
        client : dask Client, cluster or address, default=None
            Workers that compute the experts. The rows come from this process.
        cluster : dask cluster or address, default=None
            Another name for `client`.

        Returns
        -------
        self : CommitteeGPRegressor
            The fitted estimator.

        Raises
        ------
        InputError
            If a parameter or the data cannot be used.
        """
        given = Given(X, y, target, noise_var, sample_weight, blocks)
        return self._fit(self._call(given, workers=named_cluster(client, cluster)))

    def _needs(self, call: Call) -> Needs:
        self.check_parameters()
        if self._most_asked(call.given) is not None and self.partition == "random" and call.given.blocks is None:
            raise InputError(
                "most_asked= asks the experts nearest to a row, and with partition='random' none is nearer than "
                "another: use partition='kmeans', or leave most_asked=None."
            )
        return Needs(can_stream=False, not_on_cluster=ROWS_STAY)

    @contextmanager
    def _posed(self, call: Call, data: Opened, rng: np.random.Generator, listener: StepListener) -> Iterator[Posed]:
        kind, rule = self.check_parameters()
        if data.block.noise_var is not None and kind.learns_noise:
            raise InputError(f"expert={self.expert!r} learns the noise: give noise_var= per row to other experts only.")
        n_experts = self._n_experts(len(data.block)) if data.labels is None else len(np.unique(data.labels))
        with self._executor(call.workers, n_experts) as executor:
            committee = CommitteeSpec(
                rule,
                n_experts,
                self.partition,
                float(self.skip_tolerance),
                self._most_asked(call.given),
                self.n_jobs,
                executor,
            )
            problem = self._problem(call, data, kind, committee, rng, listener)
            yield Posed(problem, {}, "the inference of all experts", ", or smaller experts (n_experts=)")

    @memory.explained
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
        """Add rows, exactly. The result is the model of all rows with the same hyper-parameters and the same division.

        The first call on a fresh estimator is an ordinary `fit`. Later on, a row joins the expert in whose cell it
        lies. With partition="random" it joins the expert with the fewest rows. Only experts with new rows are computed
        again. A batch with an error leaves the model as it was.

        Parameters
        ----------
        X : array or table
            The new rows.
        y : array of shape (n_rows,), default=None
            Their targets.
        noise_var : array of shape (n_rows,) or str, default=None
            Known noise variances. To be given if and only if the first fit had them.
        sample_weight : array of shape (n_rows,) or str, default=None
            A row with weight w counts as w equal rows.
        blocks : array of int of shape (n_rows,), default=None
            The expert of each row, where experts were given by labels. A new label is a new expert. Without labels a
            row joins the nearest expert.
        target : str, default=None
            The column of y, if X is a table.

        Returns
        -------
        self : CommitteeGPRegressor
            The updated estimator.

        Raises
        ------
        InputError
            If the rows cannot be used.
        """
        given = Given(X, y, target, noise_var, sample_weight, blocks)
        return self._add(given) if self._is_fitted else self._fit(self._call(given))

    @memory.explained
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
        """Remove rows that are in the model. An expert without rows is no longer used.

        Parameters
        ----------
        X : array or table
            The rows to remove, as they were added.
        y : array of shape (n_rows,), default=None
            Their targets.
        noise_var : array of shape (n_rows,) or str, default=None
            Their noise variances, if they had any.
        sample_weight : array of shape (n_rows,) or str, default=None
            Their weights, if they had any.
        blocks : array of int of shape (n_rows,), default=None
            Their experts, where experts were given by labels.
        target : str, default=None
            The column of y, if X is a table.

        Returns
        -------
        self : CommitteeGPRegressor
            The estimator without these rows.

        Raises
        ------
        InputError
            If no expert has one of the rows. The message says which. The model stays as it was.
        """
        check_is_fitted(self)
        return self._remove(Given(X, y, target, noise_var, sample_weight, blocks))

    def _executor(self, where: Any, n_experts: int) -> AbstractContextManager[parallel.Executor]:
        if where is not None:
            return executor_of(where)
        if self.backend == "processes":
            return processes.Processes(parallel.n_workers(self.n_jobs, n_experts))
        return nullcontext(parallel.Threads(self.n_jobs))

    def _problem(
        self,
        call: Call,
        data: Opened,
        kind: ExpertKind,
        committee: CommitteeSpec,
        rng: np.random.Generator,
        listener: StepListener,
    ) -> Problem:
        noise_kernel = starting_noise_kernel(self.noise_kernel, data.start_rows, rng)
        noise, judge = None, None
        if kind.learns_noise:
            noise = NoiseSpec(noise_kernel, self.n_noise_inducing, self.inducing)
            per_row = self.n_noise_inducing * committee.n_experts / len(data.block)
            judge = LearnedNoise(noise_kernel, per_row, self.fit_options.kernel_choice)
        start, _ = self._begun(call, data, rng, noise_var=self.noise_var, judge=judge)
        return Problem(
            approx=kind.approx,
            start=start,
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
                stacklevel=6,
            )
        return min(self.n_experts, n_rows)

    def _most_asked(self, given: Given) -> int | None:
        """Experts given by labels need not lie where their rows are: all of them are asked by default."""
        asked: Any = self.most_asked
        if not is_auto(asked):
            return None if asked is None else int(asked)
        return USUALLY_ASKED if self.partition == "kmeans" and given.blocks is None else None

    def check_parameters(self) -> tuple[ExpertKind, Aggregation]:
        checks.require_choice("optimizer", self.optimizer, (*OPTIMIZERS, None))
        checks.require_choice("inducing", self.inducing, INDUCING_CHOICES)
        checks.require_choice("partition", self.partition, PARTITIONS)
        checks.require_choice("backend", self.backend, BACKENDS)
        checks.require_choice("target_transform", self.target_transform, (*TRANSFORMS, None))
        counts = {"n_inducing": self.n_inducing, "n_noise_inducing": self.n_noise_inducing}
        optional: dict[str, Any] = {"n_experts": self.n_experts, "n_jobs": self.n_jobs}
        if not is_auto(self.most_asked):
            optional["most_asked"] = self.most_asked
        for name, value in (*counts.items(), *((n, v) for n, v in optional.items() if v is not None)):
            checks.positive_count(name, value)
        for name, number in (("noise_var", self.noise_var), ("time_budget", self.time_budget)):
            if number is not None:
                checks.positive_number(name, number)
        if not 0.0 <= float(self.skip_tolerance) < 1.0:
            raise InputError(
                f"skip_tolerance must be at least 0 (ask all experts) and below 1; got {self.skip_tolerance!r}."
            )
        kind = ExpertKind.get(self.expert, self.power)
        usual = "tpoe" if kind.learns_noise else "grbcm"
        return kind, aggregation.get(usual if self.aggregation is None else self.aggregation)
