"""The approximations as data: one row each, read by one code path.

Every row says of a block (X_k, y_k), given the inducing values u,

    y_k | u ~ N(H_k u, V_k),     V_k = alpha * shape(D_k) + noise,     D_k = K_kk - Q_kk,

so a row is the shape of the residual, its power alpha, the weight of the regulariser and the test conditional.
A linear combination of rows (000, Remark 2) has V_k^-1 = sum_j a_j V_kj^-1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sparsegp.errors import InputError


class Residual(Enum):
    """Which part of D_k = K_kk - Q_kk the training conditional keeps."""

    NONE = "none"
    DIAGONAL = "diagonal"
    BLOCK = "block"


class TestConditional(Enum):
    """Covariance of f_* given u: 0, D_**, diag D_**, or conditioned on the point's own block too (PIC)."""

    __test__ = False
    DETERMINISTIC = "deterministic"
    EXACT = "exact"
    INDEPENDENT = "independent"
    LOCAL = "local"


class Family(Enum):
    """How the posterior is computed: from inducing statistics, densely on all or on some rows, or by Nystrom."""

    INDUCING = "inducing"
    EXACT = "exact"
    SUBSET = "subset"
    NYSTROM = "nystrom"


@dataclass(frozen=True)
class Component:
    """One term a_j V_j^-1 of the block precision, V_j = alpha * shape(D) + noise."""

    weight: float
    residual: Residual
    alpha: float


@dataclass(frozen=True)
class Approximation:
    """An approximation (docs/approximations.md).

    `penalty` is rho in a_k = rho/(2 alpha) log det(I + alpha D_k/noise), whose limit for alpha -> 0 is
    rho tr(D_k/noise)/2, the trace term of the variational bound.
    """

    name: str
    components: tuple[Component, ...]
    penalty: float
    test: TestConditional
    reference: str
    family: Family = Family.INDUCING

    @property
    def by_block(self) -> bool:
        """Whether the rows of a block must be seen together."""
        return any(c.residual is Residual.BLOCK for c in self.components)

    @property
    def keeps_residual(self) -> bool:
        """Whether D_k enters V_k at all."""
        return any(c.residual is not Residual.NONE for c in self.components)

    @property
    def is_local(self) -> bool:
        """Whether predictions need the training rows of the test point's block."""
        return self.test is TestConditional.LOCAL

    @property
    def is_exact_in_blocks(self) -> bool:
        """Whether rows of a single block have their covariance K + noise: all of the residual is kept."""
        return not self.penalty and self.components == (Component(1.0, Residual.BLOCK, 1.0),)

    @property
    def is_lower_bound(self) -> bool:
        """Whether the objective never exceeds the exact log evidence."""
        return self.penalty == 1.0 and not self.keeps_residual


def _row(
    name: str,
    residual: Residual,
    alpha: float,
    penalty: float,
    test: TestConditional,
    reference: str,
    family: Family = Family.INDUCING,
) -> Approximation:
    return Approximation(name, (Component(1.0, residual, alpha),), penalty, test, reference, family)


_T = TestConditional
_R = Residual

TABLE: Mapping[str, Approximation] = {
    approx.name: approx
    for approx in (
        _row("exact", _R.NONE, 0.0, 0.0, _T.EXACT, "004 eq. 6", Family.EXACT),
        _row("sod", _R.NONE, 0.0, 0.0, _T.EXACT, "004 sec. 3", Family.SUBSET),
        _row("sor", _R.NONE, 0.0, 0.0, _T.DETERMINISTIC, "004 eq. 16"),
        _row("dtc", _R.NONE, 0.0, 0.0, _T.EXACT, "004 eq. 20"),
        _row("vfe", _R.NONE, 0.0, 1.0, _T.EXACT, "003 eq. 5, alpha -> 0"),
        _row("fitc", _R.DIAGONAL, 1.0, 0.0, _T.EXACT, "004 eq. 24"),
        _row("fic", _R.DIAGONAL, 1.0, 0.0, _T.INDEPENDENT, "004 remark 7"),
        _row("pitc", _R.BLOCK, 1.0, 0.0, _T.EXACT, "004 eq. 27"),
        _row("pic", _R.BLOCK, 1.0, 0.0, _T.LOCAL, "000 appendix D.4"),
        _row("nystrom", _R.NONE, 0.0, 0.0, _T.EXACT, "004 sec. 10.1", Family.NYSTROM),
    )
}
POWER_ROWS = ("pep", "block-pep")
NAMES = (*TABLE, *POWER_ROWS)


def power_ep(alpha: float, *, by_block: bool = False) -> Approximation:
    """Power EP of power alpha in [0, 1] (003 fig. 2): alpha -> 0 is VFE, alpha = 1 is FITC or PITC."""
    if not 0.0 <= alpha <= 1.0:
        raise InputError(f"power must be between 0 (VFE) and 1 (FITC, or PITC by blocks); got {alpha!r}.")
    residual = Residual.BLOCK if by_block else Residual.DIAGONAL
    return _row("block-pep" if by_block else "pep", residual, alpha, 1.0 - alpha, _T.EXACT, "003 fig. 2")


def combine(weights: Mapping[str, float], power: float = 0.5) -> Approximation:
    """The linear combination sum_j a_j theta_j of rows (000, Remark 2): V^-1 = sum_j a_j V_j^-1, a_j >= 0, sum 1."""
    rows = [get(name, power) for name in weights]
    if not weights or any(a < 0 for a in weights.values()) or abs(sum(weights.values()) - 1.0) > 1e-12:
        raise InputError(
            "A combination of approximations needs weights >= 0 that add up to 1 (else the prior is counted more or "
            f"less than once and the posterior may not exist); got {dict(weights)!r}."
        )
    if any(approx.penalty or approx.family is not Family.INDUCING for approx in rows):
        raise InputError(
            "Only sor, dtc, fitc, fic, pitc and pic can be combined: the others are not a Gaussian model of y given u."
        )
    if len({approx.test for approx in rows}) > 1:
        raise InputError(
            "Combined approximations must share the test conditional. These do: dtc, fitc, pitc. "
            f"Got {', '.join(f'{row.name} ({row.test.value})' for row in rows)}."
        )
    parts = tuple(
        Component(a, r.components[0].residual, r.components[0].alpha)
        for r, a in zip(rows, weights.values(), strict=True)
        if a > 0
    )
    name = "+".join(f"{a:g}*{name}" for name, a in weights.items())
    return Approximation(name, parts, 0.0, rows[0].test, "000 remark 2")


def get(spec: str | Mapping[str, float] | Approximation, power: float = 0.5) -> Approximation:
    """The row of a name, or the combination of a mapping name -> weight."""
    if isinstance(spec, Approximation):
        return spec
    if isinstance(spec, Mapping):
        return combine(spec, power)
    if spec in POWER_ROWS:
        return power_ep(power, by_block=spec == "block-pep")
    if spec in TABLE:
        return TABLE[spec]
    raise InputError(
        f"approximation must be one of {', '.join(NAMES)}, or a mapping of such names to weights; got {spec!r}."
    )
