"""Everything a user asks of a Gaussian predictive distribution, from two primitives of the estimator."""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from sparsegp.errors import InputError
from sparsegp.estimators.incoming import clusters

Array = NDArray[np.float64]


class GaussianPredictions:
    """Mixin: mean, std, intervals, quantiles, densities and samples in the user's units."""

    @abstractmethod
    def _marginals(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, float]:
        """Mean and variance of f at each row, and the noise variance of y given f."""

    @abstractmethod
    def _joint(self, X: Any, blocks: ArrayLike | None) -> tuple[Array, Array, float]:
        """Mean and covariance of f at all rows, and the noise variance of y given f."""

    def _mean(self, X: Any, blocks: ArrayLike | None) -> Array:
        return self._marginals(X, blocks)[0]

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
        if clusters.is_dask(X):
            if return_cov or blocks is not None:
                raise InputError("Of a dask collection there are predictions row by row: no return_cov, no blocks=.")
            return clusters.distributed().lazy_predictions(self, X, return_std=return_std, latent=latent)
        if return_std and return_cov:
            raise InputError(
                "Ask for return_std or return_cov, not both: the std is the root of the covariance's diagonal."
            )
        if return_cov:
            mean, cov, noise_var = self._joint(X, blocks)
            return mean, cov if latent else cov + noise_var * np.eye(len(mean))
        if not return_std:
            return self._mean(X, blocks)
        mean, var, noise_var = self._marginals(X, blocks)
        return mean, np.sqrt(self._nonnegative(var if latent else var + noise_var))

    def _nonnegative(self, var: Array) -> Array:
        """Variances that are variances; overridden where a model can return negative ones."""
        return var

    def predict_components(self, X: Any, blocks: ArrayLike | None = None) -> tuple[Array, Array, Array]:
        """Mean of y, epistemic std (what more data would remove) and aleatoric std (the noise)."""
        mean, var, noise_var = self._marginals(X, blocks)
        return mean, np.sqrt(self._nonnegative(var)), np.full_like(mean, np.sqrt(noise_var))

    def predict_quantiles(self, X: Any, q: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Quantiles of y: one column for each level in q."""
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise InputError(f"Quantile levels must lie strictly between 0 and 1; got {q!r}.")
        mean, std = self.predict(X, return_std=True, blocks=blocks)
        quantiles: Array = mean[:, None] + std[:, None] * ndtri(levels)
        return quantiles

    def predict_interval(self, X: Any, coverage: float = 0.95, blocks: ArrayLike | None = None) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds y with probability `coverage`."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage is a probability strictly between 0 and 1; got {coverage!r}.")
        ends = self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2], blocks)
        return ends[:, 0], ends[:, 1]

    def log_density(self, X: Any, y: ArrayLike, blocks: ArrayLike | None = None) -> Array:
        """Log density of each target under its prediction; minus its mean is the NLPD."""
        mean, std = self.predict(X, return_std=True, blocks=blocks)
        target = np.asarray(y, dtype=np.float64).ravel()
        if target.shape != mean.shape:
            raise InputError(f"y must have one target for each of the {len(mean)} rows; got {len(target)}.")
        density: Array = -0.5 * (np.log(2 * np.pi) + ((target - mean) / std) ** 2) - np.log(std)
        return density

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = None,
        latent: bool = False,
        blocks: ArrayLike | None = None,
    ) -> Array:
        """Joint samples of y (or f) at the rows of X: an array [rows, n_samples]."""
        mean, cov, noise_var = self._joint(X, blocks)
        rng = np.random.default_rng(random_state)
        values, vectors = np.linalg.eigh(cov)
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        draws: Array = mean[:, None] + root @ rng.standard_normal((len(mean), n_samples))
        if not latent:
            draws += np.sqrt(noise_var) * rng.standard_normal(draws.shape)
        return draws
