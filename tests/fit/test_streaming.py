"""partial_fit, forget and merge of the regressor: exactly the batch model, whatever the batches."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from sparsegp import FingerprintError, InputError, SparseGPRegressor, kernels
from test_regressor import BLOCKED, SPARSE, fixed, wave

POINTS = [name for name in SPARSE if name not in BLOCKED]
NEW = wave(9, seed=1)[0]


def same_model(got, expected, rtol=1e-8, **at):
    """Predictions at new rows, joint and marginal, and the evidence."""
    for a, b in zip(
        (*got.predict(NEW, return_cov=True, **at), *got.predict(NEW, return_std=True, latent=True, **at)),
        (*expected.predict(NEW, return_cov=True, **at), *expected.predict(NEW, return_std=True, latent=True, **at)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    assert got.log_evidence_ == pytest.approx(expected.log_evidence_, rel=rtol, abs=rtol)


def snapshot(gp):
    return (*gp.predict(NEW, return_std=True), gp.log_evidence_, gp.n_samples_seen_, gp.noise_var_)


def unchanged(gp, before):
    for a, b in zip(snapshot(gp), before, strict=True):
        np.testing.assert_array_equal(a, b)


def feed(gp, X, y, sizes, **rows):
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        gp.partial_fit(X[part], y[part], **{name: values[part] for name, values in rows.items()})
        start += size
    assert start == len(y)
    return gp


@pytest.mark.parametrize("sizes", [(1,) * 60, (40, 1, 19), (5, 55)])
@pytest.mark.parametrize("approximation", POINTS)
def test_any_batching_is_the_batch_fit(approximation, sizes):
    X, y = wave(60)
    streamed = feed(fixed(approximation), X, y, sizes)
    same_model(streamed, fixed(approximation).fit(X, y))
    assert streamed.n_samples_seen_ == 60


@settings(deadline=None, max_examples=6)
@given(cuts=st.lists(st.integers(1, 49), max_size=6), seed=st.integers(0, 100))
def test_weights_and_known_noise_over_any_batching(cuts, seed):
    X, y = wave(50, seed=seed)
    rng = np.random.default_rng(seed)
    rows = {"sample_weight": rng.integers(0, 4, 50).astype(float), "noise_var": rng.uniform(0.01, 0.5, 50)}
    rows["sample_weight"][0] = 1.0
    edges = [0, *sorted({1, *cuts}), 50]
    streamed = feed(fixed("fitc"), X, y, np.diff(edges), **rows)
    expected = fixed("fitc").fit(X, y, **rows)
    for a, b in zip(streamed.predict(NEW, return_std=True), expected.predict(NEW, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7)
    assert streamed.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-8)


@pytest.mark.parametrize("approximation", ["pitc", "block-pep"])
def test_every_call_is_a_block_unless_labels_say_otherwise(approximation):
    X, y = wave(60)
    expected = fixed(approximation).fit(X, y, blocks=np.repeat([0, 1, 2], 20))
    same_model(feed(fixed(approximation), X, y, (20, 20, 20)), expected)
    labelled = fixed(approximation).fit(X[:20], y[:20], blocks=np.zeros(20, int))
    same_model(labelled.partial_fit(X[20:], y[20:], blocks=np.repeat([7, 5], 20)), expected)


def test_rows_of_pic_join_the_block_they_belong_to():
    X, y = wave(80)
    labels = np.where(X[:, 0] > 0, 5, -2)
    expected = fixed("pic").fit(X, y, blocks=labels)
    streamed = fixed("pic").fit(X[:30], y[:30], blocks=labels[:30])
    feed(streamed, X[30:], y[30:], (1, 20, 29), blocks=labels[30:])
    same_model(streamed, expected)
    same_model(streamed, expected, blocks=np.repeat([5, -2, 9], 3))
    located = fixed("pic").fit(X[:30], y[:30])
    numbers = located.model_.blocking.nearest(located.scaling_.tensor(X)).numpy()
    same_model(located.partial_fit(X[30:], y[30:]), fixed("pic").fit(X, y, blocks=numbers), blocks=numbers[:9])


def test_a_new_label_of_pic_is_a_new_block():
    X, y = wave(60)
    labels = np.repeat([4, 9, 6], 20)
    streamed = feed(fixed("pic"), X, y, (20, 20, 20), blocks=labels)
    expected = fixed("pic").fit(X, y, blocks=labels)
    same_model(streamed, expected)
    same_model(streamed, expected, blocks=np.tile([9, 6, 4], 3))
    with pytest.raises(InputError, match="leave blocks= out"):
        fixed("pic").fit(X, y).partial_fit(X[:2], y[:2], blocks=[0, 99])


@pytest.mark.parametrize("approximation", SPARSE)
def test_forgetting_is_never_having_seen(approximation):
    X, y = wave(60)
    labels = np.repeat([0, 1, 2], 20)
    given = {"blocks": labels} if approximation in BLOCKED else {}
    first = {name: values[:40] for name, values in given.items()}
    gp = feed(fixed(approximation), X, y, (20, 20, 20), **given)
    gp.forget(X[40:], y[40:], **{name: values[40:] for name, values in given.items()})
    places = {"blocks": np.zeros(9, int)} if approximation == "pic" else {}
    same_model(gp, fixed(approximation).fit(X[:40], y[:40], **first), rtol=1e-7, **places)
    assert gp.n_samples_seen_ == 40


@pytest.mark.parametrize("approximation", ["vfe", "fitc", "pitc", "pic"])
def test_forgetting_what_was_never_added_changes_nothing(approximation):
    X, y = wave(60)
    gp = fixed(approximation).fit(X[:30], y[:30])
    before = snapshot(gp)
    with pytest.raises(InputError, match="must have been added before"):
        gp.forget(X[30:], y[30:])
    with pytest.raises(InputError, match="must have been added before"):
        gp.forget(X[:5], y[:5] + 30.0)
    unchanged(gp, before)


@pytest.mark.parametrize("approximation", SPARSE)
def test_merging_is_the_model_of_both(approximation):
    X, y = wave(60)
    labels = np.arange(60) % 3
    given = {"blocks": labels} if approximation == "pic" else {}
    left, right = ({name: values[part] for name, values in given.items()} for part in (slice(0, 25), slice(25, 60)))
    gp = fixed(approximation).partial_fit(X[:25], y[:25], **left)
    merged = gp.merge(fixed(approximation).partial_fit(X[25:], y[25:], **right))
    if approximation in ("pitc", "block-pep"):
        given = {"blocks": np.repeat([0, 1], [25, 35])}
    assert merged is gp
    same_model(merged, fixed(approximation).fit(X, y, **given))
    assert merged.n_samples_seen_ == 60


def test_models_in_other_units_or_with_other_parameters_do_not_merge():
    X, y = wave(60)
    gp = fixed("vfe").fit(X, y)
    before = snapshot(gp)
    for other in (fixed("vfe", noise_var=0.2), fixed("fitc"), fixed("vfe", inducing=NEW)):
        with pytest.raises(FingerprintError, match="same inducing inputs"):
            gp.merge(other.fit(X, y))
    with pytest.raises(FingerprintError, match="normalize=False"):
        fixed("vfe", normalize=True).fit(X[:30], y[:30]).merge(fixed("vfe", normalize=True).fit(X[30:], y[30:]))
    with pytest.raises(InputError, match="got str"):
        gp.merge("model.gp")
    unchanged(gp, before)


@pytest.mark.parametrize("sizes", [(1,) * 40, (25, 3, 12), (40,)])
@pytest.mark.parametrize("approximation", ["vfe", "fitc"])
def test_a_window_holds_the_last_rows(approximation, sizes):
    X, y = wave(70)
    gp = feed(fixed(approximation, window=20).fit(X[:30], y[:30]), X[30:], y[30:], sizes)
    same_model(gp, fixed(approximation).fit(X[-20:], y[-20:]), rtol=1e-7)
    assert gp.n_samples_seen_ == 20


def test_a_window_of_known_noise_speaks_of_the_noise_in_it():
    X, y = wave(60)
    noise = np.linspace(0.01, 0.5, 60)
    gp = feed(fixed("dtc", window=25), X, y, (30, 20, 10), noise_var=noise)
    same_model(gp, fixed("dtc").fit(X[-25:], y[-25:], noise_var=noise[-25:]), rtol=1e-7)


def test_a_window_over_blocks():
    X, y = wave(90)
    labels = np.arange(90) % 3
    pic = feed(fixed("pic", window=30), X, y, (50, 17, 23), blocks=labels)
    same_model(pic, fixed("pic").fit(X[-30:], y[-30:], blocks=labels[-30:]), rtol=1e-7)
    pitc = feed(fixed("pitc", window=30), X, y, (20, 20, 30, 20))
    # blocks leave whole: the last 30 rows are the last block and a part of the one before
    same_model(pitc, fixed("pitc").fit(X[40:], y[40:], blocks=np.repeat([0, 1], [30, 20])), rtol=1e-7)
    assert pitc.n_samples_seen_ == 50


def test_half_life_is_a_weight():
    X, y = wave(60)
    gp = feed(fixed("vfe", half_life=20.0), X, y, (30, 20, 10))
    ages = np.repeat([30, 10, 0], [30, 20, 10])
    same_model(gp, fixed("vfe").fit(X, y, sample_weight=0.5 ** (ages / 20.0)))


def test_options_that_contradict_each_other_are_refused():
    X, y = wave(40)
    with pytest.raises(InputError, match="not both"):
        fixed("vfe", window=5, half_life=2.0).fit(X, y)
    with pytest.raises(InputError, match="use window="):
        fixed("pic", half_life=2.0).fit(X, y)
    with pytest.raises(InputError, match="whole number"):
        fixed("vfe", window=0).fit(X, y)
    with pytest.raises(InputError, match="forgets by itself"):
        fixed("vfe", window=50).fit(X, y).forget(X[:1], y[:1])
    with pytest.raises(InputError, match="fit again"):
        fixed("vfe").fit(X, y).set_params(window=10).partial_fit(X[:1], y[:1])
    with pytest.raises(InputError, match="cannot be merged"):
        fixed("vfe", window=50).fit(X, y).merge(fixed("vfe").fit(X, y))


@pytest.mark.parametrize("approximation", ["exact", "sod", "nystrom"])
def test_families_without_statistics_say_what_to_use(approximation):
    X, y = wave(40)
    for gp in (fixed(approximation), fixed(approximation).fit(X, y)):
        with pytest.raises(InputError, match="Use 'vfe'"):
            gp.partial_fit(X, y)


@pytest.mark.parametrize("approximation", ["vfe", "pitc", "pic"])
def test_bad_batches_leave_the_model_as_it_was(approximation):
    X, y = wave(40)
    gp = fixed(approximation).fit(X[:20], y[:20]).partial_fit(X[20:25], y[20:25])
    before = snapshot(gp)
    bad_X, bad_y = X[25:].copy(), y[25:].copy()
    bad_X[3, 1] = bad_y[2] = np.nan
    for rows, message in (
        ((bad_X, y[25:]), "X contains NaN: column 1, row 3"),
        ((X[25:], np.where(np.isnan(bad_y), np.inf, bad_y)), "y contains inf at row 2"),
        ((X[25:, :1], y[25:]), "1 features, but SparseGPRegressor is expecting 2"),
        ((X[25:], y[26:]), "inconsistent"),
    ):
        with pytest.raises(ValueError, match=message):
            gp.partial_fit(*rows)
    with pytest.raises(InputError, match="must not be given"):
        gp.partial_fit(X, y, noise_var=np.ones(40))
    with pytest.raises(InputError, match="blocks"):
        gp.partial_fit(X, y, blocks=np.linspace(0, 1, 40) if approximation != "vfe" else np.zeros(40, int))
    unchanged(gp, before)
    unchanged(gp.partial_fit(X[:0], y[:0]), before)
    unchanged(gp.partial_fit(X[:2], y[:2], sample_weight=[0, 0]), before)
    unchanged(gp.forget(X[:0], y[:0]), before)
    assert gp.partial_fit(X[25:], y[25:]).n_samples_seen_ == 40


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_column_names_must_stay():
    X, y = wave(40)
    frame = pd.DataFrame(X, columns=["east", "north"])
    gp = fixed("vfe").fit(frame[:20], y[:20])
    with pytest.raises(ValueError, match=r"column 'east' of the fit is not a column of the table\. .*'west'"):
        gp.partial_fit(frame[20:].rename(columns={"east": "west"}), y[20:])
    same_model(gp.partial_fit(frame[20:], y[20:]), fixed("vfe").fit(X, y))


def test_a_fresh_estimator_learns_from_its_first_batch():
    X, y = wave(250)
    gp = SparseGPRegressor(approximation="vfe", n_inducing=20, random_state=0).partial_fit(X[:200], y[:200])
    learned = SparseGPRegressor(approximation="vfe", n_inducing=20, random_state=0).fit(X[:200], y[:200])
    np.testing.assert_array_equal(gp.predict(NEW), learned.predict(NEW))
    kernel, inducing = repr(gp.kernel_), gp.inducing_
    gp.partial_fit(X[200:], y[200:])
    assert repr(gp.kernel_) == kernel
    np.testing.assert_array_equal(gp.inducing_, inducing)
    assert gp.score(*wave(100, seed=5)) > 0.9


def test_a_standardised_stream_keeps_the_units_of_its_first_fit():
    X, y = wave(60)
    gp = feed(fixed("vfe", normalize=True), X, y, (30, 1, 29))
    units = gp.scaling_
    model = fixed("vfe", kernel=units.standardized_kernel(kernels.SquaredExponential(1.3, [0.9, 1.7])),
        noise_var=0.07 / units.y_scale**2, inducing=units.inputs(gp.inducing_))  # fmt: skip
    model.fit(units.inputs(X), units.targets(y))
    np.testing.assert_allclose(gp.predict(NEW), model.predict(units.inputs(NEW)) * units.y_scale + units.y_mean)
    assert gp.log_evidence_ == pytest.approx(model.log_evidence_)


def test_a_warning_when_the_stream_has_left_the_standardisation_behind():
    X, y = wave(200)
    gp = fixed("vfe", normalize=True).fit(X[:100], y[:100])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp.partial_fit(X[100:150], y[100:150])
        gp.partial_fit(X[150:151] + 1000.0, y[150:151])  # one odd row is not a stream
    X[150:, 1] += 40.0
    gp.partial_fit(X[150:155], y[150:155])
    with pytest.warns(UserWarning, match="column 1 is now on average"):
        gp.partial_fit(X[155:180], y[155:180])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp.partial_fit(X[180:], y[180:])  # said once


def stream(n, seed=3, jump_at=None):
    X, y = wave(n, seed=seed)
    if jump_at is not None:
        y[jump_at:] += 1.0
    return X, y


def test_innovations_are_reported_and_raise_an_alarm_after_a_jump():
    gp = SparseGPRegressor(approximation="vfe", n_inducing=40, random_state=0).fit(*wave(500))
    assert gp.info_["innovations"] == {"rows": 0, "mean_square": 1.0, "z": 0.0, "drift": False}
    X, y = stream(800, jump_at=600)
    alarms = []
    for start in range(0, 800, 5):
        gp.partial_fit(X[start : start + 5], y[start : start + 5])
        innovations = gp.info_["innovations"]
        alarms.append(innovations["drift"])
    assert not any(alarms[:120])
    assert any(alarms[120:126])
    assert innovations["rows"] == 800


def test_clone_pickle_and_copy_keep_a_stream_going():
    X, y = wave(60)
    for approximation in ("vfe", "pic"):
        gp = fixed(approximation).fit(X[:20], y[:20])
        for row in range(20, 30):
            gp.partial_fit(X[row : row + 1], y[row : row + 1])
        before = snapshot(gp)
        twins = pickle.loads(pickle.dumps(gp)), copy.deepcopy(gp)
        gp.partial_fit(X[30:], y[30:])
        for twin in twins:
            unchanged(twin, before)
            same_model(twin.partial_fit(X[30:], y[30:]), gp)
        assert not hasattr(clone(gp), "log_evidence_")


def test_predicting_between_updates_sees_each_of_them():
    X, y = wave(40)
    gp = fixed("vfe").fit(X[:30], y[:30])
    for row in range(30, 40):
        gp.partial_fit(X[row : row + 1], y[row : row + 1])
        same_model(gp, fixed("vfe").fit(X[: row + 1], y[: row + 1]))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_file_is_streamed_with_constant_memory(tmp_path):
    X, y = wave(3000)
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y}), tmp_path / "rows.parquet")
    gp, sizes = fixed("vfe"), []
    for batch in pq.ParquetFile(tmp_path / "rows.parquet").iter_batches(batch_size=500):
        gp.partial_fit(batch, target="y")
        sizes.append(len(pickle.dumps(gp)))
    same_model(gp, fixed("vfe").fit(pd.DataFrame(X, columns=["a", "b"]), y), rtol=1e-7)
    assert max(sizes[1:]) < 1.02 * min(sizes[1:])


def test_a_generator_is_streamed():
    X, y = wave(400)
    source = ((X[i : i + 64], y[i : i + 64]) for i in range(0, 400, 64))
    gp = fixed("fitc")
    for batch in source:
        gp.partial_fit(*batch)
    same_model(gp, fixed("fitc").fit(X, y))
