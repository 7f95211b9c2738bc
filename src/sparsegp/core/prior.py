"""The sparse prior: kernel, inducing inputs, noise and row, i.e. all that fixes what a block says about u."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block
from sparsegp.kernels import Kernel


@dataclass(frozen=True)
class Features:
    """What a prior says about a group of rows: W, and the residual K - Q or, for approximations by points, its
    diagonal."""

    W: Tensor
    residual: Tensor


@dataclass(frozen=True)
class SparsePrior:
    """u = L v with v ~ N(0, I), L L^T = Kuu; a row x has the whitened features L^-1 k_u(x).

    `noise_var` is the model's own noise variance; rows with a known one (`Block.noise_var`) do not use it.
    """

    kernel: Kernel
    inducing: Tensor
    noise_var: Tensor
    approx: Approximation
    Luu: linalg.Cholesky

    @classmethod
    def build(
        cls,
        kernel: Kernel,
        inducing: Tensor,
        noise_var: Tensor | float,
        approx: Approximation,
        least_jitter: float = 0.0,
    ) -> "SparsePrior":
        inducing = inducing.detach().to(torch.float64)
        with torch.no_grad():
            Kuu = kernel(inducing)
            Luu = linalg.cholesky(Kuu, name="covariance of the inducing inputs", least_jitter=least_jitter)
        noise = torch.as_tensor(noise_var, dtype=torch.float64, device=inducing.device).detach()
        return cls(kernel, inducing, noise, approx, Luu)

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes M x D numbers travel; the M x M factor is computed again, with the same jitter."""
        return SparsePrior.build, (self.kernel, self.inducing, self.noise_var, self.approx, self.Luu.jitter)

    @property
    def n_inducing(self) -> int:
        return self.inducing.shape[0]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of row, kernel parameters, noise and inducing inputs: equal exactly when statistics may be added."""
        digest = hashlib.sha256(f"{self.approx!r}|{self.kernel!r}|{self.Luu.jitter!r}".encode())
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

    def features(self, X: Tensor, K: Tensor | None = None) -> Tensor:
        """V = K_xu L^-T; the covariance K_xu is computed unless given."""
        if K is None:
            K = self.covariance(X)
        return linalg.whiten_rows(K, self.factor(X.dtype))

    def residual_diag(self, X: Tensor, V: Tensor) -> Tensor:
        """d_i = k_ii - q_ii, clipped at zero."""
        return (self.kernel.diagonal(X) - linalg.row_squares(V)).clamp_min_(0.0)

    def residual_block(self, X: Tensor, V: Tensor, K: Tensor | None = None) -> Tensor:
        """D = K_xx - Q_xx in float64, its diagonal clipped at zero; the covariance K_xx is computed unless given."""
        K = self.kernel(X) if K is None else K
        V64 = V.to(torch.float64)
        D = linalg.symmetric_product(V64, V64).neg_().add_(K)
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
