"""SparseGPRegressor: the scikit-learn shell of every approximation in the table."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sparsegp import memory, metrics
from sparsegp.calibration.transform import TRANSFORMS
from sparsegp.checked import as_numbers
from sparsegp.cluster.client import connected
from sparsegp.cluster.shares import sum_over
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.predictive import Array
from sparsegp.data import with_encoding
from sparsegp.errors import FingerprintError, InputError
from sparsegp.estimators import checks
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.fitted import Fitted
from sparsegp.estimators.fitting import Call, Posed
from sparsegp.estimators.given import Given
from sparsegp.estimators.listener import Intention, StepListener, with_callbacks
from sparsegp.estimators.opening import Needs, Opened, cluster_of, first_of_stream, is_dask, named_cluster
from sparsegp.files import schema
from sparsegp.fit import posing
from sparsegp.fit.budget import Budget
from sparsegp.fit.checkpoint import Checkpoint, Resumption, task_name
from sparsegp.fit.model import Model, RowSumOf
from sparsegp.fit.posing import AskedModel, is_auto
from sparsegp.fit.problem import CALIBRATIONS, Problem, StepOptions
from sparsegp.fit.progress import Progress
from sparsegp.fit.trends import TRENDS
from sparsegp.infer.anytime import Reading
from sparsegp.kernels import get as kernel_class
from sparsegp.learn import natural, srgp
from sparsegp.learn.schedules import OPTIMIZERS

DTYPES = {"float64": torch.float64, "float32": torch.float32}
INFERENCES = ("exact", "anytime")
READINGS = {"all": Reading.RATIO, "seen": Reading.SEEN}


class SparseGPRegressor(Estimator):
    """Gaussian-process regression for a hundred to millions of rows.

    With nothing set, the estimator chooses kernel, approximation and trend, and it calibrates its forecasts on rows
    that the model has not seen.

    Parameters
    ----------
    kernel : str, Kernel or scikit-learn kernel, default="auto"
        The covariance function. A name is one of "auto", "se", "matern12", "matern32", "matern52" and "rq". "auto"
        compares "se" and the Matern kernels on rows left out, and is "matern32" if `optimizer` is None. A name starts
        with one lengthscale per column, from the distances between rows. A kernel object has its parameters in the
        units of the data. A kernel class of your own sees standardised inputs if `normalize` is True.
    approximation : str or mapping of str to float, default="auto"
        One of "exact", "sod", "sor", "dtc", "fitc", "fic", "pitc", "pic", "vfe", "pep", "block-pep" and "nystrom". A
        mapping of names to weights is a linear combination. "auto" is "exact" for up to 1,500 rows and "pic" for more.
        It is "vfe" for rows that come in batches or fade. `info_["choice"]` says what was chosen and why.
    power : float, default=0.5
        The alpha of "pep" and "block-pep": from 0, which is "vfe", to 1, which is "fitc" or "pitc".
    n_inducing : int or "auto", default=512
        Number of inducing inputs. "auto" takes it from the number of rows and the time budget.
    inducing : str or array of shape (n_inducing, n_features), default="kmeans"
        How the inducing inputs are chosen: "kmeans", "random" or "greedy". An array is used as it is.
    n_blocks : int, default=None
        Number of blocks of "pitc", "pic" and "block-pep". None makes blocks of about `n_inducing` rows.
    noise_var : float, default=None
        Where the noise variance starts, in squared units of y. It stays there if `optimizer` is None.
    optimizer : {"auto", "lbfgs", "srgp", "ngd", "adam"} or None, default="auto"
        How hyper-parameters and inducing inputs are learned. "auto" is "lbfgs", or "ngd" where an approximation by
        blocks has a short time budget. None learns nothing.
    learn_inducing : bool, default=True
        Whether the inducing inputs are learned together with the hyper-parameters.
    inference : {"exact", "anytime"}, default="exact"
        "exact" computes the posterior in one pass over all rows. "anytime" goes block by block and can stop early.
    time_budget : float, default=None
        Seconds that `fit` may take as a whole. None learns until it is done.
    calibration : {"auto", "shape", "scale"} or None, default="auto"
        What is learned from the residuals of rows left out. "shape" learns one shape for all forecasts. "scale" also
        learns where forecasts must be wider or narrower. "auto" takes what these rows prefer. None keeps the Gaussian
        of the model, and so does "auto" if `optimizer` is None.
    trend : {"auto", "linear", "constant"} or None, default="auto"
        What f follows besides the kernel. Its coefficients have a broad prior and are integrated out. Far from the
        data, forecasts follow the trend. "auto" is "linear" where the rows support it and "constant" elsewhere. It is
        None if `optimizer` is None or `normalize` is False.
    reading : {"all", "seen"}, default="all"
        What a model says that has seen a part of the rows: "all" extrapolates to all rows, "seen" does not.
    stop_error : float, default=None
        "anytime" inference stops when the sampling error left in the mean is below this share of the predictive std.
    normalize : bool, default=True
        Standardise X and y inside. Everything that comes out is in the units of the data.
    target_transform : {"log", "log1p", "sqrt"} or None, default=None
        For targets with a natural zero, such as prices and durations: the model learns the transformed targets, and
        forecasts are carried back exactly. No interval reaches below zero. "log" takes targets above zero, "log1p" and
        "sqrt" also targets of zero. Kernel, noise and `latent=True` are those of the transformed targets.
    window : int, default=None
        `partial_fit` keeps the last `window` rows and forgets older ones, exactly.
    half_life : float, default=None
        After this many rows of `partial_fit`, a row counts half.
    clip_variances : bool, default=False
        "nystrom" only: clip negative variances instead of raising an error.
    categorical : "auto" or list of columns, default="auto"
        Columns that are categories though they hold numbers. Text, categories, booleans, dates and missing values are
        found in any case; `info_["columns"]` says as what.
    columns : mapping, default=None
        From columns to "number", "category", "date" or "ignore", or to the list of all levels of a category in their
        order. What is not named is found.
    device : str, default="cpu"
        Where passes over rows run, as torch names it.
    dtype : {"float64", "float32"}, default="float64"
        Precision of passes over rows. Matrices of inducing inputs are always float64.
    random_state : int, RandomState or None, default=None
        Seed of every random choice.
    verbose : int or None, default=None
        1 prints a line a second during a fit, 0 nothing. None shows one line of progress after two seconds, on a
        terminal or in a notebook.

    Attributes
    ----------
    kernel_ : Kernel
        The fitted kernel, in the units of the data.
    noise_var_ : float
        The noise variance, in squared units of y.
    inducing_ : ndarray of shape (n_inducing, n_features)
        The inducing inputs, in the units of the data.
    log_evidence_ : float
        Log evidence, or its bound, of the scaled rows.
    n_samples_seen_ : int
        Number of rows behind the model.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of str
        Names of the columns, if X had any.
    info_ : dict
        How the model came about: "choice", "calibration", "trend", "budget", "stages" of learning, "seconds", "jitter"
        and "innovations" of a stream.

    See Also
    --------
    HeteroscedasticGPRegressor : Learns how the noise varies, as a second Gaussian process.
    CommitteeGPRegressor : Joins the answers of many local experts.

    Examples
    --------
    >>> import numpy as np
    >>> from sparsegp import SparseGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (80, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(80)
    >>> gp = SparseGPRegressor(kernel="se", random_state=0).fit(X, y)
    >>> mean, std = gp.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.0)) < 0.1)
    True
    >>> lower, upper = gp.predict_interval([[0.5]], coverage=0.9)
    >>> bool(lower[0] < mean[0] < upper[0])
    True
    """

    kind = schema.SPARSE

    def __init__(
        self,
        kernel: Any = "auto",
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
        calibration: str | None = "auto",
        trend: str | None = "auto",
        reading: str = "all",
        stop_error: float | None = None,
        normalize: bool = True,
        target_transform: str | None = None,
        window: int | None = None,
        half_life: float | None = None,
        clip_variances: bool = False,
        categorical: Any = "auto",
        columns: Any = None,
        device: str = "cpu",
        dtype: str = "float64",
        random_state: Any = None,
        verbose: int | None = None,
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
        self.calibration = calibration
        self.trend = trend
        self.reading = reading
        self.stop_error = stop_error
        self.normalize = normalize
        self.target_transform = target_transform
        self.window = window
        self.half_life = half_life
        self.clip_variances = clip_variances
        self.categorical = categorical
        self.columns = columns
        self.device = device
        self.dtype = dtype
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
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Learn hyper-parameters and compute the posterior.

        Parameters
        ----------
        X : array, table, path, dask collection or iterable of batches
            The rows. A numpy array of shape (n_rows, n_features), a pandas, polars or pyarrow table, the path of a
            Parquet or CSV file or folder, a dask collection, or an iterable of batches. Rows that do not fit into
            memory are read as they are needed.
        y : array of shape (n_rows,), default=None
            The targets. Not given if `target` names their column.
        noise_var : array of shape (n_rows,) or str, default=None
            The known noise variance of each row, or the name of its column. The noise is not learned then, and
            forecasts of y use the mean of these variances.
        sample_weight : array of shape (n_rows,) or str, default=None
            A row with weight w counts as w equal rows, exactly.
        blocks : array of int of shape (n_rows,), default=None
            A block label per row, for the approximations with blocks.
        target : str, default=None
            The column of y, if X is a table or a file.
        client : dask Client, cluster or address, default=None
            Workers that do the work. For a dask collection the client in use is taken by default.
        cluster : dask cluster or address, default=None
            Another name for `client`.
        checkpoint : path, default=None
            A file for the state of learning. If the process is killed, the same call continues from it.

        Returns
        -------
        self : SparseGPRegressor
            The fitted estimator.

        Raises
        ------
        InputError
            If a parameter or the data cannot be used. The message says what to give instead.
        FactorizationError
            If a covariance matrix is not positive definite.
        """
        given = Given(X, y, target, noise_var, sample_weight, blocks, named_cluster(client, cluster))
        return self._fit(self._call(given, checkpoint=None if checkpoint is None else Checkpoint(Path(checkpoint))))

    def _call(self, given: Given, **more: Any) -> Call:
        call = super()._call(given, **more)
        in_steps = call.in_steps or call.watched or self.inference == "anytime"
        seed = call.seed if call.checkpoint is None else call.checkpoint.seed(call.seed)
        return replace(call, seed=seed, sums=call.sums or call.watched, in_steps=in_steps)

    def fit_iter(
        self,
        X: Any,
        y: Any = None,
        *,
        noise_var: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
        validation: tuple[Any, Any] | None = None,
    ) -> Generator[Progress]:
        """Fit in steps. Yields whenever there is a better model, which the estimator then predicts with.

        Leaving the loop keeps the model of the last step.

        Parameters
        ----------
        X : array, table, path or iterable of batches
            The rows, as in `fit`.
        y : array of shape (n_rows,), default=None
            The targets, as in `fit`.
        noise_var : array of shape (n_rows,) or str, default=None
            As in `fit`.
        sample_weight : array of shape (n_rows,) or str, default=None
            As in `fit`.
        blocks : array of int of shape (n_rows,), default=None
            As in `fit`.
        target : str, default=None
            As in `fit`.
        validation : pair (X, y), default=None
            Rows that are scored after every step.

        Returns
        -------
        generator of Progress
            Each step has `seconds`, `rows_seen`, `fraction` and the `scores` of `validation`.

        Raises
        ------
        InputError
            If the approximation cannot be fitted in steps, or the data cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 300)[:, None]
        >>> gp = SparseGPRegressor(kernel="se", approximation="vfe", n_inducing=20, time_budget=30, random_state=0)
        >>> for progress in gp.fit_iter(X, np.sin(X[:, 0])):
        ...     if progress.fraction == 1.0:
        ...         break
        >>> gp.predict([[1.0]]).round(1)
        array([0.8])
        """
        given = Given(X, y, target, noise_var, sample_weight, blocks)
        _require_steps(self.check_parameters())
        call = self._call(given, watched=True)
        models = self._models(call)
        first = next(models)
        held_out = None if validation is None else _held_out(validation, first[0].columns.n_features)
        return self._published(first, models, call.budget, held_out)

    def _published(
        self,
        first: tuple[Fitted, Progress],
        models: Generator[tuple[Fitted, Progress]],
        budget: Budget,
        held_out: tuple[Any, Array] | None,
    ) -> Generator[Progress]:
        paused, found = 0.0, first
        try:
            while True:
                fitted, progress = found
                self.assign(fitted)
                seconds = budget.used - paused
                scores = {} if held_out is None else self._scores(*held_out)
                yield replace(progress, seconds=seconds, scores=scores)
                paused = budget.used - seconds
                found = next(models)
        except StopIteration:
            return
        finally:
            models.close()
            self._end_callbacks()

    @with_callbacks  # type: ignore[untyped-decorator]
    def _end_callbacks(self) -> None:
        """scikit-learn tears callbacks down at the end of a decorated method; a generator has none around it."""

    def _needs(self, call: Call) -> Needs:
        approx = self.check_parameters()
        streams_arrays = not (call.in_steps or approx.by_block)
        return Needs(self.can_stream(approx), streams_arrays, self._not_on_cluster(approx))

    @contextmanager
    def _posed(self, call: Call, data: Opened, rng: np.random.Generator, listener: StepListener) -> Iterator[Posed]:
        asked = AskedModel(
            self.approximation,
            self.power,
            None if is_auto(self.n_inducing) else self.n_inducing,
            self.time_budget,
            fades=self.window is not None or self.half_life is not None,
            sums=call.sums,
        )
        start, trend = self._begun(call, data, rng, noise_var=self.noise_var, trend=self.trend, later=call.watched)
        problem = Problem(
            approx=approximations.get(self.approximation_of_sums, self.power),
            start=start,
            inducing=self._scaled_inducing(self.inducing, data),
            n_inducing=self.fit_options.auto.fewest_inducing if is_auto(self.n_inducing) else self.n_inducing,
            rng=rng,
            n_blocks=self.n_blocks,
            labels=data.labels,
            learn_inducing=self.learn_inducing,
            optimizer=self.optimizer,
            clip_variances=self.clip_variances,
            window=self.window,
            trend=trend,
            steps=self._step_options(call),
            learning=self.fit_options.learning,
            on_step=listener,
            checkpoint=None if call.checkpoint is None else self._resumption(call.checkpoint, data, call.seed),
            calibration=self.fit_options.calibration_of(self.calibration, self.optimizer, data.rows),
        )
        problem, choice = posing.settled(problem, asked, data.rows, self.fit_options.auto)
        listener.intention = _intention(problem, len(data.rows), call.budget)
        yield Posed(problem, {} if choice is None else {"choice": choice.report()})

    def _step_options(self, call: Call) -> StepOptions:
        return replace(
            self.fit_options.steps,
            exact_pass=self.inference == "exact",
            reading=READINGS[self.reading],
            stop_error=self.stop_error,
            watched=call.watched,
        )

    def can_stream(self, approx: Approximation) -> bool:
        """Whether the model is a sum over rows and nothing needs them in the order in which they came."""
        return approx.family is Family.INDUCING and self.optimizer != "srgp" and self.window is None

    def _not_on_cluster(self, approx: Approximation) -> str | None:
        """Why the rows must be in this process, if they must."""
        if approx.family is not Family.INDUCING:
            return f"approximation={approx.name!r} has no statistics that add up over workers."
        if self.optimizer == "srgp":
            return "optimizer='srgp' draws its mini-batches from rows in memory; 'lbfgs' and 'ngd' do not."
        if self.window is not None:
            return "window= keeps the last rows in the order in which they came, which workers do not know."
        if self.device != "cpu":
            return f"device={self.device!r} is one of this machine; workers use their processors."
        return None

    def _resumption(self, checkpoint: Checkpoint, data: Opened, seed: int) -> Resumption:
        """The fit is known by its data, as far as their moments tell, and its parameters."""
        scaling = data.scaling
        moments = [*scaling.x_mean, *scaling.x_scale, scaling.y_mean, scaling.y_scale]
        # Sums in another order differ in the last digits; the seed is the checkpoint's own.
        digits = [f"{moment:.8g}" for moment in moments]
        parameters = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in ("random_state", "verbose")
        }
        return Resumption.of(checkpoint, task_name(len(data.rows), digits, parameters), seed)

    def _scores(self, X: Any, y: Array) -> dict[str, float]:
        forecast = self.forecast(X)
        return {"rmse": metrics.rmse(y, forecast.mean), "nlpd": -float(forecast.log_density(y).mean())}

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
        client: Any = None,
    ) -> Self:
        """Add rows, exactly. The result is the model of all rows with the same hyper-parameters.

        The first call on a fresh estimator is an ordinary `fit`. Later calls keep hyper-parameters, inducing inputs
        and standardisation. A batch without rows changes nothing. A batch with an error leaves the model as it was.

        Parameters
        ----------
        X : array, table, path or dask collection
            The new rows, as in `fit`.
        y : array of shape (n_rows,), default=None
            Their targets.
        noise_var : array of shape (n_rows,) or str, default=None
            Known noise variances. To be given if and only if the first fit had them.
        sample_weight : array of shape (n_rows,) or str, default=None
            A row with weight w counts as w equal rows.
        blocks : array of int of shape (n_rows,), default=None
            Block labels. For "pitc" and "block-pep" the rows of a call are one new block by default. For "pic" a row
            joins the nearest block by default.
        target : str, default=None
            The column of y, if X is a table or a file.
        client : dask Client, cluster or address, default=None
            Workers that read and sum up the rows. Rows that the model must keep come to this process.

        Returns
        -------
        self : SparseGPRegressor
            The updated estimator.

        Raises
        ------
        InputError
            If the approximation cannot be updated, or the rows cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> gp = SparseGPRegressor(kernel="se", noise_var=0.01, n_inducing=20, optimizer=None)
        >>> gp = gp.partial_fit(X[::2], np.sin(X[::2, 0])).partial_fit(X[1::2], np.sin(X[1::2, 0]))
        >>> gp.n_samples_seen_
        60
        """
        given = Given(X, y, target, noise_var, sample_weight, blocks, client)
        if not self._is_fitted:
            return self._fit_first(given)
        if (client is not None or is_dask(X)) and self._sums_elsewhere:
            where = cluster_of(given)
            if where is not None:
                return self._add_on_cluster(given, where)
        return self._add(given)

    def _added(self, model: Any, block: Any, labels: ArrayLike | None) -> Any:
        if self.window is not None:
            model = replace(model, window=self.window)
        if self.half_life is not None:
            model = model.scale(0.5 ** (len(block) / self.half_life))
        return model.add(block, labels)

    @property
    def _sums_elsewhere(self) -> bool:
        """Whether rows need not come to this process: those of local models and of windows are kept in it."""
        return isinstance(self.model_, Model) and not self.model_.approx.is_local and self.window is None

    def _add_on_cluster(self, given: Given, where: Any) -> Self:
        """Each worker sums up what it reads; for "pitc" and "block-pep" a partition, file or row group is a block."""
        if given.blocks is not None:
            raise InputError("blocks= cannot be given together with client=: the workers make the blocks.")
        model = self.model_
        source = given.source(None if given.target is None else checks.input_columns(self).needed)
        if self.fitted_.columns.encoding is None:
            checks.require_width(self, source.n_features)
        source = with_encoding(source, self.fitted_.columns.encoding)
        task = RowSumOf(model.filter_state.prior)
        with connected(where) as cluster:
            found = sum_over(cluster, source, self.scaling_, task, self._like.dtype)
        if found.n_rows:
            self._require_same_noise(found.noise_total is not None)
            if self.half_life is not None:
                model = model.scale(float(np.exp2(-found.n_rows / self.half_life)))
            self._assign_update(model.add_sum(found).reported(), found.n_rows + found.n_weightless, None)
        return self

    def _fit_first(self, given: Given) -> Self:
        approx = self.check_parameters()
        if approx.family is not Family.INDUCING:
            raise InputError(
                f"approximation={approx.name!r} cannot be updated: it has no additive statistics. Use 'vfe', 'fitc' or "
                "another approximation with inducing inputs, or fit again on all rows."
            )
        return self._fit(self._call(first_of_stream(self, given, approx), sums=True))

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
        """Remove rows that were added before, exactly.

        Give the rows as they were added. For "pitc" and "block-pep" whole blocks are forgotten.

        Parameters
        ----------
        X : array or table
            The rows to remove.
        y : array of shape (n_rows,), default=None
            Their targets.
        noise_var : array of shape (n_rows,) or str, default=None
            Their noise variances, if they had any.
        sample_weight : array of shape (n_rows,) or str, default=None
            Their weights, if they had any.
        blocks : array of int of shape (n_rows,), default=None
            Their block labels. Without labels the rows of one call are one block of "pitc" and "block-pep".
        target : str, default=None
            The column of y, if X is a table.

        Returns
        -------
        self : SparseGPRegressor
            The estimator without these rows.

        Raises
        ------
        InputError
            If the rows cannot have been added, or the model has a `window` or a `half_life`. The model stays as it
            was.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> gp = SparseGPRegressor(approximation="vfe", kernel="se", noise_var=0.01, n_inducing=20, optimizer=None)
        >>> gp.fit(X, y).forget(X[:10], y[:10]).n_samples_seen_
        50
        """
        check_is_fitted(self)
        if self.window is not None or self.half_life is not None:
            raise InputError(
                "A model with a window or a half_life forgets by itself: how much a row still counts is known to it "
                "alone. Use forget() with window=None and half_life=None."
            )
        return self._remove(Given(X, y, target, noise_var, sample_weight, blocks))

    @memory.explained
    def merge(self, other: Any) -> Self:
        """Take in the rows of another model. The result is exactly the model of the rows of both.

        Both models must have the same approximation, inducing inputs, hyper-parameters and standardisation. No row may
        be in both of them.

        Parameters
        ----------
        other : SparseGPRegressor
            A fitted model of other rows.

        Returns
        -------
        self : SparseGPRegressor
            The model of all rows.

        Raises
        ------
        InputError
            If `other` is no fitted SparseGPRegressor.
        FingerprintError
            If the two models do not share what they must share.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> shared = dict(kernel="se", noise_var=0.01, inducing=X[::6], optimizer=None, normalize=False)
        >>> first = SparseGPRegressor(approximation="vfe", **shared).fit(X[:30], y[:30])
        >>> second = SparseGPRegressor(approximation="vfe", **{**shared, "kernel": first.kernel_}).fit(X[30:], y[30:])
        >>> first.set_params(kernel=first.kernel_).fit(X[:30], y[:30]).merge(second).n_samples_seen_
        60
        """
        check_is_fitted(self)
        if not isinstance(other, SparseGPRegressor):
            raise InputError(f"merge takes another fitted SparseGPRegressor; got {type(other).__name__}.")
        check_is_fitted(other)
        mine, theirs = self.scaling_.transform, other.scaling_.transform
        if mine is not theirs:
            names = [None if transform is None else transform.name for transform in (mine, theirs)]
            raise FingerprintError(
                "Models can only be merged when they learned the same target; these have "
                f"target_transform={names[0]!r} and {names[1]!r}. Fit both with the same."
            )
        if self.fitted_.columns.encoding != other.fitted_.columns.encoding:
            raise FingerprintError(
                "Models can only be merged when their columns became numbers in the same way; these have met other "
                "levels, dates or missing values. Give the rows of both to one fit, or make the parts from one "
                "model (`without_rows()`; sparsegp update --separate)."
            )
        merged = self.model_.merge(other.model_) if self.scaling_.same_as(other.scaling_) else None
        if merged is None:
            raise FingerprintError(
                "Models can only be merged when they see rows in the same units (and pic in the same blocks); these "
                "were standardised with different data. Use normalize=False with the same kernel, noise_var, inducing "
                "and optimizer=None in both."
            )
        own, added = self.fitted_.digest, other.fitted_.digest
        self._assign_update(merged, other.n_samples_seen_, None if own is None or added is None else own + added)
        return self

    @property
    def inducing_(self) -> Array:
        """The inducing inputs, in the units of the data."""
        return self.scaling_.raw_inputs(self.model_.inducing.cpu().numpy())

    @property
    def _like(self) -> Tensor:
        return torch.empty(0, dtype=DTYPES[self.dtype], device=self.device)

    @property
    def approximation_of_sums(self) -> Any:
        """The one given; for "auto", that of rows that come in batches."""
        return posing.OF_SUMS if is_auto(self.approximation) else self.approximation

    def check_parameters(self) -> Approximation:
        """The approximation, that of rows in batches for "auto", after a check of every parameter."""
        checks.require_choice("optimizer", self.optimizer, (*OPTIMIZERS, None))
        checks.require_choice("dtype", self.dtype, tuple(DTYPES))
        checks.require_choice("calibration", self.calibration, CALIBRATIONS)
        checks.require_choice("trend", self.trend, TRENDS)
        checks.require_choice("target_transform", self.target_transform, (*TRANSFORMS, None))
        if not is_auto(self.n_inducing):
            checks.positive_count("n_inducing", self.n_inducing)
        if isinstance(self.kernel, str) and not is_auto(self.kernel):
            kernel_class(self.kernel)
        if self.n_blocks is not None:
            checks.positive_count("n_blocks", self.n_blocks)
        if self.noise_var is not None:
            checks.positive_number("noise_var", self.noise_var)
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise InputError("device='cuda' was asked for, but torch sees no CUDA device. Use device='cpu'.")
        approx = approximations.get(self.approximation_of_sums, self.power)
        if self.optimizer == "srgp":
            srgp.require_points(approx)
        if self.optimizer == "ngd":
            natural.require_inducing(approx)
        self._check_stream_parameters(approx)
        self._check_step_parameters(approx)
        return approx

    def _check_stream_parameters(self, approx: Approximation) -> None:
        if self.window is not None:
            checks.positive_count("window", self.window)
        if self.half_life is not None:
            checks.positive_number("half_life", self.half_life)
        if self.window is not None and self.half_life is not None:
            raise InputError("Give window or half_life, not both: each says how rows lose their influence.")
        if self.half_life is not None and approx.is_local:
            raise InputError(
                f"half_life is not for approximation={approx.name!r}, which predicts from rows themselves: use window=."
            )

    def _check_step_parameters(self, approx: Approximation) -> None:
        checks.require_choice("inference", self.inference, INFERENCES)
        checks.require_choice("reading", self.reading, tuple(READINGS))
        if self.stop_error is not None:
            checks.positive_number("stop_error", self.stop_error)
        if self.time_budget is not None:
            checks.positive_number("time_budget", self.time_budget)
            _require_steps(approx)
        if self.inference == "anytime" and approx.family is not Family.INDUCING:
            raise InputError(
                f"inference='anytime' adds up statistics of blocks, which approximation={approx.name!r} does not have. "
                "Use inference='exact', or 'vfe', 'fitc', 'pic' or another approximation with inducing inputs."
            )


