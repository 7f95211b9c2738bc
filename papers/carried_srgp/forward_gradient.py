"""The posterior of u and its derivatives, carried forward over mini-batches (003 sec. 4.1, appendix C).

The objective of the rows seen so far is J_k = sum (local parts) + Phi(B_k, h_k) with Phi = (h^T B^-1 h - log|B|)/2,
so the recursive bound increases by psi_k = J_k - J_{k-1}. Derivation: docs/derivations/srgp.md.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from papers.carried_srgp.sensitivities import (
    Directions,
    Gradient,
    Linearization,
    PointModel,
    Sensitivities,
    batch_sensitivities,
    in_double,
)
from sparsegp import linalg
from sparsegp.core.approximations import Approximation
from sparsegp.core.block import Block, MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.learn.hyperparameters import Hyperparameters


@dataclass(frozen=True)
class ForwardState:
    """Where an epoch stands: its coordinates L0 and the sums over the rows seen.

    `immediate` adds up the dense parts (see `ForwardGradient.deferred`) as they were when their batches came.
    """

    inverse_L0: Tensor
    total: Sensitivities
    immediate: Gradient


@dataclass(frozen=True)
class _Posterior:
    """q(v) = N(mean, covariance) of some sums, with the prior of the current parameters."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def build(cls, total: Sensitivities, here: Linearization) -> "_Posterior":
        B = here.prior_precision + total.precision
        LB = linalg.cholesky(B, name="posterior precision of the inducing values", smallest_pivot=0.0)
        covariance = linalg.inverse_from_cholesky(LB.factor)
        return cls(covariance @ total.shift, covariance)


class ForwardGradient:
    """init -> step -> step ...: each step adds a batch and gives d psi_k/d theta at the parameters of its prior.

    With the parameters held, the increments of all batches plus `deferred` are the gradient of J.
    """

    def __init__(self, hyper: Hyperparameters, approx: Approximation, *, learns_noise: bool = True) -> None:
        self.hyper = hyper
        self.directions = Directions.build(hyper, approx, learns_noise=learns_noise)

    @torch.no_grad()
    def init(self, prior: SparsePrior) -> ForwardState:
        """No rows seen."""
        total = Sensitivities.zero(prior.inducing, self.directions)
        nothing = self.directions.gradient(torch.zeros_like(total.targets), prior.inducing.shape[1])
        return ForwardState(linalg.inverse_lower(prior.Luu.factor), total, nothing)

    @torch.no_grad()
    def step(self, state: ForwardState, prior: SparsePrior, batch: Block) -> tuple[ForwardState, Gradient]:
        """d psi_k = d(local part) + d Phi_k - d Phi_{k-1}; sums over earlier batches stay as they were (stale)."""
        here = Linearization.build(self.directions, prior, state.inverse_L0)
        part, local = batch_sensitivities(self.directions, here, batch)
        new = replace(state, total=state.total + part)
        before, after = _Posterior.build(state.total, here), _Posterior.build(new.total, here)
        increment = local + self._slope(new.total, after, here) - self._slope(state.total, before, here)
        if not self.directions.learns_noise:
            increment.shared[0] = 0.0
        if not self._has_dense_part:
            return new, increment
        dense = self._dense_part(after, here, batch)
        return replace(new, immediate=new.immediate + dense), increment + dense

    @torch.no_grad()
    def deferred(self, state: ForwardState, prior: SparsePrior, rows: MemoryRows) -> Gradient | None:
        """What is still missing after the last batch, from one more pass; None for rows that have no such part.

        With a residual, dLambda/du_jq has the dense part -sum h h^T (dv/du_jq)/v^2, M^3 D numbers to carry. Instead
        each batch counts it at the posterior it led to, and here all of them are moved to the last posterior.
        """
        if not self._has_dense_part:
            return None
        here = Linearization.build(self.directions, prior, state.inverse_L0)
        return self._dense_part(_Posterior.build(state.total, here), here, rows.all) - state.immediate

    @property
    def _has_dense_part(self) -> bool:
        return self.directions.approx.keeps_residual and self.directions.n_dims > 0

    def _slope(self, total: Sensitivities, q: _Posterior, here: Linearization) -> Gradient:
        """d Phi/d theta = <A, dB> + m dh with A = dPhi/dB = -(B^-1 + m m^T)/2 and m = dPhi/dh."""
        A = (-0.5 * q.covariance).addr_(q.mean, q.mean, alpha=-0.5)
        columns = total.columns + here.inverse_L0 @ here.columns
        by_column = 2.0 * _by_column(columns, A @ here.inverse_L0) + total.targets * (here.inverse_L0.mT @ q.mean)
        slope = self.directions.gradient(by_column, self.hyper.inducing.shape[1])
        by_noise = total.spread.flatten(1) @ A.flatten() + total.pull @ q.mean
        slope.shared[: len(by_noise)] += by_noise
        return slope

    def _dense_part(self, q: _Posterior, here: Linearization, rows: Block) -> Gradient:
        """d/dU of sum s_i (w^T A w + y w^T m) through s(d(U)), by reverse mode."""
        U = self.hyper.inducing
        inner, total = torch.zeros_like(here.root), torch.zeros_like(here.prior.inducing)
        for chunk in map(in_double, MemoryRows(rows).chunks()):
            with torch.enable_grad():
                K = self.hyper.kernel(chunk.X, U)
            model = PointModel.build(here.prior, here.inverse_L, chunk, K.detach())
            W = K.detach() @ here.inverse_L0.mT
            mean = W @ q.mean
            second = mean * (mean - 2.0 * chunk.y) + linalg.row_dots(W @ q.covariance, W)
            DH = model.H * (-0.5 * second * model.s_by_d)[:, None]
            inner.addmm_(model.H.mT, DH)
            total += _pulled(K, U, -2.0 * DH)
        with torch.enable_grad():
            Kuu = linalg.add_jitter(self.hyper.kernel(U), here.prior.Luu.jitter)
        total += _pulled(Kuu, U, inner)
        return Gradient(total.new_zeros(1 + self.directions.n_shared), total)


def _by_column(matrices: Tensor, weight: Tensor) -> Tensor:
    """sum_i weight_ij matrices[t]_ij."""
    return torch.einsum("tij,ij->tj", matrices, weight)


def _pulled(value: Tensor, parameter: Tensor, adjoint: Tensor) -> Tensor:
    return torch.autograd.grad(value, parameter, adjoint)[0]
