"""A uniform random sample of rows whose number is not known beforehand."""

import numpy as np

from sparsegp.sources.batch import Array, Batch, Place


class Reservoir:
    """Keeps `capacity` rows; after n rows each of them is in the sample with probability capacity/n.

    Row t replaces a random slot of 0..t if that is one of the sample's. One uniform number is drawn for every row, so
    the sample depends on the rows and not on how they are cut into batches. Until it is full, rows keep their order.
    """

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self.capacity, self.rng, self.seen = capacity, rng, 0
        self._kept: dict[str, Array] = {}

    def add(self, batch: Batch) -> None:
        serial = self.seen + np.arange(len(batch))
        drawn = np.floor(self.rng.random(len(batch)) * (serial + 1)).astype(np.int64)
        slot = np.where(serial < self.capacity, serial, drawn)
        chosen = np.flatnonzero(slot < self.capacity)
        # Of several rows for one slot the last one stays.
        last = len(chosen) - 1 - np.unique(slot[chosen][::-1], return_index=True)[1]
        rows = chosen[last]
        for name, values in self._parts(batch).items():
            kept = self._room(name, values, int(slot[rows].max(initial=-1)) + 1)
            kept[slot[rows]] = values[rows]
        self.seen += len(batch)

    def _room(self, name: str, like: Array, n_rows: int) -> Array:
        """The array of a part, grown by doubling up to the capacity."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < n_rows:
            size = min(self.capacity, max(n_rows, 0 if kept is None else 2 * len(kept)))
            grown = np.empty((size, *like.shape[1:]))
            grown[: 0 if kept is None else len(kept)] = 0.0 if kept is None else kept
            self._kept[name] = kept = grown
        return kept

    @staticmethod
    def _parts(batch: Batch) -> dict[str, Array]:
        parts = {"X": batch.X, "y": batch.y, "noise_var": batch.noise_var, "weight": batch.weight}
        return {name: values for name, values in parts.items() if values is not None}

    @property
    def sample(self) -> Batch:
        n_rows = min(self.seen, self.capacity)
        kept = {name: values[:n_rows] for name, values in self._kept.items()}
        return Batch(kept["X"], kept["y"], kept.get("noise_var"), kept.get("weight"), Place("the sample"))