def _require_steps(approx: Approximation) -> None:
    if approx.family is Family.NYSTROM:
        raise InputError(
            f"approximation={approx.name!r} cannot be fitted within a time budget or in steps: it needs all rows for "
            "any prediction. Use 'dtc', its proper relative, or fit without them."
        )


def _intention(problem: Problem, n_rows: int, budget: Budget) -> Intention | None:
    """Of a fit whose length only the work decides."""
    if budget.limited or problem.optimizer is None or problem.approx.family is not Family.INDUCING:
        return None
    words = f"{problem.approx.name} on {n_rows:,} rows with {problem.n_inducing:,} inducing inputs"
    return Intention(words, problem.learning.schedules.of(problem.approx, problem.optimizer).row_visits(n_rows))


def _held_out(given: tuple[Any, Any], n_features: int) -> tuple[Any, Array]:
    """A validation set of the right shape."""
    try:
        X, y = given
    except (TypeError, ValueError):
        raise InputError(f"validation must be a pair (X, y); got {type(given).__name__}.") from None
    X, y = checks.as_frame(X), as_numbers(y, "y of the validation set")
    with checks.errors_of_ours(X):
        shape = np.shape(X)
    if len(shape) != 2 or shape[1] != n_features or shape[0] < 1 or y.shape != shape[:1]:
        raise InputError(
            f"The validation set must have {n_features} columns like the training rows, and a target for "
            f"each of its rows; got X of shape {shape} and y of shape {y.shape}."
        )
    return X, y
