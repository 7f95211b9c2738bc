"""The effective prior of a row: exact inference under it gives the row's answers (004 table 1)."""

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core.approximations import Approximation, Family, Residual, TestConditional
from sparsegp.core.trend import Trend
from sparsegp.errors import InputError
from sparsegp.kernels import Kernel


@torch.no_grad()
def effective_prior(
    approx: Approximation,
    kernel: Kernel,
    inducing: Tensor,
    X: Tensor,
    X_test: Tensor,
    labels: Tensor | None = None,
    test_labels: Tensor | None = None,
    noise_var: Tensor | float | None = None,
    trend: Trend | None = None,
) -> Tensor:
    """[[C_ff, C_f*], [C_*f, C_**]], the joint prior covariance of the values at X and X_test under the row.

    y ~ N(0, C_ff + noise), and the row predicts what this Gaussian gives once conditioned on y. Dense, for
    small problems. `labels` and `test_labels` are the blocks of X and X_test, for rows that have blocks.
    Only a combination of rows needs `noise_var`: its C_ff = Q + (sum_j a_j V_j^-1)^-1 - noise.
    The exact GP and the subset of data (X is then the subset) do not look at the inducing inputs. A trend adds
    b^2 T(x) T(x')^T everywhere, whatever the row.
    """
    inputs, U = torch.cat([X, X_test]).to(torch.float64), inducing.to(torch.float64)
    if trend is not None:
        H = trend.features(inputs)
        return H @ H.mT + effective_prior(approx, kernel, inducing, X, X_test, labels, test_labels, noise_var)
    K = kernel(inputs)
    if approx.family in (Family.EXACT, Family.SUBSET):
        return K
    L = linalg.cholesky(kernel(U), name="covariance of the inducing inputs").factor
    W = linalg.whiten_rows(kernel(inputs, U), L)
    Q = W @ W.mT
    n = X.shape[0]
    C = K.clone() if approx.family is Family.NYSTROM else Q + _test_part(approx, K - Q, n, labels, test_labels)
    same = _same_block(labels, labels, (n, n)) if approx.by_block else torch.eye(n, dtype=torch.bool)
    C[:n, :n] = Q[:n, :n] + _training_residual(approx, (K - Q)[:n, :n], same, noise_var)
    return linalg.symmetric(C)


def _test_part(approx: Approximation, D: Tensor, n: int, labels: Tensor | None, test_labels: Tensor | None) -> Tensor:
    """What the test conditional adds to Q in C_f* and C_**: nothing, D_**, diag D_**, or D within blocks."""
    kept, n_test = torch.zeros_like(D), D.shape[0] - n
    if approx.test is TestConditional.EXACT:
        kept[n:, n:] = D[n:, n:]
    elif approx.test is TestConditional.INDEPENDENT:
        kept[n:, n:] = torch.diag(D.diagonal()[n:])
    elif approx.test is TestConditional.LOCAL:
        kept[n:, n:] = D[n:, n:] * _same_block(test_labels, test_labels, (n_test, n_test))
        kept[:n, n:] = D[:n, n:] * _same_block(labels, test_labels, (n, n_test))
        kept[n:, :n] = kept[:n, n:].mT
    return kept


def _training_residual(approx: Approximation, D: Tensor, same: Tensor, noise_var: Tensor | float | None) -> Tensor:
    """alpha shape(D) of one row; of several V - noise, V^-1 = sum_j a_j (alpha_j shape_j(D) + noise)^-1."""
    residuals = [c.alpha * _shaped(c.residual, D, same) for c in approx.components]
    if len(residuals) == 1:
        return residuals[0]
    if noise_var is None:
        raise InputError(
            f"{approx.name!r} is a combination of rows, and the effective prior of a combination depends on the "
            "noise: give noise_var, a number or one for each row of X."
        )
    noise = torch.diag(torch.as_tensor(noise_var, dtype=D.dtype).expand(D.shape[0]))
    precisions = [c.weight * _inverse(R + noise) for c, R in zip(approx.components, residuals, strict=True)]
    return _inverse(torch.stack(precisions).sum(0)) - noise


def _shaped(residual: Residual, D: Tensor, same: Tensor) -> Tensor:
    if residual is Residual.NONE:
        return torch.zeros_like(D)
    return torch.diag(D.diagonal()) if residual is Residual.DIAGONAL else D * same


def _inverse(A: Tensor) -> Tensor:
    factor = linalg.cholesky(A, name="covariance of y given the inducing values").factor
    return linalg.inverse_from_cholesky(factor)


def _same_block(left: Tensor | None, right: Tensor | None, shape: tuple[int, int]) -> Tensor:
    """Indicator matrix [input i and input j are in one block]."""
    if left is None or right is None or (len(left), len(right)) != shape:
        got = ["none" if x is None else str(len(x)) for x in (left, right)]
        raise InputError(
            "This row has blocks: give labels, an integer for each row of X (local: test_labels too, one "
            f"for each row of X_test). Expected {shape[0]} and {shape[1]} labels; got {' and '.join(got)}."
        )
    return left[:, None] == right[None, :]
