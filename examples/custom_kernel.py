"""A kernel of your own: what is known about the data goes into the model. Here, a season of seven days."""

import numpy as np
import torch

from sparsegp import SparseGPRegressor, kernels
from sparsegp.testing import check_kernel


class Weekly(kernels.Kernel):
    """k(s, t) = variance * exp(-2 sin^2(pi (s - t)/7) / width^2): the same every week."""

    def __init__(self, variance: float = 1.0, width: float = 1.0) -> None:
        super().__init__(active_dims=[0])
        self.log_variance = torch.nn.Parameter(torch.tensor(variance, dtype=torch.float64).log())
        self.log_width = torch.nn.Parameter(torch.tensor(width, dtype=torch.float64).log())

    def forward(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        sine = torch.sin(torch.pi * (X - Z.T) / 7.0)
        return self.log_variance.exp() * torch.exp(-2.0 * (sine / self.log_width.exp()) ** 2)

    def diag(self, X: torch.Tensor) -> torch.Tensor:
        return self.log_variance.exp() * X.new_ones(len(X))


def main(n_days: int = 200) -> float:
    """Sales with a weekly pattern and a slow trend; the last month is forecast. Returns the RMSE."""
    rng = np.random.default_rng(0)
    day = np.arange(n_days, dtype=float)[:, None]
    y = 3.0 * np.sin(2 * np.pi * day[:, 0] / 7) + 0.02 * day[:, 0] + 0.2 * rng.standard_normal(n_days)
    check_kernel(Weekly(), n_features=1)

    kernel = Weekly() + kernels.Linear()
    # a kernel of one's own is in the units it is given: seven days stay seven days
    gp = SparseGPRegressor(kernel, approximation="vfe", n_inducing=40, normalize=False, random_state=0).fit(
        day[:-30], y[:-30]
    )
    error = float(np.sqrt(np.mean((gp.predict(day[-30:]) - y[-30:]) ** 2)))
    print(f"RMSE of the last 30 days: {error:.3f} (noise 0.2)")
    return error


if __name__ == "__main__":
    main()
