"""The empirical heteroscedastic GP on a subset of data: a GP for y, then a GP for the logs of its squared residuals."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.block import Block
from sparsegp.core.dense import ExactPosterior, require_dense_size
from sparsegp.fit.start import median_lengthscales
from sparsegp.kernels import Kernel
from sparsegp.kernels import get as kernel_class
from sparsegp.learn import lbfgs
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import ExactObjective
from sparsegp.noise.noise_start import LOG_CHI_SQUARED_MEAN, LOG_CHI_SQUARED_VAR

SMALLEST_SQUARE = 1e-8


class EmpiricalHeteroscedasticRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """EHSoD of paper 001: mean from an exact GP, noise variance exp(g) with g from a second GP on log r^2.

    The two are fitted one after the other, so the first knows nothing of the noise of the second.
    """

    def __init__(self, kernel: str = "se", n_subset: int = 1000, random_state: Any = None) -> None:
        self.kernel = kernel
        self.n_subset = n_subset
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        X_array, y_array = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        require_dense_size(min(self.n_subset, len(X_array)))
        rng = np.random.default_rng(self.random_state)
        self._units = _moments(X_array), _moments(y_array)
        index = rng.permutation(len(X_array))[: self.n_subset]
        inputs, targets = self._inputs(X_array[index]), torch.from_numpy(_scaled(y_array[index], self._units[1]))
        self._mean_gp, noise = _learned(self.kernel, inputs, targets, 0.1, rng)
        # e^2 / (1 - leverage) = noise alpha^2 / [C^-1]_ii: what the fit has seen looks too small by its leverage
        precision = linalg.inverse_from_cholesky(self._mean_gp.C.factor).diagonal()
        squares = noise * self._mean_gp.alpha.square() / precision
        logs = squares.clamp_min(SMALLEST_SQUARE).log() - LOG_CHI_SQUARED_MEAN
        self._log_mean = float(logs.mean())
        self._noise_gp, _ = _learned(self.kernel, inputs, logs - self._log_mean, LOG_CHI_SQUARED_VAR, rng)
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, and its standard deviation (noise included)."""
        check_is_fitted(self)
        inputs = self._inputs(validate_data(self, X, dtype=np.float64, reset=False))
        shift, scale = self._units[1]
        mean, var = self._mean_gp.marginals(inputs)
        located = mean.numpy() * scale + shift
        if not return_std:
            return located
        g_mean, g_var = self._noise_gp.marginals(inputs)
        noise = torch.exp(self._log_mean + g_mean + 0.5 * g_var)
        return located, (var + noise).sqrt().numpy() * scale

    def _inputs(self, X: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(_scaled(X, self._units[0]))


def _learned(
    name: str, X: Tensor, y: Tensor, noise_var: float, rng: np.random.Generator
) -> tuple[ExactPosterior, float]:
    """An exact GP with learned kernel and noise."""
    kernel: Kernel = kernel_class(name)(variance=1.0, lengthscales=median_lengthscales(X, rng))
    hyper = Hyperparameters(kernel, noise_var, X[:1], learn_inducing=False)
    block = Block(X, y)
    limits = Limits((1e-6, 1e2), X.amin(0), X.amax(0))
    lbfgs.maximize(ExactObjective(block), hyper, limits, max_iterations=100)
    hyper.clear_gradient()
    return ExactPosterior.build(hyper.kernel, block, hyper.noise_var), float(hyper.noise_var)


def _moments(values: NDArray[np.float64]) -> tuple[Any, Any]:
    scale = np.asarray(values.std(axis=0))
    return values.mean(axis=0), np.where(scale > 0, scale, 1.0)


def _scaled(values: NDArray[np.float64], units: tuple[Any, Any]) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = (values - units[0]) / units[1]
    return scaled
