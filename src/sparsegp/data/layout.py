"""Which columns of X belong together, and which are standardised."""

from dataclasses import dataclass
from typing import Protocol

from sparsegp.errors import InputError


@dataclass(frozen=True)
class FeatureLayout:
    """`groups`: of every column of X the number of its group, 0 to G-1; a group has one learned lengthscale.
    `standardized`: whether a column is brought to mean 0 and scale 1; indicators are not.
    """

    groups: tuple[int, ...]
    standardized: tuple[bool, ...]

    def __post_init__(self) -> None:
        if set(self.groups) != set(range(len(set(self.groups)))) or len(self.groups) != len(self.standardized):
            raise InputError(
                "A layout needs for every column the number of its group, all of 0 to G-1, and whether it is "
                f"standardised; got groups={self.groups}, standardized={self.standardized}."
            )

    @classmethod
    def plain(cls, n_features: int) -> "FeatureLayout":
        """Each column is a group of its own, and all are standardised."""
        return cls(tuple(range(n_features)), (True,) * n_features)

    @property
    def n_features(self) -> int:
        return len(self.groups)

    @property
    def n_groups(self) -> int:
        return len(set(self.groups))

    @property
    def tied(self) -> tuple[int, ...] | None:
        """The groups, where any has more than one column; None: every column has a lengthscale of its own."""
        return self.groups if self.n_groups < self.n_features else None

    @property
    def is_plain(self) -> bool:
        return self == FeatureLayout.plain(self.n_features)


class _Columns(Protocol):
    @property
    def n_features(self) -> int: ...


class PlainLayout:
    """Mixin of sources whose columns are numbers, none of which belong together."""

    encoding = None

    @property
    def layout(self: _Columns) -> FeatureLayout:
        return FeatureLayout.plain(self.n_features)
