"""What every estimator is to scikit-learn, and what it can do whatever its model: predict, take rows, save, diagnose.

An estimator owns `model_`, `scaling_` and `info_`, assigned together at the end of a fit or an update: whatever ends
one early leaves the estimator as it was.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sparsegp import linalg, memory
from sparsegp.calibration.calibration import Calibrated, CalibratedJoint, Calibration, TransformedJoint
from sparsegp.calibration.transform import Transformed
from sparsegp.cluster.prediction import lazy_predictions
from sparsegp.core.approximations import Family
from sparsegp.core.block import Block
from sparsegp.core.drawn import Drawn
from sparsegp.core.interleaved import Interleaved
from sparsegp.core.left_out import LeftOut
from sparsegp.core.predictive import Array, Joint, Predictive, require_numbers
from sparsegp.core.trend import Trend
from sparsegp.data import Batch
from sparsegp.data.completion import N_DRAWS, Completed
from sparsegp.data.digest import RowDigest
from sparsegp.data.rows import to_block
from sparsegp.errors import InputError
from sparsegp.estimators import checks, fitting, records
from sparsegp.estimators.diagnosis import JudgedEstimator
from sparsegp.estimators.fitted import Fitted
from sparsegp.estimators.fitting import Call, Posed
from sparsegp.estimators.given import Given
from sparsegp.estimators.judging import Diagnosis, Judged, diagnose
from sparsegp.estimators.leave_one_out import NO_ROWS, LeaveOneOut, left_out_of_given, left_out_of_own_rows
from sparsegp.estimators.listener import CALLBACKS, StepListener
from sparsegp.estimators.opening import Needs, Opened, Opener, is_dask
from sparsegp.estimators.summary import fitted_html
from sparsegp.files import model_file
from sparsegp.fit.blocking import drop_weightless
from sparsegp.fit.kernel_choice import Judge
from sparsegp.fit.model import Model
from sparsegp.fit.posing import AskedStart, FitOptions, begun
from sparsegp.fit.problem import Start
from sparsegp.fit.progress import Progress
from sparsegp.fit.scaling import Scaling
from sparsegp.infer.recursive import OUTLIER_SQ
from sparsegp.kernels import Kernel
from sparsegp.parallel import one_torch_thread

JOINT_COPIES = 4
FEWER_ROWS = "Ask for fewer rows at once; return_std and intervals need no covariance."
ROW_BY_ROW = "Of a dask collection there are predictions row by row: no return_cov, no blocks=."


class Estimator(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn regressor with callbacks, predictions, updates, `save`, `diagnose` and `to_local`."""

    fit_options: ClassVar[FitOptions] = FitOptions()
    """Numbers that are no parameters: how a fit divides its time, what "auto" tries, when rows stay on disk."""

    kind: ClassVar[str]
    """What a model file calls the estimator."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    fitted_: Fitted
    n_features_in_: int
    random_state: Any
    normalize: bool
    kernel: Any
    optimizer: str | None
    time_budget: float | None

    @property
    def kernel_(self) -> Kernel:
        """The fitted kernel, in the units of the data."""
        return self.scaling_.raw_kernel(self.model_.kernel)

    @property
    def noise_var_(self) -> float:
        """The noise variance, or its mean over the rows, in squared units of y."""
        return float(self.model_.noise_var * self.scaling_.y_scale**2)

    @property
    def log_evidence_(self) -> float:
        """Log evidence, or its bound, of the rows that the model holds. It is computed from the scaled rows."""
        return float(self.model_.log_evidence)

    @property
    def model_(self) -> Any:
        """The fitted model, in its own scaling."""
        return self.fitted_.model

    @property
    def scaling_(self) -> Scaling:
        """From the user's units to those of the model."""
        return self.fitted_.scaling

    @property
    def info_(self) -> dict[str, Any]:
        """How the model came about."""
        return self.fitted_.info

    @property
    def calibration_(self) -> Calibration | None:
        """Scale and shape of forecasts, learned from rows left out; None where they are those of the model itself."""
        return self.fitted_.calibration

    @property
    def n_samples_seen_(self) -> int:
        """Number of rows behind the model, including rows of weight zero."""
        return self.fitted_.n_samples

    def _begun(
        self,
        call: Call,
        data: Opened,
        rng: np.random.Generator,
        *,
        noise_var: float | None = None,
        trend: str | None = None,
        judge: Judge | None = None,
        later: bool = False,
    ) -> tuple[Start, Trend | None]:
        """Where learning starts, and the trend. `later`: the kernel is chosen once there is a first model."""
        asked = AskedStart(self.kernel, noise_var, trend, self.optimizer, self.normalize, judge, later)
        return begun(asked, data.start_rows, rng, self.fit_options, call.budget)

    def _scaled_inducing(self, inducing: Any, data: Opened) -> Any:
        """Inducing inputs that were given, in the scaling of the model; how to choose them, as it is."""
        if isinstance(inducing, str):
            return inducing
        return data.scaling.inputs(checks.inducing_array(inducing, data.columns.layout.n_features))

    def _repr_html_inner(self) -> str:
        """In a notebook: what was chosen and its scores, above scikit-learn's own picture of the parameters."""
        return fitted_html(self) + str(super()._repr_html_inner())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] = fitted_html(self) + bundle["text/html"]
        return bundle

    def assign(self, fitted: Fitted) -> None:
        """What a fit has found, or a file has held; scikit-learn keeps number and names of columns by itself."""
        columns = fitted.columns
        if columns.words is not None:
            fitted = replace(fitted, info={**fitted.info, "columns": columns.words})
        self.n_features_in_ = columns.n_features
        if columns.names is not None:
            self.feature_names_in_ = columns.names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.fitted_ = fitted

    def note_batches(self, *ids: str) -> None:
        """These batches of rows are in the model."""
        self.fitted_ = replace(self.fitted_, batches=tuple(dict.fromkeys((*self.fitted_.batches, *ids))))

    @property
    def target_name_in_(self) -> str | None:
        """Name of the column of y, if it has one."""
        return self.fitted_.target

    def name_columns(self, features: Sequence[str], target: str) -> None:
        """A model that was fitted to arrays learns what the columns of the table were called."""
        columns = replace(self.fitted_.columns, names=np.array(features, dtype=object))
        self.assign(replace(self.fitted_, columns=columns, target=target))

    @property
    def _is_fitted(self) -> bool:
        return hasattr(self, "fitted_")

    def _seed(self) -> int:
        with checks.errors_of_ours():
            return int(check_random_state(self.random_state).randint(2**31))

    @property
    def _like(self) -> Tensor:
        """Precision and device of the passes over rows."""
        return torch.empty(0, dtype=torch.float64)

    def _call(self, given: Given, **more: Any) -> Call:
        budget = self.fit_options.started(self.time_budget)
        return Call(given, budget, self._seed(), in_steps=budget.limited, **more)

    def _fit(self, call: Call) -> Self:
        self.assign(fitting.last(self._models(call), call.budget))
        return self

    def _models(self, call: Call) -> Generator[tuple[Fitted, Progress]]:
        return fitting.models(self, call, self._needs(call), self._posed, self._like)

    @abstractmethod
    def _needs(self, call: Call) -> Needs:
        """Where the rows of a fit may be. Every parameter is checked here, before rows are read."""

    @abstractmethod
    def _posed(
        self, call: Call, data: Opened, rng: np.random.Generator, listener: StepListener
    ) -> AbstractContextManager[Posed]:
        """The problem of a fit, and what it works with, for as long as it lasts."""

    def _add(self, given: Given) -> Self:
        """`partial_fit` of rows in memory."""
        batch = self._later_batch(given)
        block, labels = self._block_of(batch, given.blocks)
        if len(block):
            calibration, digest = self.calibration_, self.fitted_.digest
            model = self._added(self.model_, block, labels).reported()
            if calibration is not None:  # new rows are forecast by the model that does not have them: that is honest
                r, options = self._residuals(calibration, block, labels), self.fit_options.calibration
                surprise = calibration.surprise(r, OUTLIER_SQ)
                model = replace(model, innovations=self.model_.innovations.after_rows(len(block), surprise))
                calibration = calibration.after(r, options.half_life, options.farthest)
            after = None if digest is None else digest.with_rows(batch)
            self._assign_update(model, len(batch), after, calibration)
        return self

    def _residuals(self, calibration: Calibration, block: Block, labels: ArrayLike | None) -> Array:
        X, scaling = block.X, self.scaling_
        expected = calibration.applied(self.model_.forecast(X, labels, scaling), X, scaling.y_mean, scaling.y_scale)
        return expected.residuals(block.y.double().cpu().numpy() * scaling.y_scale + scaling.y_mean)

    def _added(self, model: Any, block: Block, labels: ArrayLike | None) -> Any:
        return model.add(block, labels)

    def _remove(self, given: Given) -> Self:
        """`forget` of rows in memory."""
        batch = self._later_batch(given)
        block, labels = self._block_of(batch, given.blocks)
        if len(block):
            # a model that keeps its rows says which of these it does not have
            model, digest = self.model_.remove(block, labels), self.fitted_.digest
            self._assign_update(model, -len(batch), None if digest is None else digest.without_rows(batch))
        return self

    def _assign_update(
        self, model: Any, n_new: int, digest: RowDigest | None, calibration: Calibration | None = None
    ) -> None:
        """Without a new calibration that of before stays."""
        info = {**self.info_, "innovations": model.innovations.summary()}
        window = getattr(self, "window", None)
        n_samples = self.n_samples_seen_ + n_new if window is None else model.n_rows
        calibration = self.calibration_ if calibration is None else calibration
        self.fitted_ = self.fitted_.updated(model, info, n_samples, calibration, digest)

    def _later_batch(self, given: Given) -> Batch:
        batch = checks.later_batch(self, given)
        if len(batch):
            self._require_same_noise(batch.noise_var is not None)
        return batch

    def _require_same_noise(self, is_known: bool) -> None:
        known = self.model_.known_noise
        if is_known != known:
            was = "was given the noise variance of each row" if known else "learned one noise variance"
            raise InputError(f"The first fit {was}, so noise_var= must {'' if known else 'not '}be given here.")

    def _block_of(self, batch: Batch, blocks: ArrayLike | None) -> tuple[Block, ArrayLike | None]:
        self.model_.check_labels(blocks, len(batch))
        return drop_weightless(to_block(batch, self.scaling_, self._like), blocks)

    def _new_rows(self, X: Any) -> Completed:
        """New rows in the scaling of the model; those with gaps as what they may be."""
        given = checks.new_inputs(self, X, may_miss=True)
        rows, completion = self.scaling_.inputs(given), self.fitted_.columns.completion
        return Completed.of_whole(rows) if completion is None else completion.completed(rows)

    def _tensor(self, rows: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self._like)

    @memory.explained
    def forecast(self, X: Any, latent: bool = False, blocks: ArrayLike | None = None) -> Predictive:
        """The distribution of y at each row of X, as one object.

        Ask the object for `mean`, `std`, `interval`, `quantiles`, `log_density`, `cdf`, `crps` and `sample`. All
        answers come from a single pass over the rows. With a `target_transform`, its `base` is the forecast of the
        transformed target.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows.
        latent : bool, default=False
            Forecast the noise-free function f instead of y, on the transformed scale if there is a
            `target_transform`.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, as in `predict`.

        Returns
        -------
        Predictive
            The forecast.

        Raises
        ------
        InputError
            If X cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> gp = SparseGPRegressor(kernel="se", noise_var=0.01, optimizer=None).fit(X, np.sin(X[:, 0]))
        >>> forecast = gp.forecast([[1.0], [2.0]])
        >>> forecast.quantiles([0.1, 0.5, 0.9]).shape
        (2, 3)
        >>> forecast.crps([0.8, 0.9]).shape
        (2,)
        """
        rows = self._new_rows(X)
        if rows.is_complete:
            return self._carried(self._forecast(rows.whole, latent, blocks), latent)
        own, drawn = rows.labels(blocks)
        found = self._carried(Drawn(self._forecast(rows.drawn, latent, drawn), N_DRAWS), latent)
        if not len(rows.whole):
            return found
        whole = self._carried(self._forecast(rows.whole, latent, own), latent)
        return Interleaved(whole, found, rows.is_whole)

    def _carried(self, forecast: Predictive, latent: bool) -> Predictive:
        """The forecast of y, from that of what was learned; f stays where it is."""
        carried: Predictive = forecast if latent else self.scaling_.carried(forecast)
        if carried is not forecast:
            with np.errstate(all="ignore"):  # the exponential of a number can be none
                require_numbers(carried.mean, carried.std)
        return carried

    def _forecast(self, rows: Array, latent: bool, blocks: ArrayLike | None) -> Predictive:
        """Of complete rows in the scaling of the model."""
        inputs = self._tensor(rows)
        with one_torch_thread(len(inputs)):
            forecast: Predictive = self.model_.forecast(inputs, blocks, self.scaling_)
        require_numbers(forecast.mean, forecast.var)
        return forecast.latent if latent else self._calibrated(forecast, inputs)

    @property
    def judged(self) -> Judged:
        """What `diagnose` and reports ask of the model besides its forecasts."""
        return JudgedEstimator(self)

    def of_numbers(self) -> Self:
        """The same model, of the numbers that its columns become: what looks at it sees one column for each.

        Returns
        -------
        estimator
            A fitted copy whose columns are these numbers. The model itself if its columns are numbers already.
        """
        check_is_fitted(self)
        columns = self.fitted_.columns
        if columns.encoding is None:
            return self
        seen = copy(self)
        seen.assign(replace(self.fitted_, columns=columns.as_numbers))
        return seen

    @memory.explained
    def joint_forecast(self, X: Any, latent: bool = False, blocks: ArrayLike | None = None) -> Joint:
        """The distribution of y at all rows of X together.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows.
        latent : bool, default=False
            Forecast the noise-free function f instead of y, on the transformed scale if there is a
            `target_transform`.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, as in `predict`.

        Returns
        -------
        Joint
            An object with `mean`, `cov` and `sample`.

        Raises
        ------
        InputError
            If X cannot be used.
        """
        if is_dask(X):
            raise InputError(ROW_BY_ROW)
        given = checks.new_inputs(self, X)
        inputs = self._tensor(self.scaling_.inputs(given))
        memory.require(8.0 * JOINT_COPIES * len(inputs) ** 2, f"The covariance of {len(inputs):,} rows", FEWER_ROWS)
        joint: Joint = self.model_.joint_forecast(inputs, blocks, self.scaling_)
        if latent:
            return joint.latent
        rows = self._calibrated(joint.rows, inputs)
        joint = CalibratedJoint(rows, joint.f_cov) if isinstance(rows, Calibrated) else joint
        carried = self.scaling_.carried(rows)
        return TransformedJoint(carried, joint.f_cov, joint) if isinstance(carried, Transformed) else joint

    def _calibrated(self, forecast: Predictive, inputs: Tensor) -> Predictive:
        if self.calibration_ is None:
            return forecast
        return self.calibration_.applied(forecast, inputs, self.scaling_.y_mean, self.scaling_.y_scale)

    @memory.explained
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Any:
        """Mean of y at the rows of X, and its standard deviation or joint covariance on request.

        Parameters
        ----------
        X : array, table or dask collection of shape (n_rows, n_features)
            The rows. For a dask collection the answers are dask arrays.
        return_std : bool, default=False
            Also return the standard deviation of each row.
        return_cov : bool, default=False
            Also return the covariance of all rows. Not together with `return_std`, and with a `target_transform` only
            for `latent=True`.
        latent : bool, default=False
            Predict the noise-free function f instead of y, on the transformed scale if there is a
            `target_transform`.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, for the approximations with blocks. By default the nearest block is taken.

        Returns
        -------
        mean : ndarray of shape (n_rows,)
            The predicted means.
        std : ndarray of shape (n_rows,)
            Only if `return_std` is True.
        cov : ndarray of shape (n_rows, n_rows)
            Only if `return_cov` is True.

        Raises
        ------
        InputError
            If X cannot be used, both `return_std` and `return_cov` are asked for, or `return_cov` of y with a
            `target_transform`: draws of `sample_y` have that covariance.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> gp = SparseGPRegressor(kernel="se", noise_var=0.01, optimizer=None).fit(X, np.sin(X[:, 0]))
        >>> mean, std = gp.predict([[1.0], [2.0]], return_std=True)
        >>> mean.round(1)
        array([0.8, 0.9])
        """
        if return_std and return_cov:
            raise InputError(
                "Ask for return_std or return_cov, not both: the std is the root of the covariance's diagonal."
            )
        if return_cov:
            joint = self.joint_forecast(X, latent, blocks)
            return joint.mean, joint.cov
        if is_dask(X):
            return self._lazy_moments(X, latent, blocks, with_std=return_std)
        if not return_std:
            return self._mean(X, latent, blocks)
        forecast = self.forecast(X, latent, blocks)
        return forecast.mean, forecast.std

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Coefficient of determination R2 of the predicted means.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows.
        y : array of shape (n_rows,)
            Their targets.
        sample_weight : array of shape (n_rows,), default=None
            Weight of each row in the score.

        Returns
        -------
        float
            1 for a perfect prediction, 0 for that of the mean of y.

        Raises
        ------
        InputError
            If X, y or the weights cannot be used.
        """
        mean = self.predict(X)
        with checks.errors_of_ours(y):
            return float(r2_score(checks.target_vector(y), mean, sample_weight=sample_weight))

    def _mean(self, X: Any, latent: bool, blocks: ArrayLike | None) -> Array:
        """Means alone, which need no variances where the target is learned as it is."""
        if not latent and self._is_fitted and self.scaling_.transform is not None:
            return self.forecast(X, latent, blocks).mean
        rows = self._new_rows(X)
        if rows.is_complete:
            return self._expected(rows.whole, blocks)
        own, drawn = rows.labels(blocks)
        whole = self._expected(rows.whole, own) if len(rows.whole) else np.empty(0)
        return rows.pooled(whole, self._expected(rows.drawn, drawn))

    def _expected(self, rows: Array, blocks: ArrayLike | None) -> Array:
        """Means at complete rows in the scaling of the model."""
        inputs = self._tensor(rows)
        with one_torch_thread(len(inputs)):
            expected: Array = self.model_.expected(inputs, blocks, self.scaling_)
        require_numbers(expected)
        return expected

    def predict_components(self, X: Any, blocks: ArrayLike | None = None) -> tuple[Array, Array, Array]:
        """Mean of y, and its standard deviation in two parts, whose squares add up.

        With a `target_transform` the parts have the shares of the variance that they have on the transformed scale,
        on which noise adds to the function.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, as in `predict`.

        Returns
        -------
        mean : ndarray of shape (n_rows,)
            The predicted means.
        epistemic : ndarray of shape (n_rows,)
            Standard deviation of f: what more data would remove.
        aleatoric : ndarray of shape (n_rows,)
            Standard deviation of the noise: what more data would not remove.

        Raises
        ------
        InputError
            If X cannot be used.
        """
        forecast = self.forecast(X, blocks=blocks)
        return forecast.mean, forecast.f_std, forecast.noise_std

    def predict_quantiles(self, X: Any, q: ArrayLike, blocks: ArrayLike | None = None) -> Any:
        """Quantiles of y.

        Parameters
        ----------
        X : array, table or dask collection of shape (n_rows, n_features)
            The rows.
        q : float or sequence of float
            Levels strictly between 0 and 1.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, as in `predict`.

        Returns
        -------
        ndarray of shape (n_rows, n_levels)
            One column for each level.

        Raises
        ------
        InputError
            If X or a level cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> gp = SparseGPRegressor(kernel="se", noise_var=0.01, optimizer=None).fit(X, np.sin(X[:, 0]))
        >>> gp.predict_quantiles([[1.0], [2.0]], [0.1, 0.5, 0.9]).shape
        (2, 3)
        """
        if is_dask(X):
            return self._lazy(X, blocks, np.size(q), lambda forecast: (forecast.quantiles(q),))
        return self.forecast(X, blocks=blocks).quantiles(q)

    def predict_interval(self, X: Any, coverage: float = 0.95, blocks: ArrayLike | None = None) -> tuple[Any, Any]:
        """The central interval that holds y with a given probability.

        Parameters
        ----------
        X : array, table or dask collection of shape (n_rows, n_features)
            The rows.
        coverage : float, default=0.95
            The probability, strictly between 0 and 1.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, as in `predict`.

        Returns
        -------
        lower : ndarray of shape (n_rows,)
            Lower ends.
        upper : ndarray of shape (n_rows,)
            Upper ends.

        Raises
        ------
        InputError
            If X or `coverage` cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> gp = SparseGPRegressor(kernel="se", noise_var=0.01, optimizer=None).fit(X, np.sin(X[:, 0]))
        >>> lower, upper = gp.predict_interval([[1.0]], coverage=0.9)
        >>> bool(lower[0] < np.sin(1.0) < upper[0])
        True
        """
        if is_dask(X):
            table = self._lazy(X, blocks, 2, lambda forecast: forecast.interval(coverage))
            return table[:, 0], table[:, 1]
        return self.forecast(X, blocks=blocks).interval(coverage)

    def log_density(self, X: Any, y: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Log density of each target under its forecast. Minus its mean is the NLPD.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows.
        y : array of shape (n_rows,)
            Their targets.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, as in `predict`.

        Returns
        -------
        ndarray of shape (n_rows,)
            The log densities.

        Raises
        ------
        InputError
            If X or y cannot be used.
        """
        return self.forecast(X, blocks=blocks).log_density(y)

    @memory.explained
    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = None,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Array:
        """Draws of y at all rows of X together.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows.
        n_samples : int, default=1
            Number of draws.
        random_state : int, numpy Generator or None, default=None
            Seed of the draws.
        latent : bool, default=False
            Draw the noise-free function f instead of y, on the transformed scale if there is a
            `target_transform`.
        blocks : array of int of shape (n_rows,), default=None
            Block labels, as in `predict`.

        Returns
        -------
        ndarray of shape (n_rows, n_samples)
            One column for each draw.

        Raises
        ------
        InputError
            If X cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> gp = SparseGPRegressor(kernel="se", noise_var=0.01, optimizer=None).fit(X, np.sin(X[:, 0]))
        >>> gp.sample_y([[1.0], [2.0]], n_samples=5, random_state=0).shape
        (2, 5)
        """
        n_draws = checks.positive_count("n_samples", n_samples)
        with checks.errors_of_ours():
            rng = np.random.default_rng(random_state)
        return self.joint_forecast(X, latent, blocks).sample(n_draws, rng)

    def _lazy_moments(self, X: Any, latent: bool, blocks: ArrayLike | None, *, with_std: bool) -> Any:
        """Means of a dask collection, with or without standard deviations."""
        if not with_std:
            return self._lazy(X, blocks, 1, lambda forecast: (forecast.mean,), latent)[:, 0]
        table = self._lazy(X, blocks, 2, lambda forecast: (forecast.mean, forecast.std), latent)
        return table[:, 0], table[:, 1]

    def _lazy(
        self,
        X: Any,
        blocks: ArrayLike | None,
        n_columns: int,
        ask: Callable[[Predictive], tuple[Array, ...]],
        latent: bool = False,
    ) -> Any:
        """What is asked of the forecast of a dask collection, as a dask array with a line for each row."""
        if blocks is not None:
            raise InputError(ROW_BY_ROW)
        return lazy_predictions(self, X, latent, n_columns, ask)

    @available_if(lambda _: CALLBACKS is not None)  # type: ignore[untyped-decorator]
    def set_callbacks(self, *callbacks: Any) -> Self:
        """Callbacks of scikit-learn, which see every step of learning and may end it. They need scikit-learn 1.9.

        Parameters
        ----------
        *callbacks : callback
            Objects with scikit-learn's `FitCallback` protocol. None at all removes those of before.

        Returns
        -------
        self : Estimator
            The estimator.
        """
        CALLBACKS.set_callbacks(self, *callbacks)
        return self

    @memory.explained
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file that `sparsegp.load` reads.

        The file holds data only: no code, no pickle. It replaces an older file in a single step. It has no training
        rows unless predictions need them ("exact", "sod", "pic", "nystrom") or updates do (`window`, and the experts
        of a committee).

        Parameters
        ----------
        path : path
            The file, by custom with the suffix .sgp.

        Raises
        ------
        OutputError
            If the file cannot be written. An older file is unchanged.
        ModelFileError
            If the model has a part that cannot be saved.

        Examples
        --------
        >>> import tempfile, numpy as np, sparsegp
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> gp = sparsegp.SparseGPRegressor(kernel="se", noise_var=0.01, optimizer=None).fit(X, np.sin(X[:, 0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     gp.save(f"{folder}/model.sgp")
        ...     loaded = sparsegp.load(f"{folder}/model.sgp")
        >>> bool((loaded.predict(X) == gp.predict(X)).all())
        True
        """
        model_file.write(path, records.describe(self))

    def diagnose(self, X: Any, y: Any) -> Diagnosis:
        """Findings in plain words on rows with known targets.

        Give rows that the model has not seen.

        Parameters
        ----------
        X : array or table of shape (n_rows, n_features)
            The rows.
        y : array of shape (n_rows,)
            Their targets.

        Returns
        -------
        Diagnosis
            A list of findings, empty if nothing stood out. Its `segments` tell how many targets lie inside their
            interval, by column, by forecast and by std.

        Raises
        ------
        InputError
            If X or y cannot be used.
        """
        return diagnose(self, X, y)

    def loo(
        self,
        X: Any = None,
        y: Any = None,
        *,
        noise_var: Any = None,
        sample_weight: Any = None,
        blocks: ArrayLike | None = None,
        target: str | None = None,
        client: Any = None,
    ) -> LeaveOneOut:
        """Leave-one-out predictions: what the model of all other rows says of each training row.

        They come in closed form and in one pass. Hyper-parameters, inducing inputs and blocks stay those of the fit.
        The forecast is the Gaussian of the model, without calibration. With a `target_transform` it is that Gaussian,
        carried back to y. Models with learned noise have no closed form.

        Parameters
        ----------
        X : array, table, path or dask collection, default=None
            The rows that the model holds. None takes those of the last fit. After a file, a copy or an update they
            must be given.
        y : array of shape (n_rows,), default=None
            Their targets.
        noise_var : array of shape (n_rows,) or str, default=None
            As in `fit`.
        sample_weight : array of shape (n_rows,) or str, default=None
            As in `fit`. A row of weight zero gets its ordinary prediction.
        blocks : array of int of shape (n_rows,), default=None
            As in `fit`.
        target : str, default=None
            As in `fit`.
        client : dask Client, cluster or address, default=None
            As in `fit`.

        Returns
        -------
        LeaveOneOut
            The `mean`, `std` and `log_density` of each row.

        Raises
        ------
        InputError
            If the rows are not known, or not those of the model, or the model has no closed form.

        Examples
        --------
        >>> import numpy as np
        >>> from sparsegp import SparseGPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> gp = SparseGPRegressor(kernel="se", noise_var=0.01, optimizer=None).fit(X, np.sin(X[:, 0]))
        >>> gp.loo().mean.shape
        (40,)
        """
        check_is_fitted(self)
        self.model_.require_left_out()
        given = self.fitted_.given
        if X is not None:
            given = Given(X, y, target, noise_var, sample_weight, blocks, client)
        with linalg.flushed_denormals():
            found = left_out_of_own_rows(self.model_) if given is None else self._left_out(given)
        if found is None:
            raise InputError(NO_ROWS)
        return LeaveOneOut.of(found, self.scaling_)

    def _left_out(self, given: Given) -> LeftOut:
        model = self.model_
        is_sum = isinstance(model, Model) and model.approx.family is Family.INDUCING
        why_not = None if is_sum else "the model is no sum over rows."
        needs = Needs(is_sum, is_sum and not model.approx.by_block, why_not)
        opener = Opener(self, 0, self.fit_options.started(None), self._like, self.scaling_)
        with opener.rows(given, needs) as data:
            self._require_same_noise(data.rows.mean_noise_var is not None)
            return left_out_of_given(model, data, given)

    def without_rows(self) -> Self:
        """A copy that has seen no rows. What it learns from other rows can be merged into this model, exactly.

        Returns
        -------
        SparseGPRegressor
            The copy, with the same hyper-parameters, inducing inputs and standardisation.

        Raises
        ------
        InputError
            If the model has a window or learned noise, or is a committee.
        """
        check_is_fitted(self)
        if not isinstance(self.model_, Model) or self.model_.window is not None:
            raise InputError(
                "Only a SparseGPRegressor without a window and without learned noise can be filled with rows of its "
                f"own and merged later; this is a {type(self).__name__} ({type(self.model_).__name__})."
            )
        fresh = copy(self)
        info = {**self.info_, "innovations": self.model_.without_rows().innovations.summary()}
        fresh.fitted_ = replace(
            self.fitted_,
            model=self.model_.without_rows(),
            info=info,
            n_samples=0,
            batches=(),
            given=None,
            digest=RowDigest.empty(),
        )
        return fresh

    def to_local(self) -> Self:
        """A fitted copy for this process alone. It needs no cluster and no dask, wherever it was fitted.

        Returns
        -------
        Estimator
            The copy.
        """
        check_is_fitted(self)
        return deepcopy(self)
