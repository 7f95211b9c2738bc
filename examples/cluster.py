"""The same fit on a Dask cluster: the rows stay on the workers, the answer is that of one machine.

Here the cluster is two processes on this machine; `client="tcp://scheduler:8786"` names a real one (docs/clusters.md).
"""

import numpy as np
from distributed import Client, LocalCluster

from sparsegp import SparseGPRegressor


def main(n_rows: int = 50_000, *, processes: bool = True) -> SparseGPRegressor:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (n_rows, 3))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n_rows)
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=processes, dashboard_address=":0")
    with cluster, Client(cluster) as client:
        gp = SparseGPRegressor(approximation="vfe", n_inducing=64, random_state=0).fit(X, y, client=client)
    print(f"noise std {gp.noise_var_**0.5:.3f} (0.1 is right); {gp.info_['cluster']}")

    settings = {"kernel": gp.kernel_, "noise_var": gp.noise_var_, "inducing": gp.inducing_, "optimizer": None}
    here = SparseGPRegressor(**settings).fit(X, y)
    print(f"largest difference from one machine: {np.abs(here.predict(X[:1000]) - gp.predict(X[:1000])).max():.1e}")
    return gp


if __name__ == "__main__":
    main()
