"""Noise that differs from place to place: one width for all against a width that is learned."""

import numpy as np

from sparsegp import HeteroscedasticGPRegressor, SparseGPRegressor, metrics


def waiting_times(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Minutes in a queue against the hour: short and certain at night, long and uncertain at noon."""
    X = rng.uniform(0, 24, (n, 1))
    rush = np.exp(-0.5 * ((X[:, 0] - 13) / 3) ** 2)
    return X, 2 + 15 * rush + (0.3 + 4 * rush) * rng.standard_normal(n)


def main(n_rows: int = 3000) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(0)
    train, test = waiting_times(rng, n_rows), waiting_times(rng, 1000)
    models = {
        "constant noise": SparseGPRegressor(approximation="vfe", n_inducing=20, random_state=0),
        "noise that varies": HeteroscedasticGPRegressor(n_inducing=20, n_noise_inducing=10, random_state=0),
    }
    found = {}
    for name, model in models.items():
        model.fit(*train)
        lower, upper = model.predict_interval(test[0], coverage=0.95)
        night = test[0][:, 0] < 6
        found[name] = {
            "nlpd": -float(model.log_density(*test).mean()),
            "coverage": metrics.interval_coverage(test[1], lower, upper),
            "width_at_night": metrics.interval_width(lower[night], upper[night]),
            "width_by_day": metrics.interval_width(lower[~night], upper[~night]),
        }
        print(name, {key: round(value, 3) for key, value in found[name].items()})
    return found


if __name__ == "__main__":
    main()
