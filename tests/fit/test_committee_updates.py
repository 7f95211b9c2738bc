"""Committees that take rows in and give them back: the model of one fit of all rows, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from problems import agree
from sparsegp import CommitteeGPRegressor, InputError, kernels, load
from sparsegp.committee import shared_learning
from sparsegp.core.block import Block
from sparsegp.fit.committee_model import COMMON, CommitteeModel
from sparsegp.learn.sum_objective import place
from sparsegp.parallel import Threads

pytestmark = pytest.mark.usefixtures("brief_learning")

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPERTS = ["exact", "vfe", "fitc", "pic", "vshgp", "vhgp"]
AGGREGATIONS = ["grbcm", "rbcm", "poe", "tpoe"]


def wave(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 0.15 * rng.standard_normal(n)


def fixed(**changes: Any) -> CommitteeGPRegressor:
    settings = {
        "kernel": kernels.SquaredExponential(1.3, [0.9, 1.7]),
        "noise_var": 0.07,
        "n_experts": 4,
        "n_inducing": 12,
        "n_noise_inducing": 6,
        "optimizer": None,
        "random_state": 0,
    }
    return CommitteeGPRegressor(**{**settings, **changes})


def built_at_once(gp: CommitteeGPRegressor, blocks: dict[int, Block]) -> tuple[Any, float]:
    """Moments and evidence of the committee with these rows in each expert, every one computed from scratch."""
    model: CommitteeModel = gp.model_
    members = model.members
    assert members is not None
    specs = [members.others[k].spec.with_rows(rows) for k, rows in sorted(blocks.items()) if k != COMMON]
    if members.common is not None:
        specs = [members.common.spec.with_rows(blocks[COMMON]), *specs]
    communicates = members.common is not None
    found = shared_learning.infer(place(specs, Threads(1)), model._hyper, Threads(1), communicates=communicates)
    experts = [trained.expert for trained in found.experts]
    common = None if found.common is None else found.common.expert
    return replace(model.committee, experts=experts, common=common), found.log_evidence


def rows_by_hand(gp: CommitteeGPRegressor, X: np.ndarray, y: np.ndarray) -> dict[int, Block]:
    """Which expert has which of all rows, by the nearest centroid; the communications expert keeps those of the fit."""
    members = gp.model_.members
    scaled = torch.from_numpy(gp.scaling_.inputs(X)), torch.from_numpy(gp.scaling_.targets(y))
    metric, centroids = members.blocking.metric, members.blocking.partition.centroids
    cell = torch.cdist(scaled[0] * metric, centroids).argmin(1)
    rows, is_common = {}, torch.zeros(len(y), dtype=torch.bool)
    if members.common is not None:
        common = members.common.spec.block
        rows[COMMON] = common
        is_common = (scaled[0][:, None] == common.X[None]).all(2).any(1)
    for k in range(len(centroids)):
        mine = (cell == k) & ~is_common
        rows[k] = Block(scaled[0][mine], scaled[1][mine])
    return rows


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("expert", EXPERTS)
def test_updates_are_one_fit_of_all_rows(expert: str, aggregation: str) -> None:
    X, y = wave(120)
    Xs = wave(15, seed=1)[0]
    gp = fixed(expert=expert, aggregation=aggregation).fit(X[:80], y[:80])
    untouched = {id(member.expert) for member in gp.model_.members.others}
    before = gp.predict(Xs, return_std=True)
    gp.partial_fit(X[80:81], y[80:81])
    assert sum(id(member.expert) not in untouched for member in gp.model_.members.others) == 1
    gp.partial_fit(X[81:], y[81:])
    committee, evidence = built_at_once(gp, rows_by_hand(gp, X, y))
    inputs = gp.scaling_.tensor(Xs)
    for got, expected in zip(gp.model_.committee.moments(inputs), committee.moments(inputs), strict=True):
        agree((got.mean, got.var), (expected.mean, expected.var), rtol=1e-9)
    assert gp.log_evidence_ == pytest.approx(evidence, rel=1e-9)
    assert gp.n_samples_seen_ == gp.model_.n_rows == 120
    assert np.abs(gp.predict(Xs) - before[0]).max() > 1e-3
    gp.forget(X[80:], y[80:])
    agree(gp.predict(Xs, return_std=True), before, rtol=1e-7)
    assert gp.n_samples_seen_ == 80


@pytest.mark.parametrize("expert", ["exact", "vshgp"])
@pytest.mark.parametrize("aggregation", ["rbcm", "tpoe"])
def test_experts_by_labels_take_labels_and_new_ones(expert: str, aggregation: str) -> None:
    """New labels are new experts; then the model is that of one fit with all labels."""
    X, y = wave(100)
    labels, Xs = np.arange(100) % 3 + 5, wave(12, seed=1)[0]
    labels[70:] = np.where(labels[70:] == 6, -4, labels[70:])
    gp = fixed(expert=expert, aggregation=aggregation, normalize=False, inducing="greedy", most_asked=2)
    gp.fit(X[:70], y[:70], blocks=labels[:70])
    gp.partial_fit(X[70:], y[70:], blocks=labels[70:])
    assert len(gp.model_.committee.experts) == 4
    if expert == "exact":
        whole = clone(gp).fit(X, y, blocks=labels)
        agree(gp.predict(Xs, return_std=True), whole.predict(Xs, return_std=True), rtol=1e-9)
        assert gp.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-9)
    gp.forget(X[70:], y[70:], blocks=labels[70:])
    assert len(gp.model_.committee.experts) == 3
    agree(
        gp.predict(Xs, return_std=True),
        clone(gp).fit(X[:70], y[:70], blocks=labels[:70]).predict(Xs, return_std=True),
        1e-7,
    )
    # without labels, rows join the expert that is centred nearest
    gp.partial_fit(X[70:], y[70:])
    assert len(gp.model_.committee.experts) == 3
    with pytest.raises(InputError, match="one integer label"):
        gp.partial_fit(X[:2], y[:2], blocks=[0.5, 1.0])


def test_random_parts_stay_even() -> None:
    X, y = wave(61)
    gp = fixed(partition="random", n_experts=3, aggregation="rbcm").fit(X[:50], y[:50]).partial_fit(X[50:], y[50:])
    sizes = [len(member.spec.block) for member in gp.model_.members.others]
    assert sorted(sizes) == [20, 20, 21]
    once = fixed(partition="random", n_experts=3, aggregation="rbcm").fit(X[:50], y[:50])
    for row in range(50, 61):
        once.partial_fit(X[row : row + 1], y[row : row + 1])
    agree(gp.predict(X, return_std=True), once.predict(X, return_std=True), rtol=1e-9)
    gp.forget(X[50:], y[50:])
    agree(
        gp.predict(X), fixed(partition="random", n_experts=3, aggregation="rbcm").fit(X[:50], y[:50]).predict(X), 1e-8
    )


@pytest.mark.parametrize("aggregation", ["grbcm", "rbcm"])
def test_an_expert_without_rows_is_not_asked_until_rows_come_back(aggregation: str) -> None:
    X, y = wave(80)
    gp = fixed(aggregation=aggregation).fit(X, y)
    before, evidence = gp.predict(X, return_std=True), gp.log_evidence_
    members = gp.model_.members
    rows = members.others[1].spec.block
    raw = gp.scaling_.raw_inputs(rows.X.numpy())
    mine = np.abs(X[:, None] - raw[None]).max(2).min(1) < 1e-9
    gp.forget(X[mine], y[mine])
    assert len(gp.model_.committee.experts) == len(members.others) - 1
    assert gp.n_samples_seen_ == 80 - len(rows)
    assert np.isfinite(gp.predict(X)).all()
    gp.partial_fit(X[mine], y[mine])
    agree(gp.predict(X, return_std=True), before, rtol=1e-7)
    assert gp.log_evidence_ == pytest.approx(evidence, rel=1e-9)


def test_rows_of_the_communications_expert_can_be_forgotten_but_for_the_last() -> None:
    X, y = wave(60)
    gp = fixed(n_experts=6).fit(X, y)
    common = gp.model_.members.common.spec.block
    shared = (torch.from_numpy(gp.scaling_.inputs(X))[:, None] == common.X[None]).all(2).any(1).numpy()
    index = np.flatnonzero(shared)
    gp.forget(X[index[:4]], y[index[:4]])
    keeps = np.setdiff1d(np.arange(60), index[:4])
    committee, evidence = built_at_once(gp, rows_by_hand(gp, X[keeps], y[keeps]))
    (got,), (expected,) = (c.moments(gp.scaling_.tensor(X)) for c in (gp.model_.committee, committee))
    agree((got.mean, got.var), (expected.mean, expected.var), rtol=1e-9)
    assert gp.log_evidence_ == pytest.approx(evidence, rel=1e-9)
    with pytest.raises(InputError, match="communications expert"):
        gp.forget(X[index[4:]], y[index[4:]])


def test_a_single_expert_takes_all_rows() -> None:
    X, y = wave(40)
    for aggregation in ("grbcm", "rbcm"):
        gp = (
            fixed(n_experts=1, aggregation=aggregation, normalize=False).fit(X[:30], y[:30]).partial_fit(X[30:], y[30:])
        )
        whole = clone(gp).fit(X, y)
        agree(gp.predict(X, return_std=True), whole.predict(X, return_std=True), rtol=1e-8)
        assert gp.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-9)


def test_rows_that_are_not_there_are_named_and_nothing_changes() -> None:
    X, y = wave(80)
    gp = fixed().fit(X, y)
    model = gp.model_
    with pytest.raises(InputError, match="row 1 of these 3"):
        gp.forget(X[:3], y[:3] + np.array([0.0, 1e-9, 0.0]))
    with pytest.raises(InputError, match="row 1 of these 2"):
        gp.forget(X[[4, 4]], y[[4, 4]])
    assert gp.model_ is model
    with pytest.raises(InputError, match="given by labels"):
        gp.partial_fit(X[:2], y[:2], blocks=[0, 1])
    with pytest.raises(InputError, match="cannot be merged"):
        gp.model_.merge(fixed().fit(X, y).model_)
    with pytest.raises(InputError, match="keeps a random subset"):
        fixed(expert="sod").fit(X, y).partial_fit(X[:2], y[:2])


def test_experts_grow_up_to_a_limit() -> None:
    X, y = wave(80)
    model = fixed().fit(X, y).model_
    members = replace(model.members, options=replace(model.members.options, dense_rows=20))
    block = Block(torch.zeros(19, 2, dtype=torch.float64), torch.zeros(19, dtype=torch.float64))
    with pytest.raises(InputError, match="updates are for experts of up to 20"):
        replace(model, members=members).add(block)


def test_weights_known_noise_and_scale() -> None:
    X, y = wave(90)
    rng = np.random.default_rng(2)
    labels, weight, noise = np.arange(90) % 3, rng.integers(1, 4, 90).astype(float), rng.uniform(0.02, 0.3, 90)
    gp = fixed(aggregation="rbcm", normalize=False)
    first = {"noise_var": noise[:60], "sample_weight": weight[:60], "blocks": labels[:60]}
    later = {"noise_var": noise[60:], "sample_weight": weight[60:], "blocks": labels[60:]}
    got = clone(gp).partial_fit(X[:60], y[:60], **first).partial_fit(X[60:], y[60:], **later)
    whole = clone(gp).fit(X, y, noise_var=noise, sample_weight=weight, blocks=labels)
    agree(got.predict(X, return_std=True), whole.predict(X, return_std=True), rtol=1e-8)
    assert got.noise_var_ == pytest.approx(noise.mean(), rel=1e-12)
    assert got.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-9)
    half = whole.model_.scale(0.5)
    weighted = clone(gp).fit(X, y, noise_var=noise, sample_weight=0.5 * weight, blocks=labels)
    inputs = torch.from_numpy(X)
    (a,), (b,) = half.committee.moments(inputs), weighted.model_.committee.moments(inputs)
    agree((a.mean, a.var), (b.mean, b.var), rtol=1e-8)
    with pytest.raises(InputError, match="noise_var= must be given"):
        got.partial_fit(X[:2], y[:2], blocks=labels[:2])


def test_new_rows_without_weights_count_once() -> None:
    X, y = wave(60)
    gp = fixed(aggregation="rbcm", normalize=False)
    labels = np.arange(60) % 2
    got = clone(gp).fit(X[:40], y[:40], sample_weight=np.full(40, 2.0), blocks=labels[:40])
    got.partial_fit(X[40:], y[40:], blocks=labels[40:])
    whole = clone(gp).fit(X, y, sample_weight=np.repeat([2.0, 1.0], [40, 20]), blocks=labels)
    agree(got.predict(X, return_std=True), whole.predict(X, return_std=True), rtol=1e-8)


@pytest.mark.parametrize("expert", ["exact", "vshgp"])
def test_drift_is_reported(expert: str) -> None:
    X, y = wave(200)
    gp = CommitteeGPRegressor(expert=expert, n_experts=3, n_inducing=15, n_noise_inducing=5, random_state=0)
    gp.partial_fit(X, y)
    assert gp.info_["innovations"]["rows"] == 0
    Xn, yn = wave(100, seed=5)
    gp.partial_fit(Xn, yn)
    calm = gp.info_["innovations"]
    assert calm["rows"] == 100
    assert 0.3 < calm["mean_square"] < 1.5
    assert not calm["drift"]
    gp.partial_fit(Xn, yn + 2.0)
    assert gp.info_["innovations"]["drift"]


def test_a_stream_that_left_its_data_is_pointed_out_once() -> None:
    X, y = wave(80)
    gp = fixed().fit(X, y)
    with pytest.warns(UserWarning, match="left the data of the first fit far behind"):
        gp.partial_fit(X[:30] + 60.0, y[:30])


@pytest.mark.parametrize("expert", ["exact", "pic", "vshgp"])
@pytest.mark.parametrize("aggregation", ["grbcm", "tpoe"])
def test_a_saved_committee_goes_on_where_it_was(expert: str, aggregation: str, tmp_path: Any) -> None:
    X, y = wave(110)
    gp = fixed(expert=expert, aggregation=aggregation, most_asked=3).fit(X[:80], y[:80]).partial_fit(X[80:90], y[80:90])
    gp.save(tmp_path / "model.sgp")
    other = load(tmp_path / "model.sgp")
    assert other.info_["innovations"] == gp.info_["innovations"]
    for model in (gp, other):
        model.partial_fit(X[90:], y[90:]).forget(X[5:9], y[5:9])
    agree(other.predict(X, return_std=True), gp.predict(X, return_std=True), rtol=1e-8)
    assert other.log_evidence_ == pytest.approx(gp.log_evidence_, rel=1e-9)
    assert other.info_["innovations"] == pytest.approx(gp.info_["innovations"])
    assert other.n_samples_seen_ == gp.n_samples_seen_ == 106


def test_saved_committees_by_labels_and_by_chance_take_rows(tmp_path: Any) -> None:
    X, y = wave(70)
    labels = np.arange(70) % 3
    by_labels = fixed(expert="vfe", aggregation="rbcm").fit(X[:50], y[:50], blocks=labels[:50])
    by_chance = fixed(partition="random", aggregation="rbcm", n_experts=3).fit(X[:50], y[:50])
    for gp, given in ((by_labels, {"blocks": labels[50:] + 1}), (by_chance, {})):
        gp.save(tmp_path / "model.sgp")
        other = load(tmp_path / "model.sgp").partial_fit(X[50:], y[50:], **given)
        gp.partial_fit(X[50:], y[50:], **given)
        agree(other.predict(X, return_std=True), gp.predict(X, return_std=True), rtol=1e-8)
    assert len(by_labels.model_.committee.experts) == 4


def test_a_file_of_version_1_predicts_and_says_that_it_must_be_fitted_again() -> None:
    gp = load(FIXTURES / "model_v1_committee.sgp")
    X = np.zeros((2, gp.n_features_in_))
    assert np.isfinite(gp.predict(X)).all()
    with pytest.raises(InputError, match="Fit it again"):
        gp.partial_fit(X, np.zeros(2))


def test_a_committee_without_its_rows_predicts_and_says_so() -> None:
    X, y = wave(60)
    gp = fixed().fit(X, y)
    expected = gp.predict(X)
    gp.fitted_ = replace(gp.fitted_, model=replace(gp.model_, members=None))
    agree((gp.predict(X),), (expected,), 1e-12)
    for update in (gp.partial_fit, gp.forget):
        with pytest.raises(InputError, match="Fit it again"):
            update(X[:2], y[:2])
