"""The relevance vector machine: kernel functions at the inducing inputs as a basis with ARD weights (004 sec. 10.2)."""

import math
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsegp.core import inducing as inducing_inputs
from sparsegp.kernels import as_kernel


class RelevanceVectorRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """y = sum_j w_j k(x, u_j) + noise, w_j ~ N(0, 1/alpha_j); the alphas and the noise are learned, most w_j vanish.

    Stands on scikit-learn's ARDRegression. A degenerate GP: far from all u_j its variance shrinks to the noise.
    """

    def __init__(
        self,
        kernel: Any = "se",
        n_inducing: int = 100,
        inducing: Any = "kmeans",
        max_iterations: int = 300,
        prune_above: float = 1e6,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.max_iterations = max_iterations
        self.prune_above = prune_above
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        from sklearn.linear_model import ARDRegression  # half a second that users of the other models need not wait

        X_array, y_array = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        rng = np.random.default_rng(self.random_state)
        self.kernel_, _ = as_kernel(self.kernel)
        tensor = torch.from_numpy(X_array)
        chosen = inducing_inputs.select_inducing(self.inducing, self.kernel_, tensor, self.n_inducing, rng)
        self.inducing_ = chosen.numpy()
        self.ard_ = ARDRegression(
            max_iter=self.max_iterations,
            threshold_lambda=self.prune_above,
            fit_intercept=True,
            compute_score=False,
        ).fit(self._basis(X_array), y_array)
        self.noise_var_ = 1.0 / float(self.ard_.alpha_)
        self.relevance_ = np.flatnonzero(self.ard_.coef_)
        return self

    def _basis(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        with torch.no_grad():
            basis: NDArray[np.float64] = self.kernel_(torch.from_numpy(X), torch.from_numpy(self.inducing_)).numpy()
        return basis

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, and its standard deviation (noise included)."""
        check_is_fitted(self)
        X_array = validate_data(self, X, dtype=np.float64, reset=False)
        return self.ard_.predict(self._basis(X_array), return_std=return_std)


def rvm_posterior(
    Phi: NDArray[np.float64], y: NDArray[np.float64], alpha: NDArray[np.float64], noise_var: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Weights' mean and covariance and the log evidence at given prior precisions: S = (A + Phi^T Phi/s2)^-1."""
    root = Phi / np.sqrt(alpha)
    B = np.eye(len(alpha)) + root.T @ root / noise_var
    L = np.linalg.cholesky(B)
    half = np.linalg.solve(L, np.diag(1.0 / np.sqrt(alpha)))
    S = half.T @ half
    mean = S @ Phi.T @ y / noise_var
    quadratic = (y @ y - y @ Phi @ mean) / noise_var
    logdet = len(y) * math.log(noise_var) + 2.0 * np.log(np.diag(L)).sum()
    return mean, S, -0.5 * (len(y) * math.log(2.0 * math.pi) + logdet + float(quadratic))
