"""The aggregations as data: one row each, read by one code path.

Experts say N(m_i, s_i) of a value whose base (prior or communications expert) is N(m_0, s_0). Every row says

    1/s_A = c/s_0 + sum_i w_i (1/s_i - 1/s_0),        m_A = m_0 + s_A sum_i w_i (m_i - m_0)/s_i,

so a row is the weight w_i (for "tpoe" divided by BASE_WEIGHT + sum_i w_i), the count c of the base, and what the base
is. An expert never knows less than the base (s_i <= s_0, which is enforced against rounding), so every term is
positive, and one that says what the base says changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from sparsegp.errors import InputError

# Of the base, where weights add up to 1: it is left where no expert knows anything, and experts that know less need not
# be asked.
BASE_WEIGHT = 1e-4


class Weighting(Enum):
    """w_i: 1, 1/(number of experts), the entropy the expert takes from the base, log(s_0/s_i)/2, or the square
    of its precision in excess of the base's, (s_0/s_i)^2 - 1."""

    ONE = "one"
    ONE_OVER_EXPERTS = "one over experts"
    ENTROPY = "entropy"
    PRECISION = "precision"


class BaseCount(Enum):
    """c, how often the base counts: once, or as often as experts count (each expert brings its own copy)."""

    ONCE = "once"
    PER_WEIGHT = "per weight"


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a value at each of some rows."""

    mean: Tensor
    var: Tensor

    @classmethod
    def concat(cls, parts: Sequence["Moments"]) -> "Moments":
        return cls(torch.cat([part.mean for part in parts]), torch.cat([part.var for part in parts]))

    def at(self, index: Tensor | slice) -> "Moments":
        return Moments(self.mean[index], self.var[index])


@dataclass(frozen=True)
class Aggregation:
    """A rule of the table. `communicates`: the base is an expert on rows drawn from everywhere, which every other
    expert has too and whose weight is never below 1 for the first of them; otherwise the base is the prior."""

    name: str
    weighting: Weighting
    base_count: BaseCount
    communicates: bool
    reference: str

    @property
    def normalizes(self) -> bool:
        """Whether weights are divided by BASE_WEIGHT + sum_i w_i."""
        return self.weighting is Weighting.PRECISION

    @property
    def first_total(self) -> float:
        """What weights are divided by before an expert has spoken."""
        return BASE_WEIGHT if self.normalizes else 1.0

    def weight(self, reduction: Tensor, n_experts: int) -> Tensor:
        """w_i from the reduction of variance 1 - s_i/s_0, which it never decreases with."""
        if self.weighting is Weighting.ENTROPY:
            return -0.5 * torch.log1p(-reduction)
        if self.weighting is Weighting.PRECISION:
            return torch.expm1(-2.0 * torch.log1p(-reduction))
        constant = 1.0 if self.weighting is Weighting.ONE else 1.0 / n_experts
        return torch.full_like(reduction, constant)

    def base_weight(self, n_experts: int) -> float:
        """c: 1, or the sum of the weights; without experts the base alone is left."""
        if self.base_count is BaseCount.ONCE or self.weighting is Weighting.ONE_OVER_EXPERTS:
            return 1.0
        return float(max(n_experts, 1))


TABLE: Mapping[str, Aggregation] = {
    rule.name: rule
    for rule in (
        Aggregation("poe", Weighting.ONE, BaseCount.PER_WEIGHT, False, "product of experts"),
        Aggregation("gpoe", Weighting.ONE_OVER_EXPERTS, BaseCount.PER_WEIGHT, False, "generalised product of experts"),
        Aggregation("bcm", Weighting.ONE, BaseCount.ONCE, False, "004 sec. 7 at single points"),
        Aggregation("rbcm", Weighting.ENTROPY, BaseCount.ONCE, False, "001 eqs. 22-23"),
        Aggregation("grbcm", Weighting.ENTROPY, BaseCount.ONCE, True, "001 footnote 6"),
        Aggregation("tpoe", Weighting.PRECISION, BaseCount.ONCE, False, "docs/derivations/committees.md, A1"),
    )
}


def get(name: str) -> Aggregation:
    if isinstance(name, str) and name in TABLE:
        return TABLE[name]
    raise InputError(f"aggregation must be one of {', '.join(map(repr, TABLE))}; got {name!r}.")


@dataclass(frozen=True)
class Answer:
    """What the k-th expert says of the rows `index`; of all other rows it says what the base says."""

    expert: int
    index: Tensor | slice
    moments: Moments


EVERYWHERE = slice(None)


def aggregate(rule: Aggregation, base: Moments, answers: Iterable[Answer], n_experts: int) -> Moments:
    """The committee's moments. Answers are folded one by one: memory is that of one of them."""
    gain, pull = torch.zeros_like(base.mean), torch.zeros_like(base.mean)
    total = torch.full_like(base.mean, rule.first_total)
    for answer in answers:
        own_base = base.at(answer.index)
        weight, var = expert_weight(rule, own_base, answer, n_experts)
        gain[answer.index] += weight * (1.0 / var - 1.0 / own_base.var)
        pull[answer.index] += weight * (answer.moments.mean - own_base.mean) / var
        if rule.normalizes:
            total[answer.index] += weight
    precision = rule.base_weight(n_experts) / base.var + gain / total
    return Moments(base.mean + pull / total / precision, 1.0 / precision)


def expert_weight(rule: Aggregation, base: Moments, answer: Answer, n_experts: int) -> tuple[Tensor, Tensor]:
    """(w_i, s_i), the variance clipped at the base's. The first expert after a communications expert counts fully:
    with two of them the committee has seen all rows together."""
    var = torch.minimum(answer.moments.var, base.var)
    if rule.communicates and answer.expert == 0:
        return torch.ones_like(var), var
    return rule.weight(1.0 - var / base.var, n_experts), var
