"""Work: operations of each kind, and the seconds they take on a machine."""

from dataclasses import dataclass

from sparsegp.planning.machine import Machine

# Triangular solves and Cholesky factorisations of some hundred rows run at this share of the speed of products.
SOLVE_EFFICIENCY = 0.3
# One call of torch from Python, with what surrounds it; calls of several threads wait for each other.
CALL_SECONDS = 1e-5


@dataclass(frozen=True)
class Work:
    """Flop in matrix products and in solves or factorisations, exponentials, bytes moved elementwise, torch calls."""

    products: float = 0.0
    solves: float = 0.0
    exps: float = 0.0
    moved: float = 0.0
    calls: float = 0.0

    @property
    def flops(self) -> float:
        """What a textbook counts."""
        return self.products + self.solves

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.products + other.products,
            self.solves + other.solves,
            self.exps + other.exps,
            self.moved + other.moved,
            self.calls + other.calls,
        )

    def __mul__(self, factor: float) -> "Work":
        return Work(
            factor * self.products, factor * self.solves, factor * self.exps, factor * self.moved, factor * self.calls
        )

    __rmul__ = __mul__

    def seconds(self, machine: Machine) -> float:
        return (
            (self.products + self.solves / SOLVE_EFFICIENCY) / machine.flops_per_second
            + self.exps / machine.exps_per_second
            + self.moved / machine.memory_bytes_per_second
            + self.calls * CALL_SECONDS
        )
