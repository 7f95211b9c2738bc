"""Ways to learn the local scale: log c(x) from log(|z| + eps) of residuals, each with values left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.neighbors import NearestNeighbors

from sparsegp import SparseGPRegressor

Array = NDArray[np.float64]

FOLDS = 5


@dataclass(frozen=True)
class Residuals:
    """Standardised residuals z with what a scale may depend on: inputs, mean and log std of the forecast."""

    X: Array
    mean: Array
    log_std: Array
    z: Array
    metric: Array

    def __len__(self) -> int:
        return len(self.z)

    def take(self, index: NDArray[np.int64]) -> Residuals:
        return Residuals(self.X[index], self.mean[index], self.log_std[index], self.z[index], self.metric)

    def with_rows(self, other: Residuals) -> Residuals:
        pairs = ((self.X, other.X), (self.mean, other.mean), (self.log_std, other.log_std), (self.z, other.z))
        return Residuals(*(np.concatenate(pair) for pair in pairs), self.metric)

    @property
    def columns(self) -> Array:
        return np.column_stack([self.X, self.mean, self.log_std])

    def log_size(self, eps: float) -> Array:
        """log(|z| + eps median |z|), without its mean."""
        size = np.abs(self.z)
        out: Array = np.log(size + eps * max(float(np.median(size)), 1e-12))
        return out


class Scale(Protocol):
    """log c at new rows, and at the rows it was learned from as if each had not been there."""

    def at(self, rows: Residuals) -> Array: ...

    def left_out(self) -> Array: ...


Learner = Callable[[Residuals, float], Scale]


@dataclass(frozen=True)
class Folded:
    """A regression of log size on columns; left out by folds."""

    rows: Residuals
    fit: Callable[[Array, Array], Callable[[Array], Array]]
    eps: float
    predict: Callable[[Array], Array]

    @classmethod
    def of(cls, rows: Residuals, eps: float, fit: Callable[[Array, Array], Callable[[Array], Array]]) -> Folded:
        return cls(rows, fit, eps, fit(rows.columns, rows.log_size(eps)))

    def at(self, rows: Residuals) -> Array:
        return self.predict(rows.columns)

    def left_out(self) -> Array:
        columns, target = self.rows.columns, self.rows.log_size(self.eps)
        out = np.empty(len(target))
        fold = np.random.default_rng(0).permutation(len(target)) % FOLDS
        for k in range(FOLDS):
            out[fold == k] = self.fit(columns[fold != k], target[fold != k])(columns[fold == k])
        return out


def boosting(rows: Residuals, eps: float) -> Folded:
    def fit(columns: Array, target: Array) -> Callable[[Array], Array]:
        model = HistGradientBoostingRegressor(
            max_iter=300,
            learning_rate=0.06,
            min_samples_leaf=30,
            max_leaf_nodes=15,
            early_stopping=len(target) > 500,
            random_state=0,
        )
        if len(target) <= 500:
            model.set_params(max_iter=40)
        return model.fit(columns, target).predict  # type: ignore[no-any-return]

    return Folded.of(rows, eps, fit)


def gamma_boosting(rows: Residuals, eps: float) -> Folded:
    def fit(columns: Array, target: Array) -> Callable[[Array], Array]:
        model = HistGradientBoostingRegressor(
            loss="gamma",
            max_iter=300 if len(target) > 500 else 40,
            learning_rate=0.06,
            min_samples_leaf=30,
            max_leaf_nodes=15,
            early_stopping=len(target) > 500,
            random_state=0,
        )
        size = np.exp(target)
        model.fit(columns, np.minimum(size, 20 * np.median(size)))
        return lambda columns: np.log(model.predict(columns))

    return Folded.of(rows, eps, fit)


def ridge(rows: Residuals, eps: float) -> Folded:
    """Linear in log std, mean, their squares and the inputs."""

    def fit(columns: Array, target: Array) -> Callable[[Array], Array]:
        centre, width = columns.mean(0), columns.std(0) + 1e-9

        def basis(columns: Array) -> Array:
            u = np.clip((columns - centre) / width, -4, 4)
            return np.column_stack([u, np.abs(u), u[:, -2:] ** 2, u[:, -1] * u[:, -2]])

        model = RidgeCV(np.logspace(0, 5, 11)).fit(basis(columns), target)
        return lambda columns: model.predict(basis(columns))

    return Folded.of(rows, eps, fit)


@dataclass(frozen=True)
class Neighbours:
    """Mean of the log size of the k nearest rows, in the kernel's metric or with mean and log std as well."""

    rows: Residuals
    eps: float
    k: int
    forecast_weight: float
    offset: Folded | None = None

    def _places(self, rows: Residuals) -> Array:
        X = rows.X * self.rows.metric
        if self.forecast_weight == 0:
            return X
        spread = float(np.sqrt((self.rows.X * self.rows.metric).var(0).sum()))
        width = self.forecast_weight * spread
        mean = rows.mean / self.rows.mean.std()
        log_std = rows.log_std / max(float(self.rows.log_std.std()), 1e-9)
        return np.column_stack([X, width * mean, width * log_std])

    def _of(self, distances: Array, index: NDArray[np.int64]) -> Array:
        target = self.rows.log_size(self.eps)
        if self.offset is not None:
            target = target - self.offset.predict(self.rows.columns)
        weight = np.exp(-0.5 * (distances / (distances[:, -1:] + 1e-12)) ** 2 * 2)
        out: Array = (weight * target[index]).sum(1) / weight.sum(1)
        return out

    def at(self, rows: Residuals) -> Array:
        search = NearestNeighbors(n_neighbors=min(self.k, len(self.rows))).fit(self._places(self.rows))
        out = self._of(*search.kneighbors(self._places(rows)))
        return out if self.offset is None else out + self.offset.at(rows)

    def left_out(self) -> Array:
        search = NearestNeighbors(n_neighbors=min(self.k, len(self.rows) - 1)).fit(self._places(self.rows))
        out = self._of(*search.kneighbors())
        return out if self.offset is None else out + self.offset.left_out()


