"""Peer: stochastic variational GP of GPyTorch for a given time, scored at some moments while the clock stands still.

The recipe of GPyTorch's own documentation: natural gradients for q(u), Adam for the rest, both on the same mini-batch.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gpytorch
import numpy as np
import torch
from benchmarks.jobs import Arrays, read_job, standardise, write_result
from sklearn.cluster import MiniBatchKMeans

KERNELS = {"se": gpytorch.kernels.RBFKernel, "matern32": lambda **given: gpytorch.kernels.MaternKernel(1.5, **given)}
PREDICT_ROWS = 10_000


class SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, X: np.ndarray, options: dict[str, Any]) -> None:
        n_inducing = min(options["n_inducing"], len(X))
        centres = MiniBatchKMeans(n_inducing, random_state=0, n_init=1, batch_size=4096).fit(X).cluster_centers_
        distribution = gpytorch.variational.NaturalVariationalDistribution(n_inducing)
        inducing = torch.from_numpy(centres.astype(np.float64))
        strategy = gpytorch.variational.VariationalStrategy(self, inducing, distribution, learn_inducing_locations=True)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        base = KERNELS[options["kernel"]](ard_num_dims=X.shape[1])
        base.lengthscale = options["lengthscale"] * X.shape[1] ** 0.5
        self.covar_module = gpytorch.kernels.ScaleKernel(base)

    def forward(self, X: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def learn(problem: Arrays, options: dict[str, Any]) -> dict[str, Any]:
    """Standardising and k-means count."""
    started, paused = time.perf_counter(), 0.0
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    X, X_test = standardise(problem["X"], problem["X_test"])
    model, likelihood = SVGP(X, options), gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = options["noise_var"]
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    natural = gpytorch.optim.NGD(model.variational_parameters(), num_data=len(X), lr=options["natural_step"])
    adam = torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=options["adam_step"])
    inputs, y, rng = torch.from_numpy(X), torch.from_numpy(problem["y"]), np.random.default_rng(0)
    moments, trace, steps = sorted(options["moments"]), [], 0
    while moments:
        rows = torch.from_numpy(rng.integers(0, len(X), options["batch"]))
        natural.zero_grad()
        adam.zero_grad()
        loss = -bound(model(inputs[rows]), y[rows])
        loss.backward()
        natural.step()
        adam.step()
        steps += 1
        now = time.perf_counter()
        if now - started - paused < moments[0]:
            continue
        trace.append({"seconds": now - started - paused, "steps": steps, **scores(model, likelihood, X_test, problem)})
        paused += time.perf_counter() - now
        moments = [moment for moment in moments if moment > trace[-1]["seconds"]]
    return {"trace": trace, "version": gpytorch.__version__}


def scores(model: SVGP, likelihood: Any, X_test: np.ndarray, problem: Arrays) -> dict[str, float]:
    model.eval()
    likelihood.eval()
    means, variances = [], []
    with torch.no_grad():
        for part in torch.from_numpy(X_test).split(PREDICT_ROWS):
            found = likelihood(model(part))
            means.append(found.mean.numpy())
            variances.append(found.variance.numpy())
    model.train()
    likelihood.train()
    error, variance = problem["y_test"] - np.concatenate(means), np.concatenate(variances)
    nlpd = 0.5 * np.mean(np.log(2.0 * np.pi * variance) + error**2 / variance)
    return {"rmse": float(np.sqrt(np.mean(error**2))), "nlpd": float(nlpd)}


if __name__ == "__main__":
    write_result(sys.argv[1], learn(*read_job(sys.argv[1])))
