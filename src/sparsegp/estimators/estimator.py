"""What every estimator is to scikit-learn, and what it can do whatever its model: predict, take rows, save, diagnose.

An estimator owns `model_`, `scaling_` and `info_`, assigned together at the end of a fit or an update: whatever ends
one early leaves the estimator as it was.
"""

import os
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sparsegp import linalg
from sparsegp.calibration.calibration import Calibrated, CalibratedJoint, Calibration
from sparsegp.cluster.prediction import lazy_predictions
from sparsegp.core.approximations import Family
from sparsegp.core.block import Block
from sparsegp.core.left_out import LeftOut
from sparsegp.core.predictive import Array, Joint, Predictive
from sparsegp.core.trend import Trend, detrended
from sparsegp.data import Batch, to_block
from sparsegp.errors import InputError
from sparsegp.estimators import checks, records
from sparsegp.estimators.diagnosis import Diagnosis, diagnose
from sparsegp.estimators.fit_options import FitOptions
from sparsegp.estimators.fitted import Fitted
from sparsegp.estimators.leave_one_out import NO_ROWS, LeaveOneOut, left_out_of_given, left_out_of_own_rows
from sparsegp.estimators.opening import Given, Opened, is_dask, opened
from sparsegp.estimators.progress import CallbackSupportMixin
from sparsegp.files import model_file
from sparsegp.fit import kernel_choice
from sparsegp.fit.auto import is_auto
from sparsegp.fit.blocking import drop_weightless
from sparsegp.fit.model import Model
from sparsegp.fit.problem import Start
from sparsegp.fit.scaling import Scaling
from sparsegp.fit.start import starting_point
from sparsegp.fit.trends import trend_of
from sparsegp.kernels import Kernel

ROW_BY_ROW = "Of a dask collection there are predictions row by row: no return_cov, no blocks=."


