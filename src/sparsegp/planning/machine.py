"""A machine as the cost model sees it: its memory, and how much of each kind of work it does in a second."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sparsegp.errors import InputError


@dataclass(frozen=True)
class Machine:
    """One machine with all its cores at work.

    Parameters
    ----------
    cores, memory_bytes : threads that compute, and memory that a fit may use.
    flops_per_second : float64 operations in matrix products of some hundred rows and columns.
    exps_per_second : exponentials.
    memory_bytes_per_second : read and written by sums of arrays that are larger than the caches.
    disk_bytes_per_second : read from files that are not in memory yet.
    network_bytes_per_second : through the link of one machine; the default is 10 Gbit/s.
    round_seconds, task_seconds : of a cluster's scheduler, for a round and for each worker in it.
    """

    cores: int
    memory_bytes: float
    flops_per_second: float
    exps_per_second: float
    memory_bytes_per_second: float
    disk_bytes_per_second: float
    network_bytes_per_second: float = 1.25e9
    round_seconds: float = 0.02
    task_seconds: float = 0.001

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InputError(f"Machine.{part.name} must be a positive, finite number; got {value!r}.")

    @classmethod
    def of(cls, given: Any) -> "Machine":
        """The machine itself, or one from the mapping that `to_dict` gave."""
        if isinstance(given, Machine):
            return given
        if not isinstance(given, Mapping):
            raise InputError(
                f"machine must be a sparsegp.planning.Machine or the mapping of its fields; got {type(given).__name__}."
            )
        names = [part.name for part in fields(cls)]
        needed = names[: names.index("network_bytes_per_second")]
        missing, unknown = [name for name in needed if name not in given], [name for name in given if name not in names]
        if missing or unknown:
            raise InputError(
                f"A machine has the fields {', '.join(names)}; missing: {', '.join(missing) or 'none'}, "
                f"unknown: {', '.join(map(str, unknown)) or 'none'}. `sparsegp.planning.measured()` gives this one's."
            )
        return cls(**given)

    def to_dict(self) -> dict[str, float]:
        return asdict(self)
