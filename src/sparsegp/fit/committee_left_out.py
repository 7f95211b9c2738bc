"""Leave-one-out predictions of a committee.

A row belongs to one expert, so only that expert's answer changes when the row leaves, and it changes in closed form:
the aggregation is that of all answers with this one replaced. A row of a communications expert is one of every
expert's rows: all answers are replaced, and the base. Who is asked stays as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sparsegp.committee.aggregation import Moments
from sparsegp.committee.committee import Committee
from sparsegp.committee.experts import Expert, ExpertSpec, GaussianExpert, SparseSpec
from sparsegp.core.block import Block
from sparsegp.core.dense import ExactPosterior, row_noise
from sparsegp.core.left_out import OTHER_ROWS, LeftOut, LeftOutOfRows, left_out_of_exact
from sparsegp.core.local import LocalPosterior
from sparsegp.core.posterior import SparsePosterior
from sparsegp.errors import InputError

NOBODY = -1


@dataclass(frozen=True)
class Answers:
    """What an expert says of each row that it has, had it not seen the row. Equal rows have equal answers."""

    moments: Moments
    places: Mapping[bytes, int]

    @classmethod
    def of(cls, spec: ExpertSpec, expert: Expert | None, noise_var: Tensor) -> "Answers":
        assert isinstance(expert, GaussianExpert)
        posterior = expert.posterior
        if isinstance(posterior, ExactPosterior):
            found, _ = left_out_of_exact(posterior, spec.block, noise_var)
        else:
            assert isinstance(posterior, SparsePosterior | LocalPosterior)
            assert isinstance(spec, SparseSpec)
            found = spec.rows.sum(LeftOutOfRows(posterior.prior, posterior.q)).left_out
        return cls(Moments(found.mean, found.f_var), {key: i for i, key in enumerate(keys_of(spec.block))})

    def at(self, keys: Sequence[bytes]) -> Moments:
        return self.moments.at(torch.tensor([self.places[key] for key in keys], dtype=torch.int64))


def left_out_of_committee(
    committee: Committee,
    specs: Sequence[ExpertSpec],
    common: ExpertSpec | None,
    block: Block,
    noise_var: float,
    *,
    holds_all: bool,
) -> LeftOut:
    """`specs` are those of the experts that are seated. `holds_all`: a row that no expert has is an error."""
    keys, noise, n = keys_of(block), torch.tensor(noise_var, dtype=torch.float64), len(specs)
    shared = [] if common is None else [common]
    holders = _holders(keys, [spec.block for spec in (*specs, *shared)], holds_all=holds_all)

    @cache
    def answers(k: int) -> Answers:
        """Of expert k, or of the communications expert, which is the last."""
        if k == n:
            return Answers.of(shared[0], committee.common, noise)
        return Answers.of(specs[k] if common is None else specs[k].augmented(common), committee.experts[k], noise)

    mean, var = torch.empty_like(block.y), torch.empty_like(block.y)
    for k in holders.unique().tolist():
        mine = holders == k
        own = [keys[i] for i in mine.nonzero()[:, 0].tolist()]
        changed = range(n) if k == n else [] if k == NOBODY else [k]
        base = answers(n).at(own) if k == n else None
        found = committee.moments_instead(block.X[mine], {e: answers(e).at(own) for e in changed}, base)
        mean[mine], var[mine] = found.mean, found.var
    return LeftOut(mean, var, row_noise(block, noise)[2], block.y)


def keys_of(block: Block) -> list[bytes]:
    """All that is known of each row."""
    known = block.y.new_zeros(len(block)) if block.noise_var is None else block.noise_var
    table = torch.cat([block.X, torch.stack([block.y, block.weights, known], dim=1)], dim=1).numpy()
    return [row.tobytes() for row in table]


def _holders(keys: Sequence[bytes], held: Sequence[Block], *, holds_all: bool) -> Tensor:
    """The number of the block that has each row; equal rows are taken in their order."""
    places: dict[bytes, list[int]] = {}
    for k, rows in enumerate(held):
        for key in keys_of(rows):
            places.setdefault(key, []).append(k)
    found = torch.tensor([places[key].pop(0) if places.get(key) else NOBODY for key in keys], dtype=torch.int64)
    n_missing, n_foreign = sum(map(len, places.values())), int((found == NOBODY).sum())
    if n_missing or (n_foreign and holds_all):
        what = f"{n_missing:,} rows of its experts are not among these, and {n_foreign:,} of these are no expert's"
        raise InputError(OTHER_ROWS.format(what=what))
    return found
