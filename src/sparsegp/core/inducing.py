"""Where the inducing inputs go: random rows, k-means centres, greedy conditional variance, or as given."""

import warnings
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sparsegp.errors import InputError
from sparsegp.linalg import row_dots, whiten_rows
from sparsegp.parallel import one_scipy_thread

CHOICES = ("kmeans", "random", "greedy")
GREEDY_CHUNK_ROWS = 4096
SMALLEST_VARIANCE = 1e-12
SAMPLE_ROWS = 20_000
SAMPLE_ROWS_PER_CENTRE = 20
LLOYD_STEPS = 10


class Covariance(Protocol):
    """What greedy selection needs of a kernel: the matrix [k(x_i, z_j)] and the vector [k(x_i, x_i)]."""

    def __call__(self, X: Tensor, Z: Tensor, /) -> Tensor: ...

    def diagonal(self, X: Tensor, /) -> Tensor: ...


def select_inducing(
    spec: str | ArrayLike | Tensor,
    kernel: Covariance,
    X: Tensor,
    n: int,
    rng: np.random.Generator,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Inducing inputs [M, D] by name ("kmeans", "random", "greedy"), or the array `spec` itself, as a copy.

    A named choice gives M <= n distinct rows: fewer than n when X has fewer distinct rows or, for "greedy",
    when fewer leave nothing to explain. Rows of weight zero play no part.
    """
    if not isinstance(spec, str):
        return _given(spec, X.shape[1])
    if spec not in CHOICES:
        raise InputError(f"inducing must be one of {', '.join(CHOICES)}, or an array [M, D]; got {spec!r}.")
    X, weight = _with_weight(X, sample_weight)
    if spec == "kmeans":
        return kmeans_inducing(X, n, rng, weight)
    return random_inducing(X, n, rng) if spec == "random" else greedy_inducing(kernel, X, n)


def random_inducing(X: Tensor, n: int, rng: np.random.Generator) -> Tensor:
    """n distinct rows of X in random order; all distinct rows when there are fewer."""
    _check_count(n)
    shuffled = torch.from_numpy(rng.permutation(X.shape[0]))
    looked_at = n
    while True:
        looked_at = min(2 * looked_at, X.shape[0])
        rows = X[shuffled[:looked_at]]
        distinct = rows[_first_occurrences(rows)]
        if len(distinct) >= n or looked_at == X.shape[0]:
            return distinct[:n]


def kmeans_inducing(X: Tensor, n: int, rng: np.random.Generator, sample_weight: Tensor | None = None) -> Tensor:
    """Centres of n weighted k-means clusters of a random sample of max(20,000, 20 n) rows.

    The centres are means, not rows of X. With at most n distinct rows, those rows are the centres.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    _check_count(n)
    X, weight = _with_weight(X, sample_weight)
    rows = _sample(X.shape[0], max(SAMPLE_ROWS, SAMPLE_ROWS_PER_CENTRE * n), rng)
    if len(_first_occurrences(X[rows])) <= n:
        rows = _first_occurrences(X)
        if len(rows) <= n:
            return X[rows]
    model = KMeans(n, n_init=1, max_iter=LLOYD_STEPS, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings(), one_scipy_thread():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a cluster left empty: equal centres are dropped
        model.fit(X[rows].cpu().numpy(), sample_weight=None if weight is None else weight[rows].cpu().numpy())
    centres = torch.as_tensor(model.cluster_centers_, dtype=X.dtype, device=X.device)
    return centres[_first_occurrences(centres)]


@torch.no_grad()
def greedy_inducing(kernel: Covariance, X: Tensor, n: int, *, chunk: int = GREEDY_CHUNK_ROWS) -> Tensor:
    """n rows of X, each the one with the largest variance k_ii - q_ii given the rows before it.

    These are the pivots of the pivoted Cholesky factorisation of K_ff (the first row on a tie), in memory
    O(N + chunk n) instead of N n. The variance of a row never grows, so an old value is an upper bound. Only
    the `chunk` rows with the largest bounds carry their factor. While the best of them is above the bound of
    all others, it is the next pivot; if not, rows whose bound exceeds it are evaluated again, chunk by chunk.
    Stops early when no row has more than 1e-12 of the largest prior variance left.
    """
    _check_count(n)
    return X[_GreedySearch(kernel, X, min(n, X.shape[0]), chunk).run()]


class _GreedySearch:
    """Pivots so far, the Cholesky factor L of their K_ZZ, and for each row an upper bound of k_ii - q_ii."""

    def __init__(self, kernel: Covariance, X: Tensor, n: int, chunk: int) -> None:
        self.kernel, self.X, self.n, self.chunk = kernel, X, n, chunk
        self.pivots: list[int] = []
        self.L = X.new_zeros(n, n)
        self.prior_var = kernel.diagonal(X)
        self.bound = self.prior_var.clone()
        self.largest_known = float(self.bound.max())
        self.negligible = SMALLEST_VARIANCE * self.largest_known

    def run(self) -> list[int]:
        if not self.largest_known > 0.0:
            return [0]
        self._pick_from_most_promising()
        while len(self.pivots) < self.n and self._tighten_bounds() > self.negligible:
            self._pick_from_most_promising()
        return self.pivots

    def _tighten_bounds(self) -> float:
        """The largest variance: evaluate rows, largest bound first, until it exceeds the bounds left."""
        for rows in torch.split(self._rows_from(self.largest_known), self.chunk):
            if float(self.bound[rows[0]]) < self.largest_known:
                break
            self.bound[rows] = self._factor_and_variance(rows)[1]
            self.largest_known = max(self.largest_known, float(self.bound[rows].max()))
        self.bound[self.pivots] = -torch.inf
        return self.largest_known

    def _pick_from_most_promising(self) -> None:
        """Pivoted Cholesky on the rows with the largest bounds, while their best is surely best of all."""
        n_leaders = min(self.chunk + 1, self.X.shape[0])
        leaders = self._rows_from(float(self.bound.topk(n_leaders).values[-1]))[:n_leaders]
        active, others = leaders[: self.chunk].sort().values, leaders[self.chunk :]
        rival = (float(self.bound[others[0]]), -int(others[0])) if len(others) else (-torch.inf, 0)
        factor = self.X.new_empty(len(active), self.n)
        factor[:, : len(self.pivots)], variance = self._factor_and_variance(active)
        variance[torch.isneginf(self.bound[active])] = -torch.inf
        sure = True  # the largest bound is exact and its first row is active
        while sure and len(self.pivots) < self.n:
            self._add_pivot(active, factor, variance, int(variance.argmax()))
            best = int(variance.argmax())
            self.largest_known = float(variance[best])
            sure = self.largest_known > self.negligible and (self.largest_known, -int(active[best])) > rival
        self.bound[active] = variance

    def _add_pivot(self, active: Tensor, factor: Tensor, variance: Tensor, best: int) -> None:
        """Column m of the factor: l_i = (k(x_i, z) - sum_j<m l_ij l_zj) / l_zz, l_zz^2 = variance of z."""
        m, z = len(self.pivots), int(active[best])
        root = variance[best].sqrt()
        self.L[m, :m], self.L[m, m] = factor[best, :m], root
        self.pivots.append(z)
        covariance = self.kernel(self.X[active], self.X[z : z + 1]).squeeze(1)
        factor[:, m] = (covariance - factor[:, :m] @ factor[best, :m]) / root
        variance -= factor[:, m].square()
        variance[best] = -torch.inf

    def _factor_and_variance(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """V = K_fZ L^-T and k_ii - q_ii, with q_ii = sum_j V_ij^2."""
        m = len(self.pivots)
        if m == 0:
            return self.X.new_empty(len(rows), 0), self.prior_var[rows]
        V = whiten_rows(self.kernel(self.X[rows], self.X[self.pivots]), self.L[:m, :m])
        return V, self.prior_var[rows] - row_dots(V, V)

    def _rows_from(self, least: float) -> Tensor:
        """Rows with a bound of at least `least`, the largest first, equal ones in their order in X."""
        rows = torch.nonzero(self.bound >= least).squeeze(1)
        return rows[torch.argsort(self.bound[rows], descending=True, stable=True)]


def _given(spec: ArrayLike | Tensor, n_columns: int) -> Tensor:
    try:
        given = spec.detach().clone().to(torch.float64) if isinstance(spec, Tensor) else _as_tensor(spec)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"inducing must be one of {', '.join(CHOICES)}, or an array of numbers [M, {n_columns}]; "
            f"got {type(spec).__name__}."
        ) from error
    if given.ndim != 2 or given.shape[0] < 1 or given.shape[1] != n_columns:
        raise InputError(
            f"inducing must be one of {', '.join(CHOICES)}, or an array [M, {n_columns}] with M >= 1 and "
            f"the columns of X; got an array of shape {list(given.shape)}."
        )
    if not torch.isfinite(given).all():
        row, column = torch.nonzero(~torch.isfinite(given))[0].tolist()
        raise InputError(f"Given inducing inputs must be finite; row {row}, column {column} is not.")
    return given


def _as_tensor(values: ArrayLike) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64))


def _with_weight(X: Tensor, sample_weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The rows of positive weight, and their weights."""
    if sample_weight is None:
        return X, None
    if sample_weight.shape != X.shape[:1]:
        raise InputError(f"Expected one weight a row, shape [{X.shape[0]}]; got {list(sample_weight.shape)}.")
    counts = sample_weight > 0
    if not counts.any():
        raise InputError("No row has a positive sample_weight; give at least one row a weight above zero.")
    return X[counts], sample_weight[counts]


def _first_occurrences(X: Tensor) -> Tensor:
    """Indices, in increasing order, of the rows that equal no row before them."""
    values = X.cpu().numpy()
    order = np.lexsort(values.T)
    ordered = values[order]
    is_new = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    return torch.from_numpy(np.sort(order[is_new]))


def _sample(n_rows: int, size: int, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(np.arange(n_rows) if n_rows <= size else rng.choice(n_rows, size, replace=False))


def _check_count(n: int) -> None:
    if n < 1:
        raise InputError(f"The number of inducing inputs must be at least 1; got {n}.")
