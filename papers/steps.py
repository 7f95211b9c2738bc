"""Step sizes rho_t of stochastic ascent that the papers name; the library averages, which needs no choice."""

from dataclasses import dataclass

from sparsegp.errors import InputError


@dataclass(frozen=True)
class RobbinsMonro:
    """rho_t = rho0 / (1 + tau rho0 t)^kappa (000, after eq. 14); converges for 1/2 < kappa <= 1."""

    rho0: float = 1.0
    tau: float = 1.0
    kappa: float = 0.75
    averages: bool = False

    def __post_init__(self) -> None:
        _require_rate("rho0", self.rho0)
        if not (self.tau > 0.0 and 0.5 < self.kappa <= 1.0):
            raise InputError(
                "The schedule rho0/(1 + tau rho0 t)^kappa converges for tau > 0 and 1/2 < kappa <= 1; "
                f"got tau={self.tau!r}, kappa={self.kappa!r}."
            )

    def rate(self, step: int, drawn: int, processed: int) -> float:
        return float(self.rho0 / (1.0 + self.tau * self.rho0 * step) ** self.kappa)


@dataclass(frozen=True)
class Constant:
    """rho_t = rho: follows a moving target, and keeps rho/(2 - rho) of the variance of one estimate for ever."""

    rho: float
    averages: bool = False

    def __post_init__(self) -> None:
        _require_rate("rho", self.rho)

    def rate(self, step: int, drawn: int, processed: int) -> float:
        return self.rho


def _require_rate(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise InputError(
            f"{name} must be above 0 and at most 1: a longer step can lose positive definiteness; got {value!r}."
        )
