"""One forecast of two: some rows have one kind, the others another. Needs numpy alone, because models are served so."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsegp.checked import checked_targets

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Interleaved:
    """Rows of which `is_first` have the forecast `first`, and the others `second`: whatever both answer, this does."""

    first: Any
    second: Any
    is_first: NDArray[np.bool_]

    @property
    def mean(self) -> Array:
        return self._joined(lambda one: one.mean)

    @property
    def var(self) -> Array:
        return self._joined(lambda one: one.var)

    @property
    def std(self) -> Array:
        return self._joined(lambda one: one.std)

    @property
    def f_std(self) -> Array:
        return self._joined(lambda one: one.f_std)

    @property
    def noise_std(self) -> Array:
        return self._joined(lambda one: one.noise_std)

    @property
    def noise_var(self) -> Array:
        return self._joined(lambda one: np.broadcast_to(one.noise_var, one.mean.shape))

    @property
    def latent(self) -> "Interleaved":
        return Interleaved(self.first.latent, self.second.latent, self.is_first)

    def interval(self, coverage: float) -> tuple[Array, Array]:
        ends = self._joined(lambda one: np.column_stack(one.interval(coverage)))
        return ends[:, 0], ends[:, 1]

    def quantiles(self, q: Any) -> Array:
        return self._joined(lambda one: one.quantiles(q))

    def log_density(self, y: Any) -> Array:
        return self._of_targets("log_density", y)

    def cdf(self, y: Any) -> Array:
        return self._of_targets("cdf", y)

    def crps(self, y: Any) -> Array:
        return self._of_targets("crps", y)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self._joined(lambda one: one.sample(n, rng))

    def noise_sample(self, shape: tuple[int, int], rng: np.random.Generator) -> Array:
        def drawn(one: Any) -> Array:
            own = len(one.mean), shape[1]
            return np.broadcast_to(one.noise_sample(own, rng), own)

        return self._joined(drawn)

    def parts(self, rows: slice) -> Any:
        """Mixtures with as many parts at every row: those of `first` are repeated until they are those of `second`."""
        start, stop, _ = rows.indices(len(self.is_first))
        before = int(self.is_first[:start].sum()), int(self.is_first[:stop].sum())
        first = self.first.parts(slice(*before))
        second = self.second.parts(slice(start - before[0], stop - before[1]))
        flags, times = self.is_first[start:stop], len(second.log_weight) // len(first.log_weight)
        centre, var, offset = np.empty(len(flags)), *np.zeros((2, len(flags), len(second.log_weight)))
        centre[flags], centre[~flags] = first.centre, second.centre
        var[flags], var[~flags] = np.tile(first.var, times), second.var
        offset[flags] = 0.0 if first.offset is None else np.tile(first.offset, times)
        offset[~flags] = second.offset
        return replace(second, centre=centre, var=var, offset=offset)

    def _joined(self, answer: Callable[[Any], Array]) -> Array:
        return self._placed(answer(self.first), answer(self.second))

    def _of_targets(self, question: str, y: Any) -> Array:
        target = checked_targets(y, self.is_first)
        return self._placed(
            getattr(self.first, question)(target[self.is_first]), getattr(self.second, question)(target[~self.is_first])
        )

    def _placed(self, first: Array, second: Array) -> Array:
        out = np.empty((len(self.is_first), *first.shape[1:]))
        out[self.is_first], out[~self.is_first] = first, second
        return out
