"""CommitteeGPRegressor: the scikit-learn shell of committees of experts."""

import math
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from torch import Tensor

from sparsegp import linalg
from sparsegp.committee import aggregation, processes
from sparsegp.committee.aggregation import Aggregation
from sparsegp.committee.division import CHOICES as PARTITIONS
from sparsegp.committee.parallel import n_workers
from sparsegp.committee.training import Crew, Threads
from sparsegp.data import Block
from sparsegp.errors import InputError
from sparsegp.estimators import committee_fitting
from sparsegp.estimators.choices.kernel_judges import LearnedNoise
from sparsegp.estimators.choices.starting_points import starting_noise_kernel, starting_point
from sparsegp.estimators.committee_fitting import CommitteeProblem, ExpertKind, FittedCommittee
from sparsegp.estimators.incoming import arrivals, clusters, validation
from sparsegp.estimators.incoming.blocking import drop_weightless
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.predicting.mixture import MixturePredictions, NoiseMixture
from sparsegp.estimators.predicting.predictions import Array
from sparsegp.estimators.progress import StepListener, with_callbacks
from sparsegp.estimators.shell import Estimator, all_or_nothing
from sparsegp.files import schema
from sparsegp.inducing import CHOICES as INDUCING_CHOICES
from sparsegp.learning.progressive import OPTIMIZERS
from sparsegp.sources import to_block

BACKENDS = ("threads", "processes")
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
    normalize : standardise X and y inside; predictions come back in the user's units.
    n_jobs : experts computed at the same time, each in a thread or process of its own; None uses all cores.
    backend : where they are computed during `fit`, "threads" or "processes". Processes take a few seconds to start and
        are faster where learning takes minutes; the model is the same. Predictions always use threads.

    Attributes
    ----------
    kernel_, noise_var_ : the shared hyper-parameters in the user's units. With learned noise, noise_var_ is its mean
        over a sample of the training rows, and noise_kernel_ and noise_mean_ are the prior of g.
    log_evidence_ : sum of the experts' log evidences or bounds, in the units they were computed in.
    info_ : number and sizes of experts, jitter, seconds, evaluations and stages of learning.
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
        normalize: bool = True,
        n_jobs: int | None = None,
        backend: str = "threads",
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
        self.normalize = normalize
        self.n_jobs = n_jobs
        self.backend = backend
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks  # type: ignore[untyped-decorator]
    @all_or_nothing
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
        started = time.perf_counter()
        kind, row = self._checked_parameters()
        if self.most_asked is not None and self.partition == "random" and blocks is None:
            raise InputError(
                "most_asked= asks the experts nearest to a row, and with partition='random' none is nearer than "
                "another: use partition='kmeans', or leave most_asked=None."
            )
        batch = arrivals.training_batch(self, X, y, target=target, noise_var=noise_var, sample_weight=sample_weight)
        if batch.noise_var is not None and kind.noisy:
            raise InputError(f"expert={self.expert!r} learns the noise: give noise_var= per row to other experts only.")
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        self._standardizer = Standardizer.of(batch, normalize=self.normalize)
        block, labels = drop_weightless(to_block(batch, self._standardizer), blocks)
        listener = StepListener(self, self.verbose)
        where = clusters.chosen(client, cluster)
        with linalg.flushed_denormals():
            problem = self._problem(block, labels, kind, row, rng, listener)
            with self._crew(where, problem.n_experts) as crew:
                fitted = committee_fitting.fit(replace(problem, crew=crew))
        listener.close()
        self.n_samples_seen_ = len(batch)
        self._store(fitted, block)
        self.info_ = {**fitted.info, "seconds": time.perf_counter() - started}
        return self

    def _crew(self, where: Any, n_experts: int) -> AbstractContextManager[Crew]:
        if where is not None:
            return cast(AbstractContextManager[Crew], clusters.distributed().crew(where))
        if self.backend == "processes":
            return processes.started(n_workers(self.n_jobs, n_experts))
        return nullcontext(Threads(self.n_jobs))

    def _problem(
        self,
        block: Block,
        labels: ArrayLike | None,
        kind: ExpertKind,
        row: Aggregation,
        rng: np.random.Generator,
        listener: StepListener,
    ) -> CommitteeProblem:
        n_experts = self._n_experts(len(block)) if labels is None else len(np.unique(labels))
        noise_kernel = starting_noise_kernel(self.noise_kernel, self._standardizer, block, rng)
        judge = LearnedNoise(noise_kernel, self.n_noise_inducing * n_experts / len(block)) if kind.noisy else None
        start = starting_point(self, self._standardizer, block, rng, judge)
        return CommitteeProblem(
            block=block,
            labels=labels,
            kernel=start.kernel,
            noise_var=start.noise_var,
            noise_kernel=noise_kernel,
            kind=kind,
            aggregation=row,
            partition=self.partition,
            n_experts=n_experts,
            n_inducing=self.n_inducing,
            n_noise_inducing=self.n_noise_inducing,
            inducing=self.inducing,
            optimizer=self.optimizer,
            learn_inducing=self.learn_inducing,
            tolerance=float(self.skip_tolerance),
            most_asked=self.most_asked,
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
            self.noise_kernel_ = units.raw_noise_kernel(g.kernel)
            self.noise_mean_ = g.mean + units.log_noise_shift
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
        validation.require_choice("backend", self.backend, BACKENDS)
        counts = {"n_inducing": self.n_inducing, "n_noise_inducing": self.n_noise_inducing}
        optional = {"n_experts": self.n_experts, "n_jobs": self.n_jobs, "most_asked": self.most_asked}
        for name, value in (*counts.items(), *((n, v) for n, v in optional.items() if v is not None)):
            validation.positive_count(name, value)
        if self.noise_var is not None:
            validation.positive_number("noise_var", self.noise_var)
        if not 0.0 <= float(self.skip_tolerance) < 1.0:
            raise InputError(
                f"skip_tolerance must be at least 0 (ask everybody) and below 1; got {self.skip_tolerance!r}."
            )
        kind = ExpertKind.get(self.expert, self.power)
        usual = "tpoe" if kind.noisy else "grbcm"
        return kind, aggregation.get(usual if self.aggregation is None else self.aggregation)

    def _new_rows(self, X: Any, blocks: ArrayLike | None) -> Tensor:
        if blocks is not None:
            raise InputError("blocks= is for fit: a committee asks every expert that may know something of a row.")
        X = arrivals.new_inputs(self, X)
        return self._standardizer.tensor(X)

    def _mixture(self, X: Any, blocks: ArrayLike | None) -> NoiseMixture:
        """Without a noise process, log noise is a known number: a mixture with a single part."""
        inputs = self._new_rows(X, blocks)
        f, *noise = self._committee.moments(inputs)
        units = self._standardizer
        mean, var = units.raw_moments(f.mean, f.var)
        if not noise:
            return NoiseMixture(mean, var, np.full_like(mean, math.log(self.noise_var_)), np.zeros_like(mean))
        (g,) = noise
        return NoiseMixture(mean, var, g.mean.numpy() + units.log_noise_shift, g.var.numpy())

    def _latent_joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array]:
        inputs = self._new_rows(X, blocks)
        return self._standardizer.raw_moments(*self._committee.joint(inputs))
