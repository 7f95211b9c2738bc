"""A prior that remembers the rows it has seen: the natural ascent of q(g_u) changes the noise and nothing else."""

from dataclasses import dataclass, field

from torch import Tensor

from sparsegp.prior import SparsePrior

MOST_BYTES = 1_000_000_000

_Place = tuple[int, int]


@dataclass(frozen=True)
class HeldPrior(SparsePrior):
    """Features W and residuals D of rows that stay where they are in memory, computed once.

    Rows are known by their place in memory, so a held prior must not outlive the ascent it was made for. Beyond
    `MOST_BYTES` nothing more is kept.
    """

    kept: dict[tuple[str, _Place], Tensor] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, prior: SparsePrior) -> "HeldPrior":
        return cls(prior.kernel, prior.inducing, prior.noise_var, prior.row, prior.Luu)

    def features(self, X: Tensor, K: Tensor | None = None) -> Tensor:
        """A copy where it is scaled in place afterwards (rows of the table by points)."""
        known = self.kept.get(("W", _place(X)))
        if known is None:
            known = self._keep("W", X, super().features(X, K))
        return known if self.row.by_block else known.clone()

    def residual_block(self, X: Tensor, V: Tensor, K: Tensor | None = None) -> Tensor:
        known = self.kept.get(("D", _place(X)))
        return self._keep("D", X, super().residual_block(X, V, K)) if known is None else known

    def _keep(self, name: str, X: Tensor, value: Tensor) -> Tensor:
        if sum(tensor.nbytes for tensor in list(self.kept.values())) + value.nbytes <= MOST_BYTES:
            self.kept[name, _place(X)] = value
        return value


def _place(X: Tensor) -> _Place:
    return X.data_ptr(), X.shape[0]
