"""A sensor that never stops: exact updates, rows taken back, and an alarm when the world changes."""

import numpy as np

from sparsegp import SparseGPRegressor


def readings(rng: np.random.Generator, n: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Temperature against hour of the day and load."""
    X = np.column_stack([rng.uniform(0, 24, n), rng.uniform(0, 1, n)])
    y = 20 + 5 * np.sin(X[:, 0] * np.pi / 12) + 8 * X[:, 1] ** 2 + shift + 0.3 * rng.standard_normal(n)
    return X, y


def main(n_start: int = 3000, n_batches: int = 50, batch: int = 100) -> SparseGPRegressor:
    rng = np.random.default_rng(0)
    gp = SparseGPRegressor(approximation="vfe", n_inducing=50, random_state=0).fit(*readings(rng, n_start))
    for _ in range(n_batches):
        gp.partial_fit(*readings(rng, batch))
    print(f"{gp.n_samples_seen_:,} rows; drift: {gp.info_['innovations']['drift']}")

    wrong = readings(rng, batch, shift=3.0)
    gp.partial_fit(*wrong)
    print(f"after a faulty batch, drift: {gp.info_['innovations']['drift']}")
    gp.forget(*wrong)  # as if those rows had never been there
    print(f"{gp.n_samples_seen_:,} rows after taking it back")
    return gp


if __name__ == "__main__":
    main()
