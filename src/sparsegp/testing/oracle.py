"""Dense O(N^3) reference for every approximation: plain numpy, explicit inverses, nothing shared.

Each row is its effective prior (004 table 1): with R = diag(noise_var),
objective = log N(y; 0, C_ff + R) - regulariser, mean = C_sf (C_ff + R)^-1 y,
cov = C_ss - C_sf (C_ff + R)^-1 C_fs. A covariance function is any `k(A, B) -> ndarray` of shape
(rows of A, rows of B). Blocks are integer labels, one per row. A trend is any `h(A) -> ndarray` of shape (rows of A,
features): it adds h(A) h(B)^T to every covariance of values, whatever the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int_]
Covariance = Callable[[Array, Array], Array]
Features = Callable[[Array], Array]

ROWS = ("exact", "sor", "dtc", "vfe", "fitc", "fic", "pitc", "pic", "pep", "block-pep", "nystrom")


def effective_prior(
    name: str,
    k: Covariance,
    X: Array,
    Xs: Array,
    Z: Array,
    blocks: Labels | None = None,
    test_blocks: Labels | None = None,
    power: float = 0.5,
    trend: Features | None = None,
) -> tuple[Array, Array, Array]:
    """Joint prior covariance (C_ff, C_fs, C_ss) of training and test values under the row."""
    if trend is not None:
        C_ff, C_fs, C_ss = effective_prior(name, k, X, Xs, Z, blocks, test_blocks, power)
        H, Hs = trend(X), trend(Xs)
        return C_ff + H @ H.T, C_fs + H @ Hs.T, C_ss + Hs @ Hs.T
    C_ff = training_prior(name, k, X, Z, blocks, power)
    K_fs, Q_fs = k(X, Xs), nystrom_part(k, X, Xs, Z)
    K_ss, Q_ss = k(Xs, Xs), nystrom_part(k, Xs, Xs, Z)
    if name in ("exact", "nystrom"):
        return C_ff, K_fs, K_ss
    if name == "sor":
        return C_ff, Q_fs, Q_ss
    if name == "fic":
        return C_ff, Q_fs, Q_ss + np.diag(np.diag(K_ss - Q_ss))
    if name == "pic":  # q(x, x') + [same block] (k - q)(x, x'), everywhere
        train, test = _labels(blocks, len(X), "blocks"), _labels(test_blocks, len(Xs), "test_blocks")
        C_fs = np.where(train[:, None] == test[None, :], K_fs, Q_fs)
        return C_ff, C_fs, np.where(test[:, None] == test[None, :], K_ss, Q_ss)
    return C_ff, Q_fs, K_ss


def training_prior(
    name: str, k: Covariance, X: Array, Z: Array, blocks: Labels | None = None, power: float = 0.5
) -> Array:
    """C_ff of the row: Q plus nothing, all, or the (block) diagonal of D = K - Q, times the power."""
    _require_row(name)
    Q = nystrom_part(k, X, X, Z)
    if name == "exact":
        return k(X, X)
    if name in ("sor", "dtc", "vfe", "nystrom"):
        return Q
    D = k(X, X) - Q
    scale = power if name in ("pep", "block-pep") else 1.0
    if name in ("fitc", "fic", "pep"):
        return Q + scale * np.diag(np.diag(D))
    return Q + scale * _block_diagonal(D, blocks)


def log_evidence(
    name: str,
    k: Covariance,
    X: Array,
    y: Array,
    Z: Array,
    noise_var: ArrayLike,
    blocks: Labels | None = None,
    power: float = 0.5,
    subset: Labels | None = None,
    trend: Features | None = None,
) -> float:
    """Objective J of the row: log N(y; 0, C_ff + R) minus its regulariser ("sod": of the subset alone)."""
    if name == "sod":
        X, y, noise_var = _take_subset(X, y, noise_var, subset)
        name = "exact"
    C_ff = training_prior(name, k, X, Z, blocks, power)
    noise = _noise(noise_var, len(X))
    if trend is not None:
        C_ff = C_ff + trend(X) @ trend(X).T
    return log_gaussian(y, C_ff + np.diag(noise)) - regulariser(name, k, X, Z, noise, blocks, power)


def regulariser(
    name: str,
    k: Covariance,
    X: Array,
    Z: Array,
    noise_var: ArrayLike,
    blocks: Labels | None = None,
    power: float = 0.5,
) -> float:
    """Sum of a_k: tr(R^-1 D) / 2 for vfe, (1 - a) / (2 a) log det(I + a R^-1 D) for the powers, else 0."""
    _require_row(name)
    if name not in ("vfe", "pep", "block-pep"):
        return 0.0
    root = np.diag(_noise(noise_var, len(X)) ** -0.5)
    scaled = root @ (k(X, X) - nystrom_part(k, X, X, Z)) @ root
    if name == "vfe" or power == 0.0:
        return float(np.trace(scaled) / 2)
    kept = np.diag(np.diag(scaled)) if name == "pep" else _block_diagonal(scaled, blocks)
    # eigenvalues and log1p: log det(I + a D) by elimination loses all digits of a D as a -> 0
    return float((1 - power) / (2 * power) * np.log1p(power * np.linalg.eigvalsh(kept)).sum())


def predict(
    name: str,
    k: Covariance,
    X: Array,
    y: Array,
    Z: Array,
    noise_var: ArrayLike,
    Xs: Array,
    blocks: Labels | None = None,
    test_blocks: Labels | None = None,
    power: float = 0.5,
    subset: Labels | None = None,
    trend: Features | None = None,
) -> tuple[Array, Array]:
    """Mean and joint covariance of the latent values at Xs, by conditioning the effective prior on y."""
    if name == "sod":
        X, y, noise_var = _take_subset(X, y, noise_var, subset)
        name = "exact"
    C_ff, C_fs, C_ss = effective_prior(name, k, X, Xs, Z, blocks, test_blocks, power, trend)
    return _condition(C_ff + np.diag(_noise(noise_var, len(X))), C_fs, C_ss, y)


def predict_given_inducing(
    name: str,
    k: Covariance,
    X: Array,
    y: Array,
    Z: Array,
    noise_var: ArrayLike,
    Xs: Array,
    inducing_mean: Array,
    inducing_cov: Array,
    blocks: Labels | None = None,
    test_blocks: Labels | None = None,
    power: float = 0.5,
) -> tuple[Array, Array]:
    """Moments of the integral of p(f_s | y, u) N(u; inducing_mean, inducing_cov) over u: any q(u)."""
    if name == "nystrom":
        raise ValueError("nystrom has no joint prior of (u, f, f_s); give a generative row")
    C_ff, C_fs, C_ss = effective_prior(name, k, X, Xs, Z, blocks, test_blocks, power)
    Kuu, Kuf, Kus = k(Z, Z), k(Z, X), k(Z, Xs)
    given = np.block([[Kuu, Kuf], [Kuf.T, C_ff + np.diag(_noise(noise_var, len(X)))]])
    cross = np.vstack([Kus, C_fs])
    weights = cross.T @ np.linalg.inv(given)
    on_u, on_y = weights[:, : len(Z)], weights[:, len(Z) :]
    return on_u @ inducing_mean + on_y @ y, C_ss - weights @ cross + on_u @ inducing_cov @ on_u.T


def augmented(
    name: str,
    k: Covariance,
    X: Array,
    y: Array,
    Z: Array,
    noise_var: ArrayLike,
    Xs: Array,
    blocks: Labels | None = None,
) -> tuple[Array, Array, Array]:
    """Mean, variance, evidence per test point of the row whose inducing inputs are Z and that point."""
    if name not in ("sor", "dtc", "fitc", "pitc"):
        raise ValueError(f"only sor, dtc, fitc and pitc have an augmented form, got {name!r}")
    results = []
    for point in Xs[:, None]:
        residual_var = k(point, point) - nystrom_part(k, point, point, Z)
        known = residual_var[0, 0] <= 1e-10 * k(point, point)[0, 0]  # f_s is a function of u already
        enlarged = Z if known else np.vstack([Z, point])
        mean, cov = predict(name, k, X, y, enlarged, noise_var, point, blocks)
        results.append((mean[0], cov[0, 0], log_evidence(name, k, X, y, enlarged, noise_var, blocks)))
    means, variances, evidences = np.array(results).T
    return means, variances, evidences


def bcm(
    k: Covariance, X: Array, y: Array, noise_var: ArrayLike, Xs: Array, blocks: Labels
) -> tuple[Array, Array, float]:
    """Mean, joint covariance and evidence of the Bayesian committee machine: pitc with Z = Xs."""
    mean, cov = predict("pitc", k, X, y, Xs, noise_var, Xs, blocks)
    return mean, cov, log_evidence("pitc", k, X, y, Xs, noise_var, blocks)


def rvm(
    basis: Callable[[Array], Array], X: Array, y: Array, noise_var: ArrayLike, Xs: Array, weight_prec: Array
) -> tuple[Array, Array, float]:
    """Mean, joint covariance and evidence of f = basis(x) w with w_i ~ N(0, 1 / weight_prec_i)."""
    Phi, Phi_s, weight_cov = basis(X), basis(Xs), np.diag(1 / weight_prec)
    C_yy = Phi @ weight_cov @ Phi.T + np.diag(_noise(noise_var, len(X)))
    mean, cov = _condition(C_yy, Phi @ weight_cov @ Phi_s.T, Phi_s @ weight_cov @ Phi_s.T, y)
    return mean, cov, log_gaussian(y, C_yy)


def combination(
    weights: Mapping[str, float],
    k: Covariance,
    X: Array,
    y: Array,
    Z: Array,
    noise_var: ArrayLike,
    blocks: Labels | None = None,
    power: float = 0.5,
) -> tuple[Array, Array, float]:
    """Mean and covariance of u, log N(y; 0, Q + V), with V = (sum_j a_j V_j^-1)^-1 (000 remark 2).

    The evidence is that of the combined noise: regularisers of vfe and the powers take no part.
    """
    if min(weights.values()) < 0 or abs(sum(weights.values()) - 1) > 1e-12 or "nystrom" in weights:
        raise ValueError(f"weights of generative rows must be >= 0 and sum to 1, got {dict(weights)}")
    Q, R = nystrom_part(k, X, X, Z), np.diag(_noise(noise_var, len(X)))
    precisions = [
        a * np.linalg.inv(training_prior(name, k, X, Z, blocks, power) - Q + R) for name, a in weights.items()
    ]
    C_yy = Q + np.linalg.inv(np.sum(precisions, axis=0))
    mean, cov = _condition(C_yy, k(X, Z), k(Z, Z), y)
    return mean, cov, log_gaussian(y, C_yy)


def gradient(function: Callable[[Array], float], parameters: ArrayLike, step: float = 1e-5) -> Array:
    """Central differences (f(p + step e_i) - f(p - step e_i)) / (2 step), in the shape of the parameters."""
    centre = np.asarray(parameters, dtype=np.float64)
    slopes = np.empty(centre.size)
    for i in range(centre.size):
        shift = np.zeros_like(centre)
        shift.flat[i] = step
        slopes[i] = (function(centre + shift) - function(centre - shift)) / (2 * step)
    return slopes.reshape(centre.shape)


def repeat_rows(
    X: Array, y: Array, weights: ArrayLike, blocks: Labels | None = None
) -> tuple[Array, Array, Labels | None]:
    """The data set in which row i stands weights_i times: what an integer sample weight means."""
    counts = np.asarray(weights)
    if counts.shape != (len(X),) or (counts != np.floor(counts)).any() or counts.min() < 0:
        raise ValueError(f"weights must be {len(X)} whole numbers >= 0, one per row, got {weights!r}")
    rows = np.repeat(np.arange(len(X)), counts.astype(int))
    return X[rows], y[rows], None if blocks is None else blocks[rows]


def nystrom_part(k: Covariance, A: Array, B: Array, Z: Array) -> Array:
    """Q_ab = K_au Kuu^-1 K_ub."""
    return k(A, Z) @ np.linalg.inv(k(Z, Z)) @ k(Z, B)


def log_gaussian(y: Array, cov: Array) -> float:
    """log N(y; 0, cov)."""
    eigenvalues = np.linalg.eigvalsh(cov)
    if eigenvalues.min() <= 0:
        raise ValueError(
            f"the covariance of y has the eigenvalue {eigenvalues.min():g}; "
            "give a larger noise_var or inducing inputs further apart"
        )
    logdet = np.log(eigenvalues).sum()
    return float(-0.5 * (y @ np.linalg.inv(cov) @ y + logdet + len(y) * np.log(2 * np.pi)))


def _condition(C_yy: Array, C_ys: Array, C_ss: Array, y: Array) -> tuple[Array, Array]:
    weights = C_ys.T @ np.linalg.inv(C_yy)
    return weights @ y, C_ss - weights @ C_ys


def _block_diagonal(D: Array, blocks: Labels | None) -> Array:
    labels = _labels(blocks, len(D), "blocks")
    return np.where(labels[:, None] == labels[None, :], D, 0.0)


def _labels(labels: Labels | None, n_rows: int, argument: str) -> Labels:
    if labels is None or np.shape(labels) != (n_rows,):
        got = "none" if labels is None else f"shape {np.shape(labels)}"
        raise ValueError(f"this row needs {argument}: {n_rows} labels, one per row of its inputs, got {got}")
    return np.asarray(labels)


def _noise(noise_var: ArrayLike, n_rows: int) -> Array:
    noise = np.broadcast_to(np.asarray(noise_var, dtype=np.float64), (n_rows,))
    if not noise.min() > 0:
        raise ValueError(f"noise_var must be positive in every row, got {noise.min():g}")
    return noise


def _take_subset(X: Array, y: Array, noise_var: ArrayLike, subset: Labels | None) -> tuple[Array, Array, Array]:
    if subset is None:
        raise ValueError("sod needs subset: the indices of the rows that are kept")
    return X[subset], y[subset], _noise(noise_var, len(X))[subset]


def _require_row(name: str) -> None:
    if name not in ROWS:
        raise ValueError(f"unknown row {name!r}; known: {', '.join(ROWS)} (and sod in log_evidence and predict)")
