"""CommitteeGPRegressor: the scikit-learn shell of committees of experts."""

import math
import time
import warnings
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from sparsegp import linalg
from sparsegp.committee import aggregation
from sparsegp.committee.aggregation import Aggregation
from sparsegp.committee.division import CHOICES as PARTITIONS
from sparsegp.data import Block
from sparsegp.errors import InputError
from sparsegp.estimators import committee_fitting, validation
from sparsegp.estimators.blocking import drop_weightless
from sparsegp.estimators.committee_fitting import CommitteeProblem, ExpertKind, FittedCommittee
from sparsegp.estimators.frames import as_frame, split_target
from sparsegp.estimators.mixture import MixturePredictions, NoiseMixture
from sparsegp.estimators.predictions import Array
from sparsegp.estimators.progress import StepListener, with_callbacks
from sparsegp.estimators.shell import Estimator
from sparsegp.estimators.standardizer import Standardizer
from sparsegp.inducing import CHOICES as INDUCING_CHOICES
from sparsegp.kernels import Kernel, as_kernel
from sparsegp.kernels import get as kernel_class
from sparsegp.learning.progressive import OPTIMIZERS
from sparsegp.learning.starting_values import median_lengthscales, neighbour_noise_var

ROWS_PER_EXPERT = 500
NOISE_SAMPLE_ROWS = 2048


