"""The answer of `sparsegp.plan`: numbers, and a table of them for people."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sparsegp.planning.estimate import CLUSTER, DISK, MEMORY, Estimate
from sparsegp.planning.machine import Machine
from sparsegp.planning.units import duration, size

PLACES = {MEMORY: "in memory", DISK: "from disk", CLUSTER: "on a cluster"}
GAP = "  "


@dataclass(frozen=True)
class Plan:
    """What a fit will cost, predicted from the operations it does and the speed of the machine; nothing was fitted.

    `estimates` has one entry for each number of machines that was asked for; `warnings` say what will not work well and
    what to do instead.
    """

    n_rows: int
    n_features: int
    approximation: str
    n_inducing: int
    n_blocks: int
    optimizer: str | None
    machine: Machine
    estimates: tuple[Estimate, ...]
    warnings: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Of the fit, on the first number of machines."""
        return self.estimates[0].seconds

    @property
    def memory_bytes(self) -> float:
        """Of one machine at the peak, libraries and data included, on the first number of machines."""
        return self.estimates[0].memory.total

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        result = asdict(self)
        result["warnings"] = list(self.warnings)
        result["estimates"] = [
            {**asdict(found), "seconds": found.seconds, "memory_bytes": found.memory.total} for found in self.estimates
        ]
        return result

    def __str__(self) -> str:
        blocks = f", {self.n_blocks:,} blocks" if self.n_blocks else ""
        title = (
            f"{self.approximation} on {self.n_rows:,} rows x {self.n_features:,} columns, "
            f"{self.n_inducing:,} inducing inputs{blocks} (predicted)"
        )
        return "\n".join([title, *_aligned(self.table()), *(f"! {warning}" for warning in self.warnings)])

    def table(self) -> list[list[str]]:
        """A line of texts for each quantity, one column for each number of machines."""
        lines: dict[str, Callable[[Estimate], str]] = {
            "machines": lambda e: f"{e.machines:,}",
            "rows are": lambda e: PLACES[e.where],
            "fit": lambda e: duration(e.seconds),
            "  prepare": lambda e: duration(e.prepare_seconds),
            "  learn": lambda e: duration(e.learning_seconds),
            "  last pass": lambda e: duration(e.inference_seconds),
            "  of it messages": lambda e: duration(e.communication_seconds),
            "predict 1,000,000 rows": lambda e: duration(e.prediction_seconds),
            "memory of a machine": lambda e: size(e.memory.total) + ("" if e.fits else " (too much)"),
            "evaluations": lambda e: f"{e.evaluations:,}",
            "passes over the files": lambda e: f"{e.passes:,}",
            "rounds": lambda e: f"{e.rounds:,}",
            "from and to disk": lambda e: size(e.disk_bytes),
            "through the network": lambda e: size(e.network_bytes),
        }
        return [[name, *(text(found) for found in self.estimates)] for name, text in lines.items()]


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return [
        GAP.join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    ]
