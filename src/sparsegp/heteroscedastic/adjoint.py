"""Gradient of the bound for the parameters of g: kernel, inducing inputs and mean (derivations: H5).

    bar W = slope m^T + lam (W - W P^-1),     bar k_ii = -lam/2,    bar mu0 = sum slope
    bar Kuu = -L^-T (sum W^T bar W) L^-1 / 2

At the optimum of q(g_u) nothing comes through q (envelope theorem). `bar Kuu` holds because the bound does not change
when g_u is replaced by G g_u.
"""

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.data import CHUNK_ROWS
from sparsegp.heteroscedastic.hyperparameters import JointHyperparameters
from sparsegp.heteroscedastic.noise_process import NoiseProcess, NoiseSlopes
from sparsegp.pullback import push_back


def push_noise_gradient(hyper: JointHyperparameters, process: NoiseProcess, X: Tensor, slopes: NoiseSlopes) -> None:
    """Add dF/d(noise kernel, noise inducing inputs, noise mean) to the `.grad` of the hyper-parameters."""
    inverse_L = linalg.inverse_lower(process.prior.Luu.factor)
    gram = torch.zeros_like(inverse_L)
    for start in range(0, X.shape[0], CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        gram += _push_chunk(hyper, process, inverse_L, X[part], part, slopes)
    push_inducing(hyper, process, inverse_L, gram)
    if hyper.noise_mean.requires_grad:
        hyper.noise_mean.grad = slopes.slope.sum()


def push_inducing(hyper: JointHyperparameters, process: NoiseProcess, inverse_L: Tensor, gram: Tensor) -> None:
    """Push bar Kuu of gram = sum W^T bar W through the kernel of g."""
    with torch.enable_grad():
        Kuu = linalg.add_jitter(hyper.noise_kernel(hyper.noise_inducing), process.prior.Luu.jitter)
    push_back(Kuu, -0.5 * linalg.symmetric(inverse_L.mT @ gram @ inverse_L))


def _push_chunk(
    hyper: JointHyperparameters,
    process: NoiseProcess,
    inverse_L: Tensor,
    X: Tensor,
    part: slice,
    slopes: NoiseSlopes,
) -> Tensor:
    """Push one chunk through the kernel; gives its W^T bar W."""
    with torch.enable_grad():
        K = hyper.noise_kernel(X, hyper.noise_inducing)
        own = hyper.noise_kernel.diagonal(X)
    W = process.prior.features(X, K.detach())
    slope, lam = slopes.slope[part], slopes.lam[part]
    not_clipped = lam.where(own.detach() > linalg.row_squares(W), 0.0)
    W_bar = torch.outer(slope, process.q.mean) + not_clipped[:, None] * W - lam[:, None] * (W @ process.q.covariance)
    push_back(K, W_bar @ inverse_L)
    push_back(own, -0.5 * not_clipped)
    return W.mT @ W_bar