def neighbours(k: int, forecast_weight: float = 0.0, *, on_ridge: bool = False) -> Learner:
    def learn(rows: Residuals, eps: float) -> Scale:
        return Neighbours(rows, eps, k, forecast_weight, ridge(rows, eps) if on_ridge else None)

    return learn


@dataclass(frozen=True)
class Process:
    """A sparse GP of the log size; left out by folds at its hyper-parameters."""

    rows: Residuals
    eps: float
    gp: SparseGPRegressor
    noise_kernel: str

    def at(self, rows: Residuals) -> Array:
        out: Array = self.gp.predict(rows.columns)
        return out

    def left_out(self) -> Array:
        columns, target = self.rows.columns, self.rows.log_size(self.eps)
        out = np.empty(len(target))
        fold = np.random.default_rng(0).permutation(len(target)) % FOLDS
        for k in range(FOLDS):
            rest = SparseGPRegressor(
                kernel=self.gp.kernel_,
                approximation=self.gp.approximation,
                inducing=self.gp.inducing_,
                n_inducing=len(self.gp.inducing_),
                n_blocks=self.gp.n_blocks,
                noise_var=self.gp.noise_var_,
                optimizer=None,
                random_state=0,
            ).fit(columns[fold != k], target[fold != k])
            out[fold == k] = rest.predict(columns[fold == k])
        return out


