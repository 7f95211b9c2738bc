"""Rows that were never added are not forgotten; those that were always can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegp
from sparsegp import CommitteeGPRegressor, InputError, SparseGPRegressor, kernels
from sparsegp.data import Batch, Place
from sparsegp.data.digest import FULL, MOST_PENDING, SIZE, RowDigest

rng = np.random.default_rng(5)
X = rng.uniform(-3.0, 3.0, (200, 2))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=200)


def model(name: str = "vfe", **options: Any) -> SparseGPRegressor:
    made = {"inducing": X[:8], "noise_var": 0.05, "optimizer": None, "normalize": False, **options}
    return SparseGPRegressor(kernels.SquaredExponential(1.2, 0.9), name, **made)


def batch(n: int, seed: int = 0) -> Batch:
    draw = np.random.default_rng(seed)
    return Batch(draw.normal(size=(n, 3)), draw.normal(size=n), None, None, Place("test"))


@pytest.mark.parametrize("name", ["vfe", "fitc", "pitc", "pic"])
def test_phantoms_are_refused_and_leave_the_model_alone(name: str) -> None:
    """Rows near the middle of the others: what remains could be statistics of some data."""
    fitted = model(name).fit(X, y)
    before = fitted.predict(X[:5])
    for k in range(30):
        draw = np.random.default_rng(k)
        row = draw.normal(0.0, 0.1, (1, 2))
        with pytest.raises(InputError, match=r"must have been added before|not among"):
            fitted.forget(row, np.array([0.0]))
    assert np.array_equal(fitted.predict(X[:5]), before)


def test_the_statistics_alone_would_have_let_a_phantom_through() -> None:
    fitted = model().fit(np.repeat(X[:20], 5, axis=0), np.repeat(y[:20], 5))
    near = X[:1] + 1e-4
    fitted.model_.remove(*fitted._block_of(Batch(near, y[:1], None, None, Place("test")), None))
    with pytest.raises(InputError, match="at least one of these was not"):
        fitted.forget(near, y[:1])


def test_rows_are_known_after_updates_merging_saving_and_loading(tmp_path: Path) -> None:
    fitted = model().fit(X[:50], y[:50]).partial_fit(X[50:80], y[50:80])
    fitted.merge(model().fit(X[80:120], y[80:120]))
    other = fitted.without_rows().partial_fit(X[120:130], y[120:130])
    fitted.merge(other)
    fitted.save(tmp_path / "model.sgp")
    loaded = sparsegp.load(tmp_path / "model.sgp")
    for part in (slice(100, 125), slice(0, 20), slice(60, 61)):
        loaded.forget(X[part], y[part])
        with pytest.raises(InputError, match="must have been added before"):
            loaded.forget(X[part], y[part])
    kept = np.r_[20:60, 61:100, 125:130]
    np.testing.assert_allclose(loaded.predict(X[:9]), model().fit(X[kept], y[kept]).predict(X[:9]), rtol=1e-8)


def test_weights_and_noise_belong_to_a_row() -> None:
    weight = np.linspace(0.0, 2.0, 200)
    fitted = model(noise_var=None).fit(X, y, sample_weight=weight, noise_var=np.full(200, 0.1))
    for changed in ({"sample_weight": weight[5:9] * 2}, {"noise_var": np.full(4, 0.2)}):
        given = {"sample_weight": weight[5:9], "noise_var": np.full(4, 0.1), **changed}
        with pytest.raises(InputError, match="must have been added before"):
            fitted.forget(X[5:9], y[5:9], **given)
    fitted.forget(X[:9], y[:9], sample_weight=weight[:9], noise_var=np.full(9, 0.1))
    assert fitted.n_samples_seen_ == 191


def test_a_committee_knows_its_rows() -> None:
    fitted = CommitteeGPRegressor(n_experts=2, optimizer=None, random_state=0).fit(X[:60], y[:60])
    fitted.forget(X[:5], y[:5])
    with pytest.raises(InputError, match="must have been added before"):
        fitted.forget(X[:5], y[:5])


def test_rows_read_in_passes_are_not_known(options: Any) -> None:
    options(opening={"most_entries": 40})
    fitted = model().fit(X, y)
    assert fitted.fitted_.digest is None
    fitted.forget(X[:9], y[:9])


def test_a_digest_counts_copies_and_never_denies_a_row() -> None:
    rows = batch(400)
    digest = RowDigest.empty().with_rows(rows).with_rows(rows)
    once = digest.without_rows(rows)
    assert np.array_equal(once.counts, RowDigest.empty().with_rows(rows).counts)
    assert not once.without_rows(rows).counts.any()
    many = RowDigest.empty()
    for _ in range(300):
        many = many.with_rows(rows)
    assert many.counts.max() == FULL
    assert many.without_rows(rows).counts.max() == FULL


def test_how_often_a_strange_row_slips_through() -> None:
    """As the module says: 0.07% at 1,000 rows."""
    digest = RowDigest.empty().with_rows(batch(1000))
    strange = batch(20_000, 1)
    found = 0
    for k in range(len(strange.y)):
        try:
            digest.without_rows(strange.take(slice(k, k + 1)))
        except InputError:
            continue
        found += 1
    expected = (1.0 - np.exp(-3 * 1000 / SIZE)) ** 3
    assert found / 20_000 == pytest.approx(expected, abs=4.0 * np.sqrt(expected / 20_000))


@pytest.mark.parametrize("columns", [(), ("noise_var",), ("noise_var", "weight")])
def test_rows_that_come_alone_are_counted_as_those_of_a_batch(columns: tuple[str, ...]) -> None:
    draw, rows = np.random.default_rng(3), batch(2 * MOST_PENDING + 9)
    rows = replace(rows, **{name: draw.integers(0, 3, len(rows)).astype(float) for name in columns})
    together, alone = RowDigest.empty().with_rows(rows), RowDigest.empty()
    for k in range(len(rows)):
        alone = alone.with_rows(rows.take(slice(k, k + 1)))
        assert len(alone.pending) <= MOST_PENDING
    assert np.array_equal(alone.counts, together.counts)
    assert not alone.without_rows(rows).counts.any()


def test_what_came_alone_may_be_overwritten_later() -> None:
    row = batch(1)
    digest, expected = RowDigest.empty().with_rows(row), RowDigest.empty().with_rows(row).counts
    row.X[...], row.y[...] = 0.0, 0.0
    assert np.array_equal(digest.counts, expected)


def test_hashes_do_not_depend_on_how_rows_lie_in_memory() -> None:
    rows = batch(7)
    other = Batch(np.asfortranarray(rows.X), rows.y[::-1][::-1], None, np.ones(7), rows.place)
    assert np.array_equal(RowDigest.empty().with_rows(rows).counts, RowDigest.empty().with_rows(other).counts)
    assert RowDigest.empty().with_rows(rows).counts.nonzero()[0][:3].tolist() == KNOWN


KNOWN = [221, 764, 2401]
