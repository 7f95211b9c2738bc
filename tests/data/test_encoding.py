"""Columns of any kind as numbers: what is found, what is written, and what does not depend on the order of anything."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sparsegp.data import Asked, Encoding, open_source, read_encoded, whole_batch
from sparsegp.data.codes import Category, Date, Dropped, Embedding, Number
from sparsegp.data.encoded import surveyed
from sparsegp.data.level_effects import EffectSums
from sparsegp.errors import InputError


def encoding_of(frame, asked=None, batch_rows=None, **columns):
    """Of a table of inputs; the target is their row number."""
    table = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame, preserve_index=False)
    y = np.arange(table.num_rows, dtype=np.float64)
    found = surveyed(open_source(table, y, batch_rows=batch_rows), asked or Asked.of("auto", columns or None))
    return found.encoding


def one(values, **asked):
    """The code of a single column."""
    table = pa.table({"c": values if isinstance(values, pa.Array) else pa.array(values)})
    (code,) = encoding_of(pa.table({"c": table["c"], "x": pa.array(np.arange(len(table)) % 7 + 0.5)}), **asked).codes[
        :1
    ]
    return code


MIXED = pd.DataFrame(
    {
        "size": [1.0, 2.0, np.nan, 4.0] * 10,
        "shop": ["a", "b", "c", None] * 10,
        "open": [True, False, True, True] * 10,
        "when": pd.date_range("2024-01-01", periods=40, freq="7h"),
        "grade": pd.Categorical(["low", "mid", "high", "mid"] * 10, ["low", "mid", "high"], ordered=True),
        "id": [f"row {k}" for k in range(40)],
        "same": "x",
        "none": [None] * 40,
    }
)


def test_kinds_are_found_from_types_and_values():
    found = encoding_of(MIXED)
    kinds = [type(code) for code in found.codes]
    assert kinds == [Number, Category, Number, Date, Embedding, Dropped, Dropped, Dropped]
    assert found.words == {
        "size": "number, sometimes missing",
        "shop": "category of 3 levels, sometimes missing",
        "open": "boolean",
        "when": "date with its day, week",
        "grade": "ordered category of 3 levels",
        "id": "identifier, left out",
        "same": "constant, left out",
        "none": "empty, left out",
    }
    assert found.needed == ("size", "shop", "open", "when", "grade")
    assert len(found.labels) == found.n_features == len(found.origins)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "dictionary"])
def test_every_library_gives_the_same_numbers(library):
    frame = MIXED[["size", "shop", "open", "when"]]
    expected = encoding_of(frame).encode(pa.Table.from_pandas(frame))
    table = pa.Table.from_pandas(frame, preserve_index=False)
    given = {
        "pandas": table,
        "polars": pl.from_pandas(frame).to_arrow(),
        "pyarrow": table,
        "dictionary": table.set_column(1, "shop", table["shop"].dictionary_encode()),
    }[library]
    found = encoding_of(given)
    np.testing.assert_array_equal(found.encode(given), expected)
    np.testing.assert_array_equal(encoding_of(frame).encode(given), expected)


def test_a_missing_number_is_the_mean_with_an_indicator():
    code = Number("c", 2.5, was_missing=True)
    out = np.zeros((3, 2))
    code.write(pa.array([1.0, None, float("nan")]), out)
    np.testing.assert_array_equal(out, [[1.0, 0.0], [2.5, 1.0], [2.5, 1.0]])
    assert encoding_of(pd.DataFrame({"c": [1.0, np.nan, 4.0]})).codes[0] == code


def test_levels_are_indicators_equally_far_from_each_other_and_from_new_ones():
    code = Category("c", ("a", "b"), was_missing=True)
    out = np.zeros((4, 4))
    code.write(pa.array(["b", "a", None, "z"]), out)
    np.testing.assert_array_equal(out, np.eye(4)[[1, 0, 2, 3]])
    found = Encoding((code,))
    assert found.unmet(out) == {"c": 1}
    never_missing = Category("c", ("a", "b"))
    out = np.zeros((2, 3))
    never_missing.write(pa.array([None, "a"]), out)
    np.testing.assert_array_equal(out, [[0, 0, 1], [1, 0, 0]])


def test_rare_levels_are_pooled_and_known():
    levels = [f"city {k}" for k in range(20)]
    values = [name for name in levels[:10] for _ in range(10)] + levels[10:]
    code = one(values)
    assert isinstance(code, Category)
    assert code.levels == tuple(sorted(levels[:10]))
    assert code.rare == tuple(levels[10:])
    out = np.zeros((3, 12))
    code.write(pa.array(["city 1", "city 15", "city 99"]), out)
    np.testing.assert_array_equal(out.argmax(axis=1), [1, 10, 11])


def test_many_levels_are_points_by_what_their_rows_say_of_the_target():
    rng = np.random.default_rng(0)
    effect = rng.normal(size=150)
    level, x = rng.integers(0, 150, 15_000), rng.normal(size=15_000)
    y = 3.0 * x + effect[level] + 0.5 * rng.normal(size=15_000)
    frame = pd.DataFrame({"c": [f"l{k:03d}" for k in level], "x": x})
    code = surveyed(open_source(frame, y), Asked()).encoding.codes[0]
    assert isinstance(code, Embedding)
    assert np.corrcoef(code.points, effect)[0, 1] > 0.99
    assert np.std(code.points) < np.std(effect)


@pytest.mark.parametrize(("n_levels", "rows", "kind"), [(20, 600, Category), (60, 20, Category), (60, 600, Embedding)])
def test_levels_are_points_where_rows_tell_where_they_are(n_levels, rows, kind):
    assert isinstance(one([f"l{k % n_levels}" for k in range(n_levels * rows)]), kind)


def test_effects_that_chance_explains_are_zero():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"c": [f"l{k}" for k in np.arange(3000) % 150], "x": rng.normal(size=3000)})
    code = surveyed(open_source(frame, rng.normal(size=3000)), Asked()).encoding.codes[0]
    assert isinstance(code, Embedding)
    assert np.std(code.points) < 0.1  # means of twenty rows vary by 0.22


def test_an_effect_is_shrunk_as_the_mean_of_a_random_effects_model():
    """Closed form: n_l tau^2/(n_l tau^2 + sigma^2) of the mean, with the moments of a balanced table."""
    rng = np.random.default_rng(2)
    n_levels, n = 40, 25
    place = np.repeat(np.arange(n_levels), n)
    y = rng.normal(size=n_levels)[place] + rng.normal(size=n_levels * n)
    code = Embedding("c", tuple(f"l{k:02d}" for k in range(n_levels)), (0.0,) * n_levels)
    column = pa.array([f"l{k:02d}" for k in place])
    (found,) = EffectSums.of([code], lambda _: column, np.zeros((len(y), 0)), y, None).effects([code])
    mean = y.reshape(n_levels, n).mean(axis=1) - y.mean()
    noise = y.var()
    between = (n * (mean**2).sum() - (n_levels - 1) * noise) / (n * n_levels - n)
    np.testing.assert_allclose(found.points, mean * between / (between + noise / n), rtol=1e-5)


def test_weights_count_rows():
    frame = pd.DataFrame({"c": [f"l{k % 150}" for k in range(3600)], "x": np.arange(3600.0)})
    y = np.random.default_rng(3).normal(size=3600) + np.arange(3600) % 150
    twice = pd.concat([frame, frame], ignore_index=True)
    weighted = surveyed(open_source(frame, y, sample_weight=np.full(3600, 2.0)), Asked()).encoding
    repeated = surveyed(open_source(twice, np.tile(y, 2)), Asked()).encoding
    np.testing.assert_allclose(weighted.codes[0].points, repeated.codes[0].points, rtol=1e-9)


def test_neither_order_of_rows_nor_of_columns_nor_cuts_matter():
    rng = np.random.default_rng(4)
    frame = MIXED.drop(columns=["id", "same", "none"])
    frame["city"] = [f"city {k}" for k in rng.integers(0, 3, 40)]
    y = rng.normal(size=40)
    whole = surveyed(open_source(frame, y), Asked()).encoding
    order = rng.permutation(40)
    shuffled = surveyed(open_source(frame.iloc[order][frame.columns[::-1]], y[order], batch_rows=7), Asked()).encoding
    by_name = {code.name: code for code in shuffled.codes}
    table = pa.Table.from_pandas(frame, preserve_index=False)
    again = Encoding(tuple(by_name[name] for name in whole.names))
    np.testing.assert_allclose(again.encode(table), whole.encode(table), rtol=1e-13)
    np.testing.assert_array_equal(whole.encode(table.select(list(table.schema.names[::-1]))), whole.encode(table))


@pytest.mark.parametrize(
    ("days", "clock", "cycles"),
    [
        (0.5, True, ()),
        (3, True, ("day",)),
        (30, True, ("day", "week")),
        (30, False, ("week",)),
        (800, False, ("week", "year")),
    ],
)
def test_cycles_that_the_dates_span(days, clock, cycles):
    steps = np.linspace(0, days, 50) if clock else np.arange(0, days, max(1, days // 40))
    values = [dt.datetime(2024, 1, 1) + dt.timedelta(days=float(step)) for step in steps]
    code = one(values)
    assert isinstance(code, Date)
    assert code.cycles == cycles


def test_a_date_is_its_days_and_points_on_circles():
    code = Date("c", 19_723.0, ("day", "week"))
    out = np.zeros((3, 8))
    code.write(pa.array([dt.datetime(2024, 1, 1, 6), dt.datetime(2024, 1, 8, 6), None]), out)
    np.testing.assert_allclose(out[:, 0], [19_723.25, 19_730.25, 19_723.0])
    np.testing.assert_array_equal(out[:, [1, 4, 7]], [[0] * 3, [0] * 3, [1] * 3])
    np.testing.assert_allclose(out[0, 2:4], [1.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(out[0, 2:], out[1, 2:], atol=1e-9)
    np.testing.assert_array_equal(out[2, [2, 3, 5, 6]], 0.0)
    gaps = Date("c", 19_723.0, ("day",), was_missing=True)
    out = np.zeros((2, 4))
    gaps.write(pa.array([dt.datetime(2024, 1, 1, 6), None]), out)
    np.testing.assert_allclose(out, [[19_723.25, 1.0, 0.0, 0.0], [19_723.0, 0.0, 0.0, 1.0]], atol=1e-9)


def test_days_begin_in_the_zone_of_the_column():
    summer = pa.array([dt.datetime(2024, 7, 1, 22, 0)], pa.timestamp("us", "UTC"))
    code = Date("c", 0.0, ("day",), "Europe/Berlin")
    out, same = np.zeros((1, 5)), np.zeros((1, 5))
    code.write(summer, out)
    np.testing.assert_allclose(out[0, 2:4], [0.0, 1.0], atol=1e-9)  # midnight in Berlin
    code.write(pa.array([dt.datetime(2024, 7, 2, 0, 0)]), same)  # without a zone: a clock of Berlin
    np.testing.assert_allclose(same, out, atol=1e-9)


def test_times_of_day_and_durations():
    code = one(pa.array([dt.time(h % 24) for h in range(30)]))
    assert code == Date("c", None, ("day",))
    out = np.zeros((1, 3))
    code.write(pa.array([dt.time(18)]), out)
    np.testing.assert_allclose(out, [[-1.0, 0.0, 0.0]], atol=1e-9)
    code = one(pa.array([dt.timedelta(seconds=k) for k in range(30)]))
    assert isinstance(code, Number)
    assert code.mean == pytest.approx(14.5)


def test_text_that_is_something_else():
    assert one([f"{k}.5" for k in range(30)]).kind == "number"
    assert one([f"{k},000" for k in range(1, 31)]).mean == pytest.approx(15_500.0)
    assert one([f"2024-01-{k:02d}" for k in range(1, 31)]).kind == "date"
    assert one([f"2024-01-{k:02d}T10:00:00Z" for k in range(1, 31)]).zone == "UTC"
    assert one(["00123", "00456", "00789"] * 10).kind == "category"  # a code, not a number
    assert one(["True", "false"] * 10).kind == "category"
    assert one(["1.5", "NA", "2.5"] * 10) == Number("c", 2.0, was_missing=True)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([f"{k / 7:.3f}" for k in range(399)] + ["oops"], "numbers, but for 1 of 400 rows, such as 'oops'"),
        ([f"{1 + k % 28}.01.2024" for k in range(400)], "dates, but not all .* such as '1.01.2024'"),
        (["2024-01-05", "2024-02-07"] * 199 + ["999999-01-01"], "dates, but not all .* such as '999999-01-01'"),
        (["2024-01-05", "2024-02-07"] * 199 + ["0000-00-00"], "dates, but not all .* such as '0000-00-00'"),
        (["2024-01-05", "2024-02-07"] * 199 + ["unknown"], "dates, but not all .* such as 'unknown'"),
    ],
)
def test_text_that_is_nearly_something_else_is_pointed_out(values, said):
    with pytest.warns(UserWarning, match=f"'c' is taken for text .* look like {said}"):
        one(values)


@pytest.mark.parametrize(
    "values",
    [
        [f"0{k % 90}" for k in range(400)],
        ["12" if k % 9 else "abc" for k in range(400)],
        [f"A{k % 50}" for k in range(400)],
        [f"{k % 50}%" for k in range(400)],
        ["2024-01-05", "2024-02-07", None] * 100,
    ],
)
@pytest.mark.filterwarnings("error")
def test_codes_labels_and_dates_are_not_suspicious(values):
    one(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["2024-01-05", "31.12.2024"], "it has the value '31.12.2024'"),
        (["2024-01-05", "2024-02-30"], "it has the value '2024-02-30'"),
        (["2024-01-05", "2024-02-07T12:00:00Z"], "its values differ in form"),
    ],
)
def test_text_that_is_said_to_be_dates_and_is_not(values, said):
    with pytest.raises(InputError, match=f"'c' cannot be read as dates: {said}.*all with a zone or none"):
        one(values * 40, c="date")


@pytest.mark.filterwarnings("error")
def test_what_was_asked_for_is_not_suspicious():
    one([f"{1 + k % 28}.01.2024" for k in range(400)], c="category")


def test_booleans_meet_booleans_as_text():
    code = Category("c", ("FALSE", "TRUE"))
    out = np.zeros((2, 3))
    code.write(pa.array([True, False]), out)
    np.testing.assert_array_equal(out, [[0, 1, 0], [1, 0, 0]])


def test_whole_numbers_are_the_same_level_whatever_their_type():
    code = one(pa.array([1, 2, 3] * 10), c="category")
    assert code.levels == ("1", "2", "3")
    for values in (pa.array([2.0]), pa.array([2], pa.int8()), pa.array(["2"]), pa.array(["2 "])):
        out = np.zeros((1, 4))
        code.write(values, out)
        assert out[0, 1] == 1.0


def test_what_the_user_says_comes_first():
    values = ["b", "a", "c"] * 10
    assert one(values, c=["a", "b", "c"]).points == (0.0, 1.0, 2.0)
    assert one(values, c="ignore") == Dropped("c", "ignored")
    assert one(pa.array([1, 2] * 10), c=[2, 1]).levels == ("2", "1")
    with pytest.raises(InputError, match=r"levels that its order does not list: 'c'"):
        one(values, c=["a", "b"])
    with pytest.raises(InputError, match="is taken for numbers, but has the value 'b'"):
        one(values, c="number").write(pa.array(values), np.zeros((30, 2)))
    with pytest.raises(InputError, match="cannot be read as dates"):
        one(values, c="date")
    with pytest.raises(InputError, match="names 'z', which is no column"):
        one(values, z="ignore")
    with pytest.raises(InputError, match="must be one of 'number'"):
        Asked.of("auto", {"c": "nonsense"})
    with pytest.raises(InputError, match="'auto' or a list"):
        Asked.of("carrier", None)


def test_a_column_that_is_text_here_and_numbers_there():
    numbers, words = pd.DataFrame({"c": [1.0, 2.0]}), pd.DataFrame({"c": ["old", "new"]})
    batches = [frame.assign(y=[0.0, 1.0]) for frame in (numbers, words)]
    with pytest.raises(InputError, match="'c' is text in one part of the data and numbers in another"):
        surveyed(open_source(lambda: iter(batches), target="y"), Asked.of("auto", {"c": "number"}))
    written = [numbers.assign(y=0.0), pd.DataFrame({"c": ["3", "1,000"], "y": 0.0})]
    found = surveyed(open_source(lambda: iter(written), target="y"), Asked.of("auto", {"c": "number"}))
    np.testing.assert_array_equal(whole_batch(found).X[:, 0], [1.0, 2.0, 3.0, 1000.0])


def test_a_category_with_very_many_levels():
    values = pa.array([f"user {k % 60_000}" for k in range(120_000)])
    assert one(values) == Dropped("c", "identifier")
    often = pa.array([f"user {k % 5_000}" for k in range(120_000)])
    assert len(one(often).levels) == 5_000


def test_dates_out_of_range():
    far = pa.array([10**15, 0], pa.timestamp("s"))
    with pytest.raises(InputError, match=r"'c' cannot be read as dates.*out of"):
        one(far)


def test_lists_are_no_columns():
    with pytest.raises(InputError, match=r"'c' of the table has type list.*Take it apart"):
        one(pa.array([[1, 2], [3]]))


def test_columns_of_numbers_without_gaps_have_no_encoding():
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6.0)
    source, batch = read_encoded(open_source(pd.DataFrame(X, columns=["a", "b"]), y), Asked(), whole_batch)
    assert source.encoding is None
    np.testing.assert_array_equal(batch.X, X)
    X[3, 1] = np.nan
    source, batch = read_encoded(open_source(X, y), Asked(), whole_batch)
    assert source.encoding is not None
    assert source.feature_names is None
    np.testing.assert_array_equal(batch.X[:, -1], [0, 0, 0, 1, 0, 0])


def test_rows_without_a_target_are_left_out_and_counted():
    X, y = np.arange(12.0).reshape(6, 2), np.array([0.0, np.nan, 2.0, 3.0, np.nan, 5.0])
    with pytest.warns(UserWarning, match="missing in 2 of 6 rows"):
        assert len(whole_batch(open_source(X, y))) == 4
    with pytest.raises(InputError, match="missing in all 6 rows"):
        whole_batch(open_source(X, np.full(6, np.nan)))