class Estimator(CallbackSupportMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
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
        """The kernel in the user's units."""
        return self.scaling_.raw_kernel(self.model_.kernel)

    @property
    def noise_var_(self) -> float:
        """The noise variance, or its mean over the rows, in squared units of y."""
        return float(self.model_.noise_var * self.scaling_.y_scale**2)

    @property
    def log_evidence_(self) -> float:
        """Log evidence or bound of the rows the model holds, in the units it was computed in."""
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
        """Number of rows behind the model, those of weight zero included."""
        return self.fitted_.n_samples

    def _start(
        self,
        data: Opened,
        rng: np.random.Generator,
        *,
        noise_var: float | None = None,
        judge: kernel_choice.Judge | None = None,
        trend: Trend | None = None,
    ) -> Start:
        """Where learning starts; `kernel="auto"` is chosen here, by the judge if there is one, from what a trend
        leaves."""
        kernel, options = self.kernel, self.fit_options.learning.start

        def start_of(kernel: Any, own: np.random.Generator, *, warns: bool = False) -> Start:
            return starting_point(
                kernel, noise_var, data.scaling, data.block, own, options, warns=warns, trend=trend, groups=data.groups
            )

        if is_auto(kernel):
            choice = self.fit_options.kernel_choice
            with linalg.flushed_denormals():
                block = detrended(data.block, trend)
                kernel = kernel_choice.chosen_kernel(
                    start_of, self.optimizer, block, rng, self.time_budget, judge, choice
                )
        warns = self.normalize and self.optimizer is not None
        return start_of(kernel, rng, warns=warns)

    def _trend(self, data: Opened, asked: str | None) -> Trend | None:
        """The trend of f. What is given stays as given: where nothing is learned, or rows are not standardised, "auto"
        adds nothing."""
        if is_auto(asked) and (self.optimizer is None or not self.normalize):
            return None
        return trend_of(asked, data.block, self.fit_options.trend)

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
        """What the column of y is called, where it has a name."""
        return self.fitted_.target

    def name_columns(self, features: Sequence[str], target: str) -> None:
        """A model that was fitted to arrays learns what the columns of the table were called."""
        columns = replace(self.fitted_.columns, names=np.array(features, dtype=object))
        self.assign(replace(self.fitted_, columns=columns, target=target))

    @property
    def _is_fitted(self) -> bool:
        return hasattr(self, "fitted_")

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31))

    @property
    def _like(self) -> Tensor:
        """Precision and device of the passes over rows."""
        return torch.empty(0, dtype=torch.float64)

    def _add(self, given: Given) -> Self:
        """`partial_fit` of rows in memory."""
        batch = self._later_batch(given)
        block, labels = self._block_of(batch, given.blocks)
        if len(block):
            calibration = self._calibration_after(block, labels)
            self._assign_update(self._added(self.model_, block, labels).reported(), len(batch), calibration)
        return self

    def _calibration_after(self, block: Block, labels: ArrayLike | None) -> Calibration | None:
        """New rows are forecast before the model has them: what they say of scale and shape is honest."""
        before, scaling = self.calibration_, self.scaling_
        if before is None:
            return None
        X = block.X
        expected = before.applied(self.model_.forecast(X, labels, scaling), X, scaling.y_mean, scaling.y_scale)
        target = block.y.double().cpu().numpy() * scaling.y_scale + scaling.y_mean
        options = self.fit_options.calibration
        return before.after(expected, target, options.half_life, options.farthest)

    def _added(self, model: Any, block: Block, labels: ArrayLike | None) -> Any:
        return model.add(block, labels)

    def _remove(self, given: Given) -> Self:
        """`forget` of rows in memory."""
        batch = self._later_batch(given)
        block, labels = self._block_of(batch, given.blocks)
        if len(block):
            self._assign_update(self.model_.remove(block, labels), -len(batch))
        return self

    def _assign_update(self, model: Any, n_new: int, calibration: Calibration | None = None) -> None:
        """Without a new calibration that of before stays."""
        info = {**self.info_, "innovations": model.innovations.summary()}
        window = getattr(self, "window", None)
        n_samples = self.n_samples_seen_ + n_new if window is None else model.n_rows
        calibration = self.calibration_ if calibration is None else calibration
        self.fitted_ = replace(
            self.fitted_, model=model, info=info, n_samples=n_samples, calibration=calibration, given=None
        )

    def _later_batch(self, given: Given) -> Batch:
        named = {"noise_var": given.noise_var, "sample_weight": given.sample_weight}
        batch = checks.later_batch(self, given.X, given.y, target=given.target, **named)
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

    def _new_inputs(self, X: Any) -> Tensor:
        """New rows in the scaling of the model."""
        checked, like = checks.new_inputs(self, X), self._like
        return self.scaling_.tensor(checked, like.dtype, str(like.device))

    def forecast(self, X: Any, latent: bool = False, blocks: ArrayLike | None = None) -> Predictive:
        """The distribution of y (`latent=True`: of f) at each row of X, as one object.

        It answers `mean`, `std`, `interval`, `quantiles`, `log_density`, `cdf`, `crps` and `sample`, all from a single
        pass over the rows. `blocks` is as for `predict`.
        """
        inputs = self._new_inputs(X)
        forecast: Predictive = self.model_.forecast(inputs, blocks, self.scaling_)
        return forecast.latent if latent else self._calibrated(forecast, inputs)

    def of_numbers(self) -> Self:
        """The same model, of the numbers that its columns become: what looks at it sees one column for each."""
        check_is_fitted(self)
        columns = self.fitted_.columns
        if columns.encoding is None:
            return self
        seen = copy(self)
        seen.assign(replace(self.fitted_, columns=columns.as_numbers))
        return seen

    def joint_forecast(self, X: Any, latent: bool = False, blocks: ArrayLike | None = None) -> Joint:
        """The distribution of y (`latent=True`: of f) at all rows of X together: `mean`, `cov` and `sample`."""
        inputs = self._new_inputs(X)
        joint: Joint = self.model_.joint_forecast(inputs, blocks, self.scaling_)
        if latent:
            return joint.latent
        rows = self._calibrated(joint.rows, inputs)
        return CalibratedJoint(rows, joint.f_cov) if isinstance(rows, Calibrated) else joint

    def _calibrated(self, forecast: Predictive, inputs: Tensor) -> Predictive:
        if self.calibration_ is None:
            return forecast
        return self.calibration_.applied(forecast, inputs, self.scaling_.y_mean, self.scaling_.y_scale)

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Any:
        """Mean of y at the rows of X, with its standard deviation or joint covariance on request.

        `latent=True` speaks of the noise-free function f instead of y. `blocks` gives the block label of each row for
        the approximations that have blocks; by default it is found from the row itself. Of a dask collection the
        answers are dask arrays, computed when asked for.
        """
        if is_dask(X):
            if return_cov:
                raise InputError(ROW_BY_ROW)
            if not return_std:
                return self._lazy(X, blocks, 1, lambda forecast: (forecast.mean,), latent)[:, 0]
            table = self._lazy(X, blocks, 2, lambda forecast: (forecast.mean, forecast.std), latent)
            return table[:, 0], table[:, 1]
        if return_std and return_cov:
            raise InputError(
                "Ask for return_std or return_cov, not both: the std is the root of the covariance's diagonal."
            )
        if return_cov:
            joint = self.joint_forecast(X, latent, blocks)
            return joint.mean, joint.cov
        forecast = self.forecast(X, latent, blocks)
        return (forecast.mean, forecast.std) if return_std else forecast.mean

    def predict_components(self, X: Any, blocks: ArrayLike | None = None) -> tuple[Array, Array, Array]:
        """Mean of y, epistemic std (what more data would remove) and aleatoric std (the noise)."""
        forecast = self.forecast(X, blocks=blocks)
        return forecast.mean, forecast.f_std, forecast.noise_std

    def predict_quantiles(self, X: Any, q: ArrayLike, blocks: ArrayLike | None = None) -> Any:
        """Quantiles of y: one column for each level in q."""
        if is_dask(X):
            return self._lazy(X, blocks, np.size(q), lambda forecast: (forecast.quantiles(q),))
        return self.forecast(X, blocks=blocks).quantiles(q)

    def predict_interval(self, X: Any, coverage: float = 0.95, blocks: ArrayLike | None = None) -> tuple[Any, Any]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        if is_dask(X):
            table = self._lazy(X, blocks, 2, lambda forecast: forecast.interval(coverage))
            return table[:, 0], table[:, 1]
        return self.forecast(X, blocks=blocks).interval(coverage)

    def log_density(self, X: Any, y: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Log density of each target under its prediction; minus its mean is the NLPD."""
        return self.forecast(X, blocks=blocks).log_density(y)

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = None,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Array:
        """Joint samples of y (or f) at the rows of X: an array [rows, n_samples]."""
        return self.joint_forecast(X, latent, blocks).sample(n_samples, np.random.default_rng(random_state))

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file that `sparsegp.load` reads: data only, no code, no pickle.

        The file replaces an older one in a single step. It has no training rows unless predictions need them ("exact",
        "sod", "pic", "nystrom") or updates do (`window`, and the experts of a committee).
        """
        model_file.write(path, records.describe(self))

    def diagnose(self, X: Any, y: Any) -> Diagnosis:
        """Findings in plain words on rows with known targets, best rows the model has not seen.

        The answer is a list, empty if nothing stood out. Its `segments` tell how many targets lie inside their interval
        by values or deciles of each column, of the forecast and of its std.
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
        """Leave-one-out predictions: `mean`, `std` and `log_density` of each training row by the model of the others.

        In closed form and in one pass, at the hyper-parameters, inducing inputs and blocks of the fit. Without
        arguments of the rows of the last fit; after a file, a copy or an update give the rows that the model holds,
        with the arguments of `fit`. Rows of weight zero are not in the model and get their prediction. The forecast is
        the Gaussian of the model. Models with learned noise have no closed form.
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
        with opened(
            self,
            given,
            seed=0,
            budget=self.fit_options.started(None),
            can_stream=is_sum,
            streams_arrays=is_sum and not model.approx.by_block,
            not_on_cluster=None if is_sum else "the model is no sum over rows.",
            like=self._like,
            options=self.fit_options.opening,
            scaling=self.scaling_,
        ) as data:
            self._require_same_noise(data.rows.mean_noise_var is not None)
            return left_out_of_given(model, data, given)

    def without_rows(self) -> Self:
        """A copy that has seen no rows. What it learns from other rows can be merged into this model, exactly."""
        check_is_fitted(self)
        if not isinstance(self.model_, Model) or self.model_.window is not None:
            raise InputError(
                "Only a SparseGPRegressor without a window and without learned noise can be filled with rows of its "
                f"own and merged later; this is a {type(self).__name__} ({type(self.model_).__name__})."
            )
        fresh = copy(self)
        info = {**self.info_, "innovations": self.model_.without_rows().innovations.summary()}
        fresh.fitted_ = replace(
            self.fitted_, model=self.model_.without_rows(), info=info, n_samples=0, batches=(), given=None
        )
        return fresh

    def to_local(self) -> Self:
        """A fitted copy for this process alone: it needs no cluster and no dask, wherever it was fitted."""
        check_is_fitted(self)
        return deepcopy(self)
