"""Does a way of folding blocks reach the batch posterior? A conformance suite for engines of your own."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from sparsegp import kernels
from sparsegp.core import approximations
from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.core.trend import Trend
from sparsegp.infer.engine import EngineState, Init, State, Step

ROWS = ("sor", "dtc", "vfe", "fitc", "fic", "pitc", "pic", "pep", "block-pep")
BLOCK_SIZES = (3, 1, 11, 1, 6)
N_INDUCING = 7
IMMUTABLE_RTOL = 1e-12


def check_engine(
    init: Init[State],
    step: Step[State],
    *,
    rows: Iterable[str] = ROWS,
    power: float = 0.4,
    seed: int = 0,
    rtol: float = 1e-8,
    trend: Trend | None = None,
) -> None:
    """Check that an engine is exact inference, one block at a time.

    Checked for each approximation: before any block, q is the prior; after each block, q is the batch posterior of the
    blocks so far, and psi is the rise of the batch log evidence; the order of blocks does not matter; a step leaves
    the state that it started from as it was; a block without rows changes nothing.

    Parameters
    ----------
    init : callable
        From a prior to the first state.
    step : callable
        From a state and a block to the next state and an info.
    rows : iterable of str, default=ROWS
        Names of the approximations to try.
    power : float, default=0.4
        The alpha of "pep" and "block-pep".
    seed : int, default=0
        Seed of the problem.
    rtol : float, default=1e-08
        Relative tolerance.
    trend : Trend, default=None
        A trend besides the kernel.

    Raises
    ------
    AssertionError
        If a property fails. The message names it.
    """
    for name in rows:
        prior, blocks = _problem(name, power, np.random.default_rng(seed), trend)
        _check_start(name, prior, init(prior), rtol)
        _check_path(name, prior, init, step, blocks, rtol)
        _check_order(name, prior, init, step, blocks, rtol)
        _check_empty(name, init(prior), step, blocks[0])


def _problem(name: str, power: float, rng: np.random.Generator, trend: Trend | None) -> tuple[SparsePrior, list[Block]]:
    """Blocks of several sizes, smaller and larger than M."""
    inducing = torch.from_numpy(rng.uniform(-2.0, 2.0, (N_INDUCING, 2)))
    kernel, approx = kernels.Matern32(1.4, [0.8, 1.6]), approximations.get(name, power)
    prior = SparsePrior.build(kernel, inducing, 0.15, approx, trend=trend)
    X = torch.from_numpy(rng.uniform(-2.0, 2.0, (sum(BLOCK_SIZES), 2)))
    y = torch.sin(2.0 * X[:, 0]) + 0.3 * torch.from_numpy(rng.normal(size=len(X)))
    pairs = zip(X.split(BLOCK_SIZES), y.split(BLOCK_SIZES), strict=True)
    return prior, [Block(inputs, targets) for inputs, targets in pairs]


def _moments(state: EngineState) -> tuple[Tensor, Tensor]:
    return state.q.mean.clone(), state.q.covariance.clone()


def _check_start(name: str, prior: SparsePrior, state: EngineState, rtol: float) -> None:
    eye = torch.eye(prior.n_features, dtype=torch.float64)
    _require_close(name, "the state before any block", _moments(state), (torch.zeros_like(eye[0]), eye), rtol)


def _check_path(
    name: str,
    prior: SparsePrior,
    init: Init[State],
    step: Step[State],
    blocks: list[Block],
    rtol: float,
) -> None:
    state, evidence = init(prior), 0.0
    for k, block in enumerate(blocks):
        start = _moments(state)
        new, info = step(state, block)
        _require_close(name, f"the state before step {k}, after it", _moments(state), start, IMMUTABLE_RTOL)
        statistics = BlockStatistics.from_blocks(prior, blocks[: k + 1])
        q = InducingPosterior.from_statistics(statistics)
        _require_close(name, f"q after step {k}", _moments(new), (q.mean, q.covariance), rtol)
        total = log_evidence(statistics, q)
        rise = torch.tensor(total - evidence, dtype=torch.float64)
        _require_close(name, f"psi of step {k}", (torch.tensor(info.psi, dtype=torch.float64),), (rise,), rtol)
        _require(name, f"info of step {k}", info.seconds >= 0.0 and info.jitter >= 0.0, "seconds and jitter are >= 0")
        state, evidence = new, total


def _check_order(
    name: str,
    prior: SparsePrior,
    init: Init[State],
    step: Step[State],
    blocks: list[Block],
    rtol: float,
) -> None:
    forwards, backwards = init(prior), init(prior)
    for block, other in zip(blocks, reversed(blocks), strict=True):
        forwards, backwards = step(forwards, block)[0], step(backwards, other)[0]
    _require_close(name, "q with the blocks in reverse order", _moments(backwards), _moments(forwards), rtol)


def _check_empty(name: str, state: State, step: Step[State], block: Block) -> None:
    new, info = step(state, block.take(slice(0, 0)))
    _require_close(name, "q after an empty block", _moments(new), _moments(state), IMMUTABLE_RTOL)
    _require(name, "psi of an empty block", info.psi == 0.0, f"must be 0; got {info.psi}")


def _require_close(name: str, what: str, got: tuple[Tensor, ...], expected: tuple[Tensor, ...], rtol: float) -> None:
    """Within rtol of the largest entry (of 1, where everything is smaller)."""
    for value, reference in zip(got, expected, strict=True):
        error, scale = float((value - reference).abs().max()), max(1.0, float(reference.abs().max()))
        _require(
            name, what, error <= rtol * scale, f"differs by {error:g} (entries up to {scale:g}) from what it must be"
        )


def _require(name: str, what: str, holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(f"{name}: {what}: {message}.")