class CommitteeGPRegressor(MixturePredictions, Estimator):
    """Gaussian-process regression by experts on disjoint rows, with shared hyper-parameters.

    Parameters
    ----------
    kernel : as for SparseGPRegressor.
    expert : "exact", a row of the table of approximations (all but "sor" and "nystrom"), or an expert that learns how
        the noise varies: "vshgp" (f sparse) and "vhgp" (f exact).
    power : alpha of "pep" and "block-pep" experts.
    n_experts : number of experts; None gives about 500 rows each. k-means may end with a few more or less.
    aggregation : "grbcm" | "rbcm" | "bcm" | "gpoe" | "poe", how their answers become one (docs/committees.md). None is
        "rbcm" for experts that learn how the noise varies and "grbcm" for all others.
    partition : "kmeans" (compact in the metric of the kernel) or "random"; fit(blocks=...) gives your own.
    n_inducing, inducing : inducing inputs of each sparse expert: "kmeans", "random", "greedy".
    noise_kernel, n_noise_inducing : of the log noise g of "vshgp" and "vhgp", as in HeteroscedasticGPRegressor.
    noise_var : starting value of the noise variance in squared units of y; the value itself if `optimizer=None`.
    optimizer : "lbfgs" | "adam" | None (hyper-parameters and inducing inputs stay as given).
    learn_inducing : whether sparse experts learn their own inducing inputs.
    skip_tolerance : what distant experts that are not asked may change, all together: the variance relative to
        itself, the mean in prior standard deviations. 0 asks all experts everywhere.
    normalize : standardise X and y inside; predictions come back in the user's units.
    n_jobs : experts computed at the same time, each in a thread of its own; None uses all cores.

    Attributes
    ----------
    kernel_, noise_var_ : the shared hyper-parameters in the user's units. With learned noise, noise_var_ is its mean
        over a sample of the training rows, and noise_kernel_ and noise_mean_ are the prior of g.
    log_evidence_ : sum of the experts' log evidences or bounds, in the units they were computed in.
    info_ : number and sizes of experts, jitter, seconds, evaluations and stages of learning.
    """

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
        n_noise_inducing: int = 50,
        noise_var: float | None = None,
        optimizer: str | None = "lbfgs",
        learn_inducing: bool = True,
        skip_tolerance: float = 1e-6,
        normalize: bool = True,
        n_jobs: int | None = None,
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
        self.normalize = normalize
        self.n_jobs = n_jobs
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
        """Learn the shared hyper-parameters and compute every expert's posterior.

        `blocks` is an integer label per row: the expert it belongs to. The rest is as for SparseGPRegressor.
        """
        started = time.perf_counter()
        kind, row = self._checked_parameters()
        X, y = split_target(X, y, target)
        X_array, y_array = self._checked_data(X, y)
        weight = validation.row_vector(sample_weight, len(y_array), "sample_weight", allow_zero=True)
        noise = validation.row_vector(noise_var, len(y_array), "noise_var", allow_zero=False)
        if noise is not None and kind.noisy:
            raise InputError(f"expert={self.expert!r} learns the noise: give noise_var= per row to other experts only.")
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))

        self._standardizer = self._make_standardizer(X_array, y_array, weight)
        block, labels = drop_weightless(self._make_block(X_array, y_array, noise, weight), blocks)
        listener = StepListener(self, self.verbose)
        with linalg.flushed_denormals():
            fitted = committee_fitting.fit(self._problem(block, labels, kind, row, rng, listener))
        listener.close()
        self.n_samples_seen_ = len(y_array)
        self._store(fitted, block)
        self.info_ = {**fitted.info, "seconds": time.perf_counter() - started}
        return self

    def _problem(
        self,
        block: Block,
        labels: ArrayLike | None,
        kind: ExpertKind,
        row: Aggregation,
        rng: np.random.Generator,
        listener: StepListener,
    ) -> CommitteeProblem:
        kernel, noise_var = self._starting_values(block, rng)
        return CommitteeProblem(
            block=block,
            labels=labels,
            kernel=kernel,
            noise_var=noise_var,
            noise_kernel=self._starting_noise_kernel(block, rng),
            kind=kind,
            aggregation=row,
            partition=self.partition,
            n_experts=self._n_experts(len(block)),
            n_inducing=self.n_inducing,
            n_noise_inducing=self.n_noise_inducing,
            inducing=self.inducing,
            optimizer=self.optimizer,
            learn_inducing=self.learn_inducing,
            tolerance=float(self.skip_tolerance),
            n_jobs=self.n_jobs,
            rng=rng,
            on_step=listener,
        )

    def _store(self, fitted: FittedCommittee, block: Block) -> None:
        units = self._standardizer
        self._committee = fitted.committee
        self.kernel_ = units.raw_kernel(fitted.hyper.kernel)
        self.log_evidence_ = fitted.log_evidence
        if self._is_noisy:
            g = fitted.committee.processes[1]
            shift, scale = torch.from_numpy(units.x_mean), torch.from_numpy(units.x_scale)
            self.noise_kernel_ = g.kernel.rescaled(shift, scale, 1.0)
            self.noise_mean_ = g.mean + 2.0 * math.log(units.y_scale)
            of_rows = fitted.committee.moments(block.X[:: max(1, len(block) // NOISE_SAMPLE_ROWS)])[1]
            noise_var = torch.exp(of_rows.mean + 0.5 * of_rows.var).mean()
        else:
            noise_var = fitted.hyper.noise_var if block.noise_var is None else block.noise_var.mean()
        self.noise_var_ = float(noise_var) * units.y_scale**2

    @property
    def _is_noisy(self) -> bool:
        return len(self._committee.processes) > 1

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

    def _checked_parameters(self) -> tuple[ExpertKind, Aggregation]:
        validation.require_choice("optimizer", self.optimizer, (*OPTIMIZERS, None))
        validation.require_choice("inducing", self.inducing, INDUCING_CHOICES)
        validation.require_choice("partition", self.partition, PARTITIONS)
        counts = {"n_inducing": self.n_inducing, "n_noise_inducing": self.n_noise_inducing}
        optional = {"n_experts": self.n_experts, "n_jobs": self.n_jobs}
        for name, value in (*counts.items(), *((n, v) for n, v in optional.items() if v is not None)):
            validation.positive_count(name, value)
        if self.noise_var is not None:
            validation.positive_number("noise_var", self.noise_var)
        if not 0.0 <= float(self.skip_tolerance) < 1.0:
            raise InputError(
                f"skip_tolerance must be at least 0 (ask everybody) and below 1; got {self.skip_tolerance!r}."
            )
        kind = ExpertKind.get(self.expert, self.power)
        usual = "rbcm" if kind.noisy else "grbcm"
        return kind, aggregation.get(usual if self.aggregation is None else self.aggregation)

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
        return self._standardizer.tensor(X, torch.float64, torch.device("cpu"))

    def _make_block(self, X: Array, y: Array, noise: Array | None, weight: Array | None) -> Block:
        scale_sq = self._standardizer.y_scale**2
        return Block(
            self._tensor(X),
            torch.from_numpy(self._standardizer.targets(y)),
            None if noise is None else torch.from_numpy(noise / scale_sq),
            None if weight is None else torch.from_numpy(weight),
        )

    def _starting_values(self, block: Block, rng: np.random.Generator) -> tuple[Kernel, float]:
        """Kernel and noise variance to start from, in the model's units."""
        scale_sq = self._standardizer.y_scale**2
        noise_var = None if self.noise_var is None else float(self.noise_var) / scale_sq
        if isinstance(self.kernel, str):
            variance, lengthscales = float(block.y.var(correction=0)) or 1.0, median_lengthscales(block.X, rng)
            kernel: Kernel = kernel_class(self.kernel)(variance=variance, lengthscales=lengthscales)
        else:
            given, white = as_kernel(self.kernel)
            kernel = self._standardizer.standardized_kernel(given)
            if self.normalize and self.optimizer is not None:
                validation.warn_of_odd_lengthscales(kernel)
            noise_var = white / scale_sq if noise_var is None and white is not None else noise_var
        return kernel, neighbour_noise_var(block.X, block.y, rng) if noise_var is None else noise_var

    def _starting_noise_kernel(self, block: Block, rng: np.random.Generator) -> Kernel:
        if isinstance(self.noise_kernel, str):
            return kernel_class(self.noise_kernel)(variance=1.0, lengthscales=median_lengthscales(block.X, rng))
        scale = torch.from_numpy(1.0 / self._standardizer.x_scale)
        shift = -torch.from_numpy(self._standardizer.x_mean) * scale
        return as_kernel(self.noise_kernel)[0].rescaled(shift, scale, 1.0)

    def _checked_new(self, X: Any, blocks: ArrayLike | None) -> Tensor:
        check_is_fitted(self)
        if blocks is not None:
            raise InputError("blocks= is for fit: a committee asks every expert that may know something of a row.")
        X = validate_data(self, as_frame(X), dtype=np.float64, order="C", ensure_all_finite=False, reset=False)
        validation.require_finite(X, getattr(self, "feature_names_in_", None))
        return self._tensor(X)

    def _mixture(self, X: Any, blocks: ArrayLike | None) -> NoiseMixture:
        """Without a noise process, log noise is a known number: a mixture with a single part."""
        inputs = self._checked_new(X, blocks)
        f, *noise = self._committee.moments(inputs)
        mean, var = self._in_units(f.mean, f.var)
        if not noise:
            return NoiseMixture(mean, var, np.full_like(mean, math.log(self.noise_var_)), np.zeros_like(mean))
        (g,) = noise
        return NoiseMixture(mean, var, g.mean.numpy() + 2.0 * math.log(self._standardizer.y_scale), g.var.numpy())

    def _latent_joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array]:
        inputs = self._checked_new(X, blocks)
        return self._in_units(*self._committee.joint(inputs))

    def _in_units(self, mean: Tensor, var: Tensor) -> tuple[Array, Array]:
        units = self._standardizer
        return mean.numpy() * units.y_scale + units.y_mean, var.numpy() * units.y_scale**2
