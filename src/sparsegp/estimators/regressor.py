"""SparseGPRegressor: the scikit-learn shell of every approximation in the table."""

import time
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from sparsegp import approximations, linalg
from sparsegp.approximations import Approximation
from sparsegp.data import Block, Rows
from sparsegp.errors import InputError, NegativeVarianceError
from sparsegp.estimators import families, validation
from sparsegp.estimators.blocking import drop_weightless, make_rows
from sparsegp.estimators.frames import as_frame, split_target
from sparsegp.estimators.predictions import Array, GaussianPredictions
from sparsegp.estimators.progress import CallbackSupportMixin, StepListener, with_callbacks
from sparsegp.estimators.standardizer import Standardizer
from sparsegp.estimators.streaming import StreamingMixin
from sparsegp.kernels import Kernel, as_kernel
from sparsegp.kernels import get as kernel_class
from sparsegp.learning.progressive import OPTIMIZERS
from sparsegp.learning.recorder import StepCallback
from sparsegp.learning.starting_values import median_lengthscales, neighbour_noise_var

DTYPES = {"float64": torch.float64, "float32": torch.float32}


class SparseGPRegressor(CallbackSupportMixin, StreamingMixin, GaussianPredictions, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian-process regression by any approximation of the unifying view, for a hundred to millions of rows.

    Parameters
    ----------
    kernel : "se" | "matern12" | "matern32" | "matern52" | "rq" | Kernel | scikit-learn kernel
        A name starts from median distances with one lengthscale per column. The parameters of a built-in Kernel object
        (or of a scikit-learn kernel) are in the units of the data, also with `normalize=True`; a kernel of your own
        class sees standardised inputs then.
    approximation : name of a row of the table, or a mapping of names to weights (a linear combination)
        "exact" "sod" "sor" "dtc" "fitc" "fic" "pitc" "pic" "vfe" "pep" "block-pep" "nystrom".
    power : alpha of "pep" and "block-pep", from 0 (vfe) to 1 (fitc, pitc).
    n_inducing, inducing : number of inducing inputs and how they are chosen: "kmeans", "random", "greedy", or an array.
    n_blocks : blocks of "pitc", "pic", "block-pep"; None gives about `n_inducing` rows a block.
    noise_var : starting value of the noise variance in squared units of y; the value itself if `optimizer=None`.
    optimizer : "lbfgs" | "adam" | None (hyper-parameters and inducing inputs stay as given).
    learn_inducing : whether the inducing inputs are learned with the hyper-parameters.
    inference : "exact", one pass over all rows.
    normalize : standardise X and y inside; predictions come back in the user's units.
    window : `partial_fit` keeps the last `window` rows and forgets older ones, exactly.
    half_life : `partial_fit` lets a row count half after this many rows.
    clip_variances : "nystrom" only: clip its negative variances instead of raising an error.
    device, dtype : where and in which precision the passes over rows run; everything M x M is float64.

    Attributes
    ----------
    kernel_, noise_var_, inducing_ : the fitted model in the user's units.
    log_evidence_ : log evidence or bound at the fitted hyper-parameters, in the units it was computed in.
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
        noise_var: float | None = None,
        optimizer: str | None = "lbfgs",
        learn_inducing: bool = True,
        inference: str = "exact",
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
    ) -> Self:
        """Learn hyper-parameters and compute the posterior.

        `noise_var` is the known noise variance of each row (nothing is learned about the noise then, and predictions of
        y use its mean). `sample_weight` w counts a row w times, exactly. `blocks` is an integer label per row for the
        approximations with blocks. `target` names the column of y when X is a table.
        """
        started = time.perf_counter()
        row = self._checked_parameters()
        X, y = split_target(X, y, target)
        X_array, y_array = self._checked_data(X, y)
        weight = validation.row_vector(sample_weight, len(y_array), "sample_weight", allow_zero=True)
        noise = validation.row_vector(noise_var, len(y_array), "noise_var", allow_zero=False)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))

        self._standardizer = self._make_standardizer(X_array, y_array, weight)
        block, labels = drop_weightless(self._make_block(X_array, y_array, noise, weight), blocks)
        listener = StepListener(self, self.verbose)
        with linalg.flushed_denormals():
            start = families.Start(*self._starting_values(block, rng))
            if row.by_block and self.optimizer is not None:
                start = families.scout(block, start, self.optimizer, rng, listener)
            rows, self._blocking = make_rows(row, block, start.kernel, self._n_blocks(len(block)), labels, rng)
            fitted = families.fit(self._problem(row, rows, start, rng, listener))
        listener.close()
        self.n_samples_seen_ = len(y_array)
        self._store(row, fitted, started)
        self._begin_stream(row, block, labels)
        return self

    def _n_blocks(self, n_rows: int) -> int:
        return self.n_blocks or max(1, round(n_rows / self.n_inducing))

    def _checked_parameters(self) -> Approximation:
        validation.require_choice("inference", self.inference, ("exact",))
        validation.require_choice("optimizer", self.optimizer, (*OPTIMIZERS, None))
        validation.require_choice("dtype", self.dtype, tuple(DTYPES))
        validation.positive_count("n_inducing", self.n_inducing)
        if self.n_blocks is not None:
            validation.positive_count("n_blocks", self.n_blocks)
        if self.noise_var is not None:
            validation.positive_number("noise_var", self.noise_var)
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise InputError("device='cuda' was asked for, but torch sees no CUDA device. Use device='cpu'.")
        row = approximations.get(self.approximation, self.power)
        self._check_stream_parameters(row)
        return row

    def _checked_data(self, X: Any, y: Any) -> tuple[Array, Array]:
        validation.require_finite_target(y)
        X_array, y_array = validate_data(
            self, X, y, dtype=np.float64, order="C", y_numeric=True, ensure_all_finite=False
        )
        validation.require_finite(X_array, getattr(self, "feature_names_in_", None))
        return X_array, np.asarray(y_array, dtype=np.float64)

    def _make_standardizer(self, X: Array, y: Array, weight: Array | None) -> Standardizer:
        if weight is not None and not weight.any():
            raise InputError("Every sample_weight is zero: there is nothing to learn from.")
        return Standardizer.from_data(X, y, weight) if self.normalize else Standardizer.identity(X.shape[1])

    def _tensor(self, X: Array) -> Tensor:
        return self._standardizer.tensor(X, DTYPES[self.dtype], torch.device(self.device))

    def _make_block(self, X: Array, y: Array, noise: Array | None, weight: Array | None) -> Block:
        inputs = self._tensor(X)
        scale_sq = self._standardizer.y_scale**2
        return Block(
            inputs,
            torch.from_numpy(self._standardizer.targets(y)).to(inputs),
            None if noise is None else torch.from_numpy(noise / scale_sq).to(inputs),
            None if weight is None else torch.from_numpy(weight).to(inputs),
        )

    def _problem(
        self,
        row: Approximation,
        rows: Rows,
        start: families.Start,
        rng: np.random.Generator,
        on_step: StepCallback,
    ) -> families.Problem:
        inducing = self.inducing
        if not isinstance(inducing, str):
            inducing = self._standardizer.inputs(validation.inducing_array(inducing, self.n_features_in_))
        return families.Problem(
            rows=rows,
            row=row,
            start=start,
            inducing=inducing,
            n_inducing=self.n_inducing,
            learn_inducing=self.learn_inducing,
            optimizer=self.optimizer,
            rng=rng,
            on_step=on_step,
            clip_variances=self.clip_variances,
        )

    def _starting_values(self, block: Block, rng: np.random.Generator) -> tuple[Kernel, float]:
        """Kernel and noise variance to start from, in the model's units."""
        scale_sq = self._standardizer.y_scale**2
        noise_var = None if self.noise_var is None else float(self.noise_var) / scale_sq
        if isinstance(self.kernel, str):
            variance = float(block.y.var(correction=0)) or 1.0
            kernel: Kernel = kernel_class(self.kernel)(
                variance=variance, lengthscales=median_lengthscales(block.X, rng)
            )
        else:
            given, white = as_kernel(self.kernel)
            kernel = self._standardizer.standardized_kernel(given)
            if self.normalize and self.optimizer is not None:
                validation.warn_of_odd_lengthscales(kernel)
            noise_var = white / scale_sq if noise_var is None and white is not None else noise_var
        if noise_var is None:
            noise_var = neighbour_noise_var(block.X, block.y, rng)
        return kernel.to(torch.device(self.device)), noise_var

    def _store(self, row: Approximation, fitted: families.Fitted, started: float) -> None:
        units = self._standardizer
        self._fitted = fitted
        self._row = row
        self.kernel_ = units.raw_kernel(fitted.kernel)
        self.noise_var_ = fitted.noise_var * units.y_scale**2
        self.inducing_ = units.raw_inputs(fitted.inducing.cpu().numpy())
        self.info_ = {**fitted.info, "seconds": time.perf_counter() - started}
        if self._blocking is not None:
            self.info_["n_blocks"] = self._blocking.partition.n_blocks

    def _is_plain(self, X: Any) -> bool:
        """A float64 matrix of the right width after a fit without column names: nothing for scikit-learn to check."""
        plain = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0
        return plain and X.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_")

    def _checked_new(self, X: Any, blocks: ArrayLike | None) -> tuple[Tensor, Tensor | None]:
        check_is_fitted(self)
        if not self._is_plain(X):
            X = validate_data(self, as_frame(X), dtype=np.float64, order="C", ensure_all_finite=False, reset=False)
        validation.require_finite(X, getattr(self, "feature_names_in_", None))
        tensor = self._tensor(X)
        if self._blocking is None:
            if blocks is not None:
                raise InputError(
                    f"blocks= is for approximations with blocks (pitc, pic, block-pep); this is {self._row.name!r}."
                )
            return tensor, None
        return tensor, self._blocking.labels(tensor, blocks) if self._row.is_local else None

    def _marginals(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, float]:
        inputs = self._checked_new(X, blocks)
        mean, var = self._fitted.posterior.marginals(*inputs)
        units = self._standardizer
        return (
            mean.double().cpu().numpy() * units.y_scale + units.y_mean,
            var.double().cpu().numpy() * units.y_scale**2,
            self.noise_var_,
        )

    def _joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, float]:
        inputs = self._checked_new(X, blocks)
        mean, cov = self._fitted.posterior.joint(*inputs)
        units = self._standardizer
        return (
            mean.double().cpu().numpy() * units.y_scale + units.y_mean,
            cov.double().cpu().numpy() * units.y_scale**2,
            self.noise_var_,
        )

    def _nonnegative(self, var: Array) -> Array:
        if (var >= 0).all():
            return var
        raise NegativeVarianceError(
            f"{int((var < 0).sum())} of {len(var)} predictive variances are negative (lowest {var.min():.3g}): the "
            "Nystrom approximation is not a probability model. Look at them with return_cov=True, clip them with "
            "clip_variances=True, or use approximation='dtc', its proper relative."
        )
