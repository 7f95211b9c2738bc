"""Block statistics: a commutative group. Sums of them are the batch, the stream and the cluster."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsegp import linalg
from sparsegp.core import noise_model
from sparsegp.core.block import Block
from sparsegp.core.prior import Features, SparsePrior
from sparsegp.errors import FingerprintError


@dataclass(frozen=True)
class WhitenedBlock:
    """A block divided by its noise: A = V_k^-1/2 W^T, target = V_k^-1/2 y, and its scalars."""

    A: Tensor
    target: Tensor
    noise_logdet: float
    penalty: float
    n_rows: float


def whiten_block(prior: SparsePrior, block: Block, features: Features | None = None) -> WhitenedBlock:
    """The block in coordinates where prior and noise are both the identity; its features are computed unless given."""
    return _whiten_together(prior, block, features) if prior.approx.by_block else _whiten_points(prior, block, features)


def _whiten_points(prior: SparsePrior, block: Block, features: Features | None) -> WhitenedBlock:
    V = prior.features(block.X) if features is None else features.W
    noise = prior.row_noise(block)
    if features is not None:
        d = features.residual
    elif prior.approx.keeps_residual or prior.approx.penalty:
        d = prior.residual_diag(block.X, V)
    else:
        d = torch.zeros_like(noise)
    v = noise_model.point_variance(prior.approx, d, noise)
    penalty, logdet, scale = noise_model.point_penalty(prior.approx, d, noise), v.log(), v.rsqrt()
    if block.weight is not None:
        penalty, logdet, scale = penalty * block.weight, logdet * block.weight, scale * block.weight.sqrt()
    # features that were given belong to the caller
    A = torch.mul(V, scale[:, None], out=V if features is None else None)
    return WhitenedBlock(A, block.y * scale, _sum(logdet), _sum(penalty), block.n_rows)


def _whiten_together(prior: SparsePrior, block: Block, features: Features | None) -> WhitenedBlock:
    features = prior.seen(block.X) if features is None else features
    noise, weight = repeated_noise(prior, block)
    D = features.residual
    C = linalg.cholesky(
        noise_model.block_covariance(prior.approx, D, noise, weight), name="noise covariance of a block"
    )
    penalty = noise_model.block_penalty(prior.approx, C.logdet, D, noise)
    A = linalg.solve_lower(C.factor, features.W.to(torch.float64))
    target = linalg.solve_lower(C.factor, block.y.to(torch.float64)[:, None])[:, 0]
    logdet = C.logdet
    if block.weight is not None:
        logdet = logdet + noise_model.repeats_logdet(prior.approx, D, noise, weight)
    return WhitenedBlock(A, target, float(logdet), float(penalty), block.n_rows)


def repeated_noise(prior: SparsePrior, block: Block) -> tuple[Tensor, Tensor]:
    """Noise of w equal rows seen as one, noise/w, and w."""
    noise = prior.row_noise(block).to(torch.float64)
    weight = block.weights.to(torch.float64)
    return noise / weight, weight


def _sum(values: Tensor) -> float:
    return float(values.sum(dtype=torch.float64))


@dataclass(frozen=True)
class BlockStatistics:
    """What a set of rows says about u in whitened coordinates: natural parameters and additive scalars.

    precision = sum W V^-1 W^T, shift = sum W V^-1 y (M1); noise_logdet = sum log|V|, target_sq = sum y V^-1 y,
    penalty = sum a_k, n_rows the weighted count. Two of them add only when their fingerprints agree.
    """

    precision: Tensor
    shift: Tensor
    noise_logdet: float
    target_sq: float
    penalty: float
    n_rows: float
    fingerprint: str

    @classmethod
    def zero(cls, prior: SparsePrior) -> "BlockStatistics":
        M = prior.n_features
        zeros = prior.inducing.new_zeros(M, M + 1)
        return cls(zeros[:, :M].clone(), zeros[:, M].clone(), 0.0, 0.0, 0.0, 0.0, prior.fingerprint)

    @classmethod
    def from_block(cls, prior: SparsePrior, block: Block) -> "BlockStatistics":
        return cls.from_blocks(prior, [block])

    @classmethod
    def from_blocks(cls, prior: SparsePrior, blocks: Iterable[Block]) -> "BlockStatistics":
        """The sum over blocks."""
        return cls.from_whitened(prior, (whiten_block(prior, block) for block in blocks))

    @classmethod
    def from_whitened(cls, prior: SparsePrior, parts: Iterable[WhitenedBlock]) -> "BlockStatistics":
        """The sum over whitened blocks, accumulated in place: one pass, memory O(block x M)."""
        total = cls.zero(prior)
        scalars = torch.zeros(4, dtype=torch.float64)
        with torch.no_grad():
            for part in parts:
                linalg.add_gram(total.precision, part.A)
                total.shift.add_((part.A.mT @ part.target).to(torch.float64))
                target_sq = _sum(part.target.square())
                scalars += torch.tensor([part.noise_logdet, target_sq, part.penalty, part.n_rows], dtype=torch.float64)
        noise_logdet, target_sq, penalty, n_rows = scalars.tolist()
        return cls(
            linalg.mirror_upper(total.precision),
            total.shift,
            noise_logdet,
            target_sq,
            penalty,
            n_rows,
            prior.fingerprint,
        )

    def __add__(self, other: "BlockStatistics") -> "BlockStatistics":
        if not isinstance(other, BlockStatistics):
            return NotImplemented
        if self.fingerprint != other.fingerprint:
            raise FingerprintError(
                "Statistics can only be added when they were computed with the same inducing inputs, hyper-parameters "
                f"and approximation; got fingerprints {self.fingerprint[:12]} and {other.fingerprint[:12]}. "
                "Recompute one of them with the other's model."
            )
        return BlockStatistics(
            self.precision + other.precision,
            self.shift + other.shift,
            self.noise_logdet + other.noise_logdet,
            self.target_sq + other.target_sq,
            self.penalty + other.penalty,
            self.n_rows + other.n_rows,
            self.fingerprint,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Half of the symmetric matrix travels between processes."""
        scalars = (self.noise_logdet, self.target_sq, self.penalty, self.n_rows)
        return _unpacked, (linalg.packed_lower(self.precision), self.shift, scalars, self.fingerprint)

    def __radd__(self, other: object) -> "BlockStatistics":
        """Lets `sum(statistics)` start from 0."""
        return self if other == 0 else NotImplemented

    def __mul__(self, factor: float) -> "BlockStatistics":
        return replace(
            self,
            precision=factor * self.precision,
            shift=factor * self.shift,
            noise_logdet=factor * self.noise_logdet,
            target_sq=factor * self.target_sq,
            penalty=factor * self.penalty,
            n_rows=factor * self.n_rows,
        )

    __rmul__ = __mul__

    def __neg__(self) -> "BlockStatistics":
        return -1.0 * self

    def __sub__(self, other: "BlockStatistics") -> "BlockStatistics":
        return self + (-other)


def _unpacked(
    precision: Tensor, shift: Tensor, scalars: tuple[float, float, float, float], fingerprint: str
) -> BlockStatistics:
    return BlockStatistics(linalg.unpacked_symmetric(precision), shift, *scalars, fingerprint)
