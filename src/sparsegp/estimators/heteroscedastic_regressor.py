"""HeteroscedasticGPRegressor: learned input-dependent noise for any approximation of the table."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from sparsegp import memory
from sparsegp.calibration.transform import TRANSFORMS
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.dense import require_dense_size
from sparsegp.core.predictive import Array
from sparsegp.errors import InputError
from sparsegp.estimators import checks
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.fitting import Call, Posed
from sparsegp.estimators.given import Given
from sparsegp.estimators.listener import StepListener, with_callbacks
from sparsegp.estimators.opening import Needs, Opened, first_of_stream, named_cluster
from sparsegp.files import schema
from sparsegp.fit.kernel_choice import LearnedNoise
from sparsegp.fit.learned_noise import INFERENCES
from sparsegp.fit.problem import NoiseSpec, Problem
from sparsegp.fit.start import starting_noise_kernel
from sparsegp.fit.trends import TRENDS
from sparsegp.kernels import Kernel


class HeteroscedasticGPRegressor(Estimator):
    """Gaussian-process regression with learned noise: its variance exp(g(x)) is a second, sparse Gaussian process.

    Parameters
    ----------
    kernel : str, Kernel or scikit-learn kernel, default="se"
        The kernel of f, as in SparseGPRegressor.
    approximation : str or mapping of str to float, default="vfe"
        The approximation of f, as in SparseGPRegressor but not "auto", "sod" or "nystrom". "vfe" is VSHGP of paper
        001. "pic" keeps f local and the noise process global. "exact" is VHGP with a sparse noise process.
    power : float, default=0.5
        The alpha of "pep" and "block-pep".
    n_inducing : int, default=512
        Number of inducing inputs of f.
    inducing : str or array of shape (n_inducing, n_features), default="kmeans"
        How they are chosen: "kmeans", "random", "greedy", or an array.
    n_blocks : int, default=None
        Number of blocks of "pitc", "pic" and "block-pep". None makes blocks of about `n_inducing` rows.
    noise_kernel : str or Kernel, default="se"
        The kernel of g, the log of the noise variance. A kernel object is in the units of X; g has no unit.
    n_noise_inducing : int, default=128
        Number of inducing inputs of g.
    noise_inducing : str or array, default="kmeans"
        How they are chosen, as `inducing`.
    noise_mean : float, default=None
        Where the mean of g starts: the log of a variance in squared units of y. It stays there if `optimizer` is None.
    optimizer : {"lbfgs"} or None, default="lbfgs"
        How hyper-parameters and inducing inputs are learned. None learns nothing.
    learn_inducing : bool, default=None
        Whether the inducing inputs of f and g are learned. None learns them unless the approximation has blocks.
    inference : {"exact", "stochastic"}, default="exact"
        "exact" takes natural-gradient steps over all rows. "stochastic" learns from mini-batches ("vfe" only).
    batch_size : int, default=1024
        Rows of a mini-batch of "stochastic".
    n_steps : int, default=2000
        Number of steps of "stochastic".
    time_budget : float, default=None
        Seconds that `fit` may take. Inference needs a few passes over all rows, however short the budget is.
    trend : {"auto", "linear", "constant"} or None, default="auto"
        The trend of f, as in SparseGPRegressor.
    normalize : bool, default=True
        Standardise X and y inside. Everything that comes out is in the units of the data.
    target_transform : {"log", "log1p", "sqrt"} or None, default=None
        For targets with a natural zero, such as prices and durations: the model learns the transformed targets, and
        forecasts are carried back exactly. No interval reaches below zero. "log" takes targets above zero, "log1p" and
        "sqrt" also targets of zero. Kernel, noise and `latent=True` are those of the transformed targets.
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
        The fitted kernel of f, in the units of the data.
    inducing_ : ndarray of shape (n_inducing, n_features)
        The inducing inputs of f, in the units of the data.
    noise_kernel_ : Kernel
        The fitted kernel of g.
    noise_inducing_ : ndarray of shape (n_noise_inducing, n_features)
        The inducing inputs of g, in the units of the data.
    noise_mean_ : float
        The mean of g, the log of a variance in squared units of y.
    noise_var_ : float
        The mean noise variance over the rows of the fit.
    log_evidence_ : float
        The bound of the log evidence of the scaled rows.
    info_ : dict
        How the model came about, as in SparseGPRegressor.

    See Also
    --------
    SparseGPRegressor : Faster, and its calibrated forecasts also follow noise that varies.

    Examples
    --------
    >>> import numpy as np
    >>> from sparsegp import HeteroscedasticGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 1, (200, 1))
    >>> y = np.sin(6 * X[:, 0]) + np.where(X[:, 0] > 0.5, 0.5, 0.05) * rng.standard_normal(200)
    >>> gp = HeteroscedasticGPRegressor(n_inducing=15, n_noise_inducing=10, random_state=0).fit(X, y)
    >>> _, _, noise_std = gp.predict_components([[0.2], [0.8]])
    >>> bool(noise_std[0] < noise_std[1])
    True
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
        target_transform: str | None = None,
        categorical: Any = "auto",
        columns: Any = None,
        random_state: Any = None,
        verbose: int | None = None,
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
        self.target_transform = target_transform
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
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
        client: Any = None,
        cluster: Any = None,
    ) -> Self:
        """Learn hyper-parameters and the posteriors of f and g.

        Parameters
        ----------
        X : array, table, path, dask collection or iterable of batches
            The rows, as in `SparseGPRegressor.fit`. Rows of a large file are read in every pass. Those of a cluster
            stay on its workers. approximation="exact" needs all rows in memory.
        y : array of shape (n_rows,), default=None
            The targets. Not given if `target` names their column.
        sample_weight : array of shape (n_rows,) or str, default=None
            A row with weight w counts as w equal rows.
        blocks : array of int of shape (n_rows,), default=None
            A block label per row, for the approximations with blocks.
        target : str, default=None
            The column of y, if X is a table or a file.
        client : dask Client, cluster or address, default=None
            Workers that do the work.
        cluster : dask cluster or address, default=None
            Another name for `client`.

        Returns
        -------
        self : HeteroscedasticGPRegressor
            The fitted estimator.

        Raises
        ------
        InputError
            If a parameter or the data cannot be used.
        """
        named = named_cluster(client, cluster)
        return self._fit(self._call(Given(X, y, target, None, sample_weight, blocks, named)))

    def _needs(self, call: Call) -> Needs:
        approx = self.check_parameters()
        is_sum = approx.family is Family.INDUCING
        why_not = None if is_sum else f"approximation={approx.name!r} is one block of all rows."
        return Needs(is_sum, not approx.by_block, why_not)

    @contextmanager
    def _posed(self, call: Call, data: Opened, rng: np.random.Generator, listener: StepListener) -> Iterator[Posed]:
        approx, n_rows = approximations.get(self.approximation, self.power), len(data.rows)
        is_exact = approx.family is Family.EXACT
        if is_exact:
            require_dense_size(n_rows)
        noise_kernel = starting_noise_kernel(self.noise_kernel, data.start_rows, rng)
        mean = None if self.noise_mean is None else self.noise_mean - data.scaling.log_noise_shift
        # an exact f is PIC with one block, whatever its inducing input
        approx = approximations.get("pic") if is_exact else approx
        noise = NoiseSpec(
            noise_kernel,
            self.n_noise_inducing,
            self._scaled_inducing(self.noise_inducing, data),
            mean,
            self.inference,
            self.batch_size,
            self.n_steps,
        )
        judge = LearnedNoise(noise_kernel, self.n_noise_inducing / n_rows, self.fit_options.kernel_choice)
        start, trend = self._begun(call, data, rng, trend=self.trend, judge=judge)
        problem = Problem(
            approx=approx,
            start=start,
            inducing=self._scaled_inducing(self.inducing, data),
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
        yield Posed(problem)

    @memory.explained
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
    ) -> Self:
        """Add rows. The first call on a fresh estimator is an ordinary `fit`.

        Hyper-parameters and the noise process stay as they were learned. A row counts with the noise that is expected
        at its place. Fit again when the noise itself changes. A batch with an error leaves the model as it was.

        Parameters
        ----------
        X : array or table
            The new rows.
        y : array of shape (n_rows,), default=None
            Their targets.
        sample_weight : array of shape (n_rows,) or str, default=None
            A row with weight w counts as w equal rows.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, for the approximations with blocks.
        target : str, default=None
            The column of y, if X is a table.

        Returns
        -------
        self : HeteroscedasticGPRegressor
            The updated estimator.

        Raises
        ------
        InputError
            If the rows cannot be used.
        """
        given = Given(X, y, target, None, sample_weight, blocks)
        if self._is_fitted:
            return self._add(given)
        return self._fit(self._call(first_of_stream(self, given, self.check_parameters())))

    @memory.explained
    def forget(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
    ) -> Self:
        """Remove rows that were added before. The noise process stays as it was learned.

        Parameters
        ----------
        X : array or table
            The rows to remove, as they were added.
        y : array of shape (n_rows,), default=None
            Their targets.
        sample_weight : array of shape (n_rows,) or str, default=None
            Their weights, if they had any.
        blocks : array of int of shape (n_rows,), default=None
            Their block labels, for the approximations with blocks.
        target : str, default=None
            The column of y, if X is a table.

        Returns
        -------
        self : HeteroscedasticGPRegressor
            The estimator without these rows.

        Raises
        ------
        InputError
            If the rows cannot have been added. The model stays as it was.
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
        checks.require_choice("target_transform", self.target_transform, (*TRANSFORMS, None))
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
