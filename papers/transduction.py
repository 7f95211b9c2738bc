"""Models built for given test inputs: augmented SoR/DTC/FITC/PITC (004 sec. 8.1) and transductive BCM (004 sec. 7).

Each is an ordinary approximation with other inducing inputs, so nothing here but the choice of them is new.
"""

import torch
from torch import Tensor

from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, TestConditional
from sparsegp.core.block import MemoryRows
from sparsegp.core.prior import SparsePrior
from sparsegp.errors import InputError
from sparsegp.infer import batch

AUGMENTABLE = ("sor", "dtc", "fitc", "pitc")
SAME_POINT = 1e-12


def predict_augmented(prior: SparsePrior, rows: MemoryRows, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Latent mean, variance and log evidence of one augmented model per test point: inducing inputs U + {x_*}.

    With x_* among the inducing inputs f_* is part of u, so every test conditional is deterministic there.
    Cost O(N M^2) a test point. A test point already determined by u leaves the model as it is.
    """
    if prior.approx.name not in AUGMENTABLE:
        raise InputError(f"Augmentation is defined for {', '.join(AUGMENTABLE)}; got {prior.approx.name!r}.")
    parts = [_augmented_point(prior, rows, x[None]) for x in X]
    mean, var, evidence = (torch.stack(values) for values in zip(*parts, strict=True))
    return mean, var, evidence


def _augmented_point(prior: SparsePrior, rows: MemoryRows, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        determined = bool(prior.residual_diag(x, prior.features(x)) <= SAME_POINT * prior.kernel.diagonal(x))
    inducing = prior.inducing if determined else torch.cat([prior.inducing, x.to(prior.inducing)])
    augmented = SparsePrior.build(prior.kernel, inducing, prior.noise_var, prior.approx, prior.Luu.jitter)
    _, posterior, info = batch.infer(augmented, rows)
    mean, var = posterior.marginals(x)
    return mean[0], var[0], torch.tensor(info.log_evidence, dtype=torch.float64)


def predict_bcm(prior: SparsePrior, rows: MemoryRows, X: Tensor) -> tuple[Tensor, Tensor, float]:
    """Joint latent mean and covariance at X, and the log evidence, of the Bayesian committee machine.

    BCM is PITC whose inducing inputs are the test inputs; rows must be partitioned. Cost O(N n_*^2 + n_*^3).
    """
    transductive = SparsePrior.build(prior.kernel, X, prior.noise_var, _deterministic_pitc())
    _, posterior, info = batch.infer(transductive, rows)
    mean, cov = posterior.joint(X)
    return mean, cov, info.log_evidence


def _deterministic_pitc() -> Approximation:
    pitc = approximations.get("pitc")
    return Approximation("bcm", pitc.components, pitc.penalty, TestConditional.DETERMINISTIC, "004 sec. 7")
