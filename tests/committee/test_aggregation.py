"""The table of aggregations: golden values, textbook forms, and the laws every row obeys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from problems import agree, tensor
from sparsegp import InputError
from sparsegp.committee import TABLE, Moments, aggregate
from sparsegp.committee.aggregation import BASE_WEIGHT, EVERYWHERE, Answer, get

GOLDEN_NAMES = {"PoE": "poe", "GPoE": "gpoe", "BCM": "bcm", "RBCM": "rbcm"}
BASE = Moments(tensor([0.3, -1.0, 0.0, 2.0]), tensor([1.7, 0.4, 1.0, 3.0]))


def combine(name: str, base: Moments, experts: Sequence[Moments]) -> Moments:
    answers = [Answer(k, EVERYWHERE, moments) for k, moments in enumerate(experts)]
    return aggregate(get(name), base, answers, len(experts))


def same(got: Moments, mean: Any, var: Any, rtol: float) -> None:
    """Means may cancel to nearly nothing: they are compared on the scale on which experts disagree."""
    np.testing.assert_allclose(got.mean, mean, atol=6.0 * rtol)
    np.testing.assert_allclose(got.var, var, rtol=rtol)


@st.composite
def committees(draw: st.DrawFn, at_least: int = 1) -> list[Moments]:
    """Experts that know at least as much as BASE."""
    shares = st.lists(st.floats(1e-3, 1.0), min_size=4, max_size=4)
    means = st.lists(st.floats(-3.0, 3.0), min_size=4, max_size=4)
    n = draw(st.integers(at_least, 5))
    return [Moments(tensor(draw(means)), tensor(draw(shares)) * BASE.var) for _ in range(n)]


def shares_of_precision(base: Moments, experts: Sequence[Moments]) -> list[Tensor]:
    excess = [(base.var / e.var) ** 2 - 1.0 for e in experts]
    return [u / (BASE_WEIGHT + sum(excess)) for u in excess]


def textbook(name: str, base: Moments, experts: Sequence[Moments]) -> tuple[Tensor, Tensor]:
    """sum_i w_i/s_i + (1 - sum_i w_i)/s_0 and the same for the means, in the words of the papers."""
    n = len(experts)
    entropy = [0.5 * (base.var.log() - e.var.log()) for e in experts]
    one = torch.ones_like(base.var)
    weights = {
        "poe": [one] * n,
        "gpoe": [one / n] * n,
        "bcm": [one] * n,
        "rbcm": entropy,
        "grbcm": [one, *entropy[1:]],
        "tpoe": shares_of_precision(base, experts),
    }[name]
    rest = 0.0 if name in ("poe", "gpoe") else 1.0 - sum(weights)
    precision = sum(w / e.var for w, e in zip(weights, experts, strict=True)) + rest / base.var
    shift = sum(w * e.mean / e.var for w, e in zip(weights, experts, strict=True)) + rest * base.mean / base.var
    return shift / precision, 1.0 / precision


@pytest.mark.parametrize("model", GOLDEN_NAMES)
def test_golden_values(golden: Mapping[str, Any], model: str) -> None:
    """Experts of f (s_0 = sf2) and of g (s_0 = sg2, m_0 = mu0), each combined by itself (001 eqs. 22-24)."""
    dvshgp, expected = golden["dvshgp"], golden["dvshgp"]["aggregate"][model]
    priors = {"f": (0.0, golden["meta"]["sf2"]), "g": (-1.2, 0.7)}
    got = {}
    for function, (mean, var) in priors.items():
        base = Moments(torch.full((3,), mean, dtype=torch.float64), torch.full((3,), var, dtype=torch.float64))
        experts = [Moments(tensor(e[f"mu_{function}"]), tensor(e[f"var_{function}"])) for e in dvshgp["experts"]]
        got[function] = combine(GOLDEN_NAMES[model], base, experts)
        agree((got[function].mean, got[function].var), (expected[f"mu_{function}"], expected[f"var_{function}"]))
    f, g = got["f"], got["g"]
    agree((f.var + torch.exp(g.mean + 0.5 * g.var),), (expected["var_y"],))


@pytest.mark.parametrize("name", TABLE)
@settings(max_examples=30, deadline=None)
@given(experts=committees())
def test_every_row_is_its_textbook_form(name: str, experts: list[Moments]) -> None:
    got = combine(name, BASE, experts)
    same(got, *textbook(name, BASE, experts), rtol=1e-9)


@pytest.mark.parametrize("name", TABLE)
@settings(max_examples=30, deadline=None)
@given(experts=committees())
def test_a_committee_never_knows_less_than_its_base(name: str, experts: list[Moments]) -> None:
    var = combine(name, BASE, experts).var
    assert bool((var > 0).all())
    assert bool((var <= BASE.var * (1 + 1e-12)).all())


@pytest.mark.parametrize("name", ["poe", "gpoe", "bcm", "grbcm"])
@settings(max_examples=20, deadline=None)
@given(experts=committees())
def test_a_committee_of_one_is_that_expert(name: str, experts: list[Moments]) -> None:
    got = combine(name, BASE, experts[:1])
    same(got, experts[0].mean, experts[0].var, rtol=1e-10)


def test_rbcm_weighs_a_single_expert_by_its_entropy() -> None:
    """w = 1 only for an expert with s = s_0/e^2; one that knows less is trusted less, one that knows more is more."""
    for share, order in ((np.exp(-2.0), 0), (0.5, 1), (0.01, -1)):
        expert = Moments(BASE.mean + 1.0, share * BASE.var)
        var = combine("rbcm", BASE, [expert]).var
        assert np.sign(np.round(float((var / expert.var).log().mean()), 9)) == order


@settings(max_examples=20, deadline=None)
@given(experts=committees())
def test_tpoe_is_no_surer_than_its_surest_expert(experts: list[Moments]) -> None:
    surest = torch.stack([e.var for e in experts]).amin(0)
    assert bool((combine("tpoe", BASE, experts).var >= surest * (1 - 1e-12)).all())


def test_tpoe_follows_the_expert_that_knows_the_place() -> None:
    sure, vague = Moments(BASE.mean + 1.0, 0.01 * BASE.var), Moments(BASE.mean - 3.0, 0.5 * BASE.var)
    got = combine("tpoe", BASE, [sure, vague, vague])
    same(got, sure.mean, sure.var, rtol=2e-3)
    same(combine("tpoe", BASE, [sure]), sure.mean, sure.var, rtol=1e-7)


@pytest.mark.parametrize("name", ["bcm", "rbcm", "tpoe"])
@settings(max_examples=20, deadline=None)
@given(experts=committees(at_least=2))
def test_order_and_experts_that_only_know_the_prior_do_not_matter(name: str, experts: list[Moments]) -> None:
    expected = combine(name, BASE, experts)
    for other in (experts[::-1], [*experts, BASE]):
        got = combine(name, BASE, other)
        same(got, expected.mean, expected.var, rtol=1e-10)


@pytest.mark.parametrize("name", TABLE)
@settings(max_examples=20, deadline=None)
@given(experts=committees())
def test_rows_without_an_opinion_are_rows_where_the_expert_repeats_the_base(name: str, experts: list[Moments]) -> None:
    index = torch.tensor([0, 2])
    some = [Answer(k, index, moments.at(index)) for k, moments in enumerate(experts)]
    repeated = [Moments(BASE.mean.clone(), BASE.var.clone()) for _ in experts]
    for own, full in zip(repeated, experts, strict=True):
        own.mean[index], own.var[index] = full.mean[index], full.var[index]
    got, expected = aggregate(get(name), BASE, some, len(experts)), combine(name, BASE, repeated)
    same(got, expected.mean, expected.var, rtol=1e-12)


@pytest.mark.parametrize("name", TABLE)
def test_without_experts_the_base_is_left(name: str) -> None:
    got = combine(name, BASE, [])
    same(got, BASE.mean, BASE.var, rtol=1e-15)


@pytest.mark.parametrize("name", ["bcm", "rbcm", "grbcm", "tpoe"])
def test_a_variance_above_the_base_by_rounding_counts_as_the_base(name: str) -> None:
    """The authors' code gives such an expert a negative weight."""
    wider = Moments(BASE.mean, BASE.var * (1 + 1e-6))
    got = combine(name, BASE, [wider, wider])
    same(got, BASE.mean, BASE.var, rtol=1e-12)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="'rbcm', 'grbcm', 'tpoe'; got 'mean'"):
        get("mean")
