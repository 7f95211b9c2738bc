"""Peer: value and gradient of the VFE bound by GPyTorch SGPR (InducingPointKernel with its trace term).

The covariance is a low-rank root plus a diagonal, for which GPyTorch uses Woodbury's identity and an M x M
Cholesky factor: no conjugate gradients and no stochastic log determinant are involved.
"""

from __future__ import annotations

import sys

import gpytorch
import torch
from benchmarks.jobs import Arrays, read_job, write_result
from benchmarks.measure import PeakMemory, median_seconds


class SGPR(gpytorch.models.ExactGP):
    def __init__(self, X: torch.Tensor, y: torch.Tensor, problem: Arrays) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1]))
        inducing = torch.from_numpy(problem["Z"]).clone()
        self.covar_module = gpytorch.kernels.InducingPointKernel(base, inducing, likelihood)
        self.double()
        base.base_kernel.lengthscale = torch.from_numpy(problem["lengthscales"])
        base.outputscale = float(problem["variance"])
        likelihood.noise = float(problem["noise_var"])

    def forward(self, X: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def main(folder: str) -> None:
    problem, options = read_job(folder)
    memory = PeakMemory()
    X, y = torch.from_numpy(problem["X"]), torch.from_numpy(problem["y"])
    model = SGPR(X, y, problem)
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)

    def value_and_gradient() -> float:
        model.zero_grad()
        loss = -objective(model(X), y)
        loss.backward()
        return -loss.item() * len(y)

    timing = median_seconds(value_and_gradient, options["repeats"])
    value = value_and_gradient()
    facts = {
        **timing.as_facts(),
        "peak_mb": memory.above_start_mb(),
        "value": value,
        "inducing_gradient_norm": float(model.covar_module.inducing_points.grad.norm()) * len(y),
        "version": gpytorch.__version__,
    }
    write_result(folder, facts)


if __name__ == "__main__":
    main(sys.argv[1])
