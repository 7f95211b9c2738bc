"""The sparse prior: kernel, inducing inputs, noise and row, i.e. all that fixes what a block says about u."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sparsegp import linalg, parallel
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block
from sparsegp.core.trend import Trend
from sparsegp.kernels import Kernel, Stationary


@dataclass(frozen=True)
class Features:
    """What a prior says about a group of rows: W, and the residual K - Q or, for approximations by points, its
    diagonal."""

    W: Tensor
    residual: Tensor


@dataclass(frozen=True)
class SparsePrior:
    """u = L v with v ~ N(0, I), L L^T = Kuu; a row x has the whitened features L^-1 k_u(x).

    A trend adds its own features b T(x), and its coefficients to v: they come last. `noise_var` is the model's own
    noise variance; rows with a known one (`Block.noise_var`) do not use it.
    """

    kernel: Kernel
    inducing: Tensor
    noise_var: Tensor
    approx: Approximation
    Luu: linalg.Cholesky
    trend: Trend | None = None

    @classmethod
    def build(
        cls,
        kernel: Kernel,
        inducing: Tensor,
        noise_var: Tensor | float,
        approx: Approximation,
        least_jitter: float = 0.0,
        trend: Trend | None = None,
    ) -> "SparsePrior":
        inducing = inducing.detach().to(torch.float64)
        with torch.no_grad():
            Kuu = kernel(inducing)
            Luu = linalg.cholesky(Kuu, name="covariance of the inducing inputs", least_jitter=least_jitter)
        noise = torch.as_tensor(noise_var, dtype=torch.float64, device=inducing.device).detach()
        return cls(kernel, inducing, noise, approx, Luu, trend)

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes M x D numbers travel; the M x M factor is computed again, with the same jitter."""
        given = (self.kernel, self.inducing, self.noise_var, self.approx, self.Luu.jitter, self.trend)
        return SparsePrior.build, given

    @property
    def n_inducing(self) -> int:
        return self.inducing.shape[0]

    @property
    def n_features(self) -> int:
        """Length of v: inducing values and coefficients of the trend."""
        return self.n_inducing + (0 if self.trend is None else self.trend.n_features)

    @cached_property
    def root(self) -> Tensor:
        """diag(L, I): (u, coefficients of the trend) = root v."""
        if self.trend is None:
            return self.Luu.factor
        root = torch.eye(self.n_features).to(self.Luu.factor)
        root[: self.n_inducing, : self.n_inducing] = self.Luu.factor
        return root

    @cached_property
    def inverse_root(self) -> linalg.InverseLower:
        """L^-1, for predictions, which use it again and again."""
        with parallel.single(self.n_inducing):
            return linalg.InverseLower.of(self.Luu.factor)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of approximation, kernel, trend, noise and inducing inputs: equal when statistics may be added."""
        digest = hashlib.sha256(f"{self.approx!r}|{self.kernel!r}|{self.Luu.jitter!r}|{self.trend!r}".encode())
        tensors = [*self.kernel.state_dict().items(), ("noise", self.noise_var), ("inducing", self.inducing)]
        for name, value in tensors:
            digest.update(f"{name}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def _factors(self) -> dict[torch.dtype, Tensor]:
        return {torch.float64: self.Luu.factor}

    def factor(self, dtype: torch.dtype) -> Tensor:
        """L in the dtype of the rows; everything M x M is computed in float64 and cast once."""
        if dtype not in self._factors:
            self._factors[dtype] = self.Luu.factor.to(dtype)
        return self._factors[dtype]

    @cached_property
    def _columns(self) -> dict[torch.dtype, Callable[[Tensor], Tensor]]:
        return {}

    def covariance(self, X: Tensor) -> Tensor:
        """K_xu, without gradients."""
        if X.dtype not in self._columns:
            self._columns[X.dtype] = self.kernel.onto(self.inducing.to(X.dtype))
        with torch.no_grad():
            return self._columns[X.dtype](X)

    @cached_property
    def variance(self) -> float | None:
        """k(x, x) where it does not depend on x."""
        return float(self.kernel.variance.detach()) if isinstance(self.kernel, Stationary) else None

    def diagonal(self, X: Tensor) -> Tensor:
        """k(x, x) of each row, without gradients."""
        if self.variance is not None:
            return X.new_full((len(X),), self.variance)
        with torch.no_grad():
            return self.kernel.diagonal(X)

    def columns(self, X: Tensor, K: Tensor | None = None) -> Tensor:
        """[K_xu, b T(x)]: W root^T, not whitened yet; the covariance K_xu is computed unless given."""
        return self._with_trend(X, self.covariance(X) if K is None else K)

    def features(self, X: Tensor, K: Tensor | None = None) -> Tensor:
        """W = [K_xu L^-T, b T(x)]; the covariance K_xu is computed unless given."""
        given = K is not None
        K = self.covariance(X) if K is None else K
        return self._with_trend(X, linalg.whiten_rows(K, self.factor(X.dtype), overwrite=not given))

    def whitened(self, columns: Tensor) -> Tensor:
        """W from `columns`, by a product: for predictions."""
        W = self.inverse_root.whiten(self.of_kernel(columns))
        return W if self.trend is None else torch.cat([W, columns[:, self.n_inducing :]], dim=1)

    def _with_trend(self, X: Tensor, A: Tensor) -> Tensor:
        return A if self.trend is None else torch.cat([A, self.trend.features(X)], dim=1)

    def of_kernel(self, W: Tensor) -> Tensor:
        """The features without those of the trend, V with V V^T = Q."""
        return W if self.trend is None else W[:, : self.n_inducing]

    def residual_diag(self, X: Tensor, W: Tensor) -> Tensor:
        """d_i = k_ii - q_ii, clipped at zero."""
        return (self.kernel.diagonal(X) - linalg.row_squares(self.of_kernel(W))).clamp_min_(0.0)

    def residual_block(self, X: Tensor, W: Tensor, K: Tensor | None = None) -> Tensor:
        """D = K_xx - Q_xx in float64, its diagonal clipped at zero; the covariance K_xx is computed unless given."""
        D = self.kernel(X).to(torch.float64) if K is None else K.to(torch.float64, copy=True)
        linalg.less_row_gram_(D, self.of_kernel(W).to(torch.float64))
        D.diagonal().clamp_min_(0.0)
        return D

    def seen(self, X: Tensor) -> Features:
        """Features and residual of a group of rows that the approximation sees at once."""
        with torch.no_grad():
            W = self.features(X)
            return Features(W, self.residual_block(X, W) if self.approx.by_block else self.residual_diag(X, W))

    def row_noise(self, block: Block) -> Tensor:
        """Noise variance of each row of a block."""
        if block.noise_var is not None:
            return block.noise_var
        return self.noise_var.to(block.X.dtype).expand(len(block))