def process(approximation: str, n_inducing: int, seconds: float, kernel: str = "matern32") -> Learner:
    def learn(rows: Residuals, eps: float) -> Scale:
        n = len(rows)
        gp = SparseGPRegressor(
            kernel=kernel,
            approximation=approximation,
            n_inducing=min(n_inducing, max(10, n // 4)),
            n_blocks=max(1, round(n / 800)) if approximation == "pic" else None,
            time_budget=seconds,
            random_state=0,
        ).fit(rows.columns, rows.log_size(eps))
        return Process(rows, eps, gp, kernel)

    return learn


@dataclass(frozen=True)
class Trend:
    """A basis of few columns: clipped standardised columns, their absolute values, squares of mean and log std."""

    centre: Array
    width: Array

    @classmethod
    def of(cls, columns: Array) -> Trend:
        return cls(columns.mean(0), columns.std(0) + 1e-9)

    def __call__(self, columns: Array) -> Array:
        u = np.clip((columns - self.centre) / self.width, -4, 4)
        return np.column_stack([np.ones(len(u)), u, np.abs(u), u[:, -2:] ** 2, u[:, -1] * u[:, -2]])


@dataclass(frozen=True)
class Bumps:
    """Whitened Matern 3/2 features of some centres in the kernel's metric, with mean and log std as two more inputs."""

    centres: Array
    scales: Array
    length: float
    factor: Array

    @classmethod
    def of(cls, rows: Residuals, n_centres: int, forecast_weight: float, length: float) -> Bumps:
        spread = float(np.sqrt((rows.X * rows.metric).var(0).sum()))
        width = forecast_weight * spread
        scales = np.concatenate(
            [rows.metric, [width / max(rows.mean.std(), 1e-9), width / max(rows.log_std.std(), 1e-9)]]
        )
        chosen = np.random.default_rng(0).permutation(len(rows))[:n_centres]
        centres = rows.columns[chosen] * scales
        gaps = np.sqrt(((centres[: len(centres) // 2] - centres[len(centres) // 2 :][: len(centres) // 2]) ** 2).sum(1))
        length = length * float(np.median(gaps))
        K = _matern32(centres, centres, length)
        return cls(centres, scales, length, np.linalg.cholesky(K + 1e-6 * np.eye(len(K))))

    def __call__(self, columns: Array) -> Array:
        K = _matern32(columns * self.scales, self.centres, self.length)
        out: Array = np.linalg.solve(self.factor, K.T).T
        return out


def _matern32(A: Array, B: Array, length: float) -> Array:
    square = (A**2).sum(1)[:, None] + (B**2).sum(1) - 2 * A @ B.T
    u = np.sqrt(3 * np.maximum(square, 0)) / length
    out: Array = (1 + u) * np.exp(-u)
    return out


@dataclass(frozen=True)
class Surface:
    """Ridge regression of the log size on trend and bumps: the mean of a small GP with a trend.

    Length and penalty are those with the least squared error on a fifth of the rows.
    """

    rows: Residuals
    eps: float
    basis: Callable[[Array], Array]
    penalty: Array
    weights: Array

    def at(self, rows: Residuals) -> Array:
        out: Array = self.basis(rows.columns) @ self.weights
        return out

    def left_out(self) -> Array:
        B, target = self.basis(self.rows.columns), self.rows.log_size(self.eps)
        inverse = np.linalg.inv(B.T @ B + np.diag(self.penalty))
        leverage = ((B @ inverse) * B).sum(1)
        out: Array = (B @ self.weights - leverage * target) / (1 - leverage)
        return out


def surface(
    n_centres: int, forecast_weight: float = 0.5, lengths: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
) -> Learner:
    def learn(rows: Residuals, eps: float) -> Scale:
        columns, target = rows.columns, rows.log_size(eps)
        trend = Trend.of(columns)
        check = np.random.default_rng(1).random(len(rows)) < 0.2
        best = None
        linear = trend(columns)
        for length in lengths:
            bumps = Bumps.of(rows, min(n_centres, len(rows) // 4), forecast_weight, length)
            B = np.hstack([linear, bumps(columns)])
            n_linear = linear.shape[1]
            gram, moment = B[~check].T @ B[~check], B[~check].T @ target[~check]
            for ridge_penalty in (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0):
                penalty = np.full(B.shape[1], ridge_penalty)
                penalty[:n_linear] = 1.0
                penalty[0] = 1e-6
                weights = np.linalg.solve(gram + np.diag(penalty), moment)
                error = float(((B[check] @ weights - target[check]) ** 2).mean())
                if best is None or error < best[0]:
                    best = (error, bumps, penalty, B)
        assert best is not None
        _, bumps, penalty, B = best
        weights = np.linalg.solve(B.T @ B + np.diag(penalty), B.T @ target)
        return Surface(rows, eps, lambda columns: np.hstack([trend(columns), bumps(columns)]), penalty, weights)

    return learn


@dataclass(frozen=True)
class WithNeighbours:
    """Another learner with the neighbours' mean log size as columns of the forecast."""

    rows: Residuals
    near: tuple[Neighbours, ...]
    scale: Scale

    def at(self, rows: Residuals) -> Array:
        return self.scale.at(_extended(rows, [near.at(rows) for near in self.near]))

    def left_out(self) -> Array:
        return self.scale.left_out()


def _extended(rows: Residuals, columns: list[Array]) -> Residuals:
    X = np.column_stack([*columns, rows.X])
    return Residuals(X, rows.mean, rows.log_std, rows.z, np.concatenate([np.zeros(len(columns)), rows.metric]))


def with_neighbours(learner: Learner, ks: tuple[int, ...] = (30, 100)) -> Learner:
    def learn(rows: Residuals, eps: float) -> Scale:
        near = tuple(Neighbours(rows, eps, k, 0.0) for k in ks)
        return WithNeighbours(rows, near, learner(_extended(rows, [one.left_out() for one in near]), eps))

    return learn
