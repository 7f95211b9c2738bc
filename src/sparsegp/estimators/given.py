"""What a user hands to a fit or an update."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from sparsegp.data import Source, open_source


@dataclass(frozen=True)
class Given:
    """Arguments of a fit: rows, where they have a column of noise variances or weights, and where to work."""

    X: Any
    y: Any = None
    target: str | None = None
    noise_var: Any = None
    sample_weight: Any = None
    blocks: ArrayLike | None = None
    cluster: Any = None

    def source(self, features: Any = None) -> Source:
        """`features` are those of a model, in their order."""
        named = {"noise_var": self.noise_var, "sample_weight": self.sample_weight}
        return open_source(self.X, self.y, target=self.target, features=features, **named)
