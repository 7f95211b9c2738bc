"""Files as people have them: every format gives the same rows, and what is no table is called by its name."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather, ipc

from source_problems import NAMES, ROLES, columns, frame, matrix
from sparsegp.data import Dialect, Files, open_source, text_files
from sparsegp.errors import InputError

FIXTURES = Path(__file__).parent.parent / "fixtures"


def rows_of(path: Any, target: str = "y", **options: Any) -> tuple[np.ndarray, np.ndarray]:
    batches = list(open_source(path, target=target, **options))
    return np.concatenate([batch.X for batch in batches]), np.concatenate([batch.y for batch in batches])


def written(path: Path, **dialect: Any) -> Files:
    return Files((path,), Dialect(**dialect))


def packed(path: Path, text: str, compression: str) -> None:
    with pa.output_stream(str(path), compression=compression) as out:
        out.write(text.encode())


def write_csv_gz(path: Path) -> None:
    path.write_bytes(gzip.compress(frame().to_csv(index=False).encode()))


def write_stream(path: Path) -> None:
    table = pa.Table.from_pandas(frame())
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)


WRITERS = {
    "rows.parquet": lambda path: frame().to_parquet(path),
    "rows.feather": lambda path: feather.write_feather(frame(), path, chunksize=50),
    "rows.arrow": lambda path: feather.write_feather(frame(), path, compression="uncompressed", chunksize=33),
    "rows.arrows": write_stream,
    "rows.jsonl": lambda path: frame().to_json(path, orient="records", lines=True, double_precision=15),
    "rows.csv": lambda path: frame().to_csv(path, index=False),
    "rows.tsv": lambda path: frame().to_csv(path, index=False, sep="\t"),
    "rows.txt": lambda path: frame().to_csv(path, index=False, sep="|"),
    "comma.csv": lambda path: frame().to_csv(path, index=False, sep=";", decimal=","),
    "rows.csv.gz": write_csv_gz,
    "named.wrongly": write_csv_gz,
    "rows.csv.bz2": lambda path: path.write_bytes(bz2.compress(frame().to_csv(index=False).encode())),
    "rows.csv.zst": lambda path: packed(path, frame().to_csv(index=False), "zstd"),
    "rows.csv.lz4": lambda path: packed(path, frame().to_csv(index=False), "lz4"),
    "quoted.csv": lambda path: frame().to_csv(path, index=False, quoting=1),
    "utf16.csv": lambda path: frame().to_csv(path, index=False, encoding="utf-16"),
    "marked.csv": lambda path: frame().to_csv(path, index=False, encoding="utf-8-sig"),
    "windows.csv": lambda path: path.write_bytes(frame().to_csv(index=False, lineterminator="\r\n").encode()),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    source, table = open_source(tmp_path / name, **ROLES, batch_rows=29), columns()
    for _ in range(2):
        batches = list(source)
        assert max(map(len, batches)) <= 29
        np.testing.assert_allclose(np.concatenate([batch.X for batch in batches]), matrix(table), rtol=1e-12)
        np.testing.assert_allclose(np.concatenate([batch.weight for batch in batches]), table["weight"])
    assert source.feature_names == tuple(NAMES)
    assert source.n_rows in (None, len(table["y"]))


def test_a_file_that_is_something_else_is_called_by_its_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "book.csv", "w") as book:
        book.writestr("[Content_Types].xml", "")
        book.writestr("xl/workbook.xml", "")
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        archive.writestr("rows.csv", "a,y\n1,2\n")
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "page.csv").write_text("\n<!DOCTYPE html><html><body>Sign in</body></html>")
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    (tmp_path / "array.json").write_text('[{"a": 1, "y": 2}]')
    (tmp_path / "unknown.bin").write_bytes(bytes(range(256)))
    pd.DataFrame({"a": [1]}).to_pickle(tmp_path / "rows.pkl")
    (tmp_path / "rows.parquet.gz").write_bytes(gzip.compress(b"PAR1" + bytes(20)))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,y\n" + b"1,2\n" * 1000)[:30])
    expected = {
        "book.csv": "an Excel workbook.*Save the sheet as CSV",
        "rows.zip": "a zip archive.*Unpack",
        "array.npy": "a numpy array",
        "page.csv": "a web page",
        "picture.csv": "a PNG picture",
        "array.json": "one JSON array.*JSON lines",
        "unknown.bin": "no text and no table format",
        "rows.pkl": "a Python pickle",
        "rows.parquet.gz": "a Parquet within gzip compression. Unpack it first",
        "cut.csv.gz": "cannot be read",
    }
    for name, message in expected.items():
        with pytest.raises(InputError, match=rf"{name}' .*{message}|{name}' is {message}"):
            list(open_source(tmp_path / name, target="y"))
    with pytest.raises(InputError, match=r"is a model file.*sparsegp predict MODEL DATA"):
        open_source(FIXTURES / "model_v2_vfe.sgp", target="y")


def test_a_line_of_names_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("1.5,2,3\n2.5,4,5\n")
    with pytest.raises(
        InputError, match=r"only numbers \(1.5, 2, 3\): is the line with the names .* missing\?.*no-header"
    ):
        open_source(path, target="y")
    X, y = rows_of(written(path, header=False), "column3")
    np.testing.assert_array_equal(X, [[1.5, 2.0], [2.5, 4.0]])
    np.testing.assert_array_equal(y, [3.0, 5.0])
    path.write_text("2012,2013\n1,2\n")  # years as names are names where the target is one of them
    assert [values.tolist() for values in rows_of(path, "2013")] == [[[1.0]], [2.0]]


def test_an_index_without_a_name_is_left_out_and_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    frame().to_csv(path)
    with pytest.warns(UserWarning, match=r"Column '' of file .*rows.csv' has no name .* row number"):
        assert open_source(path, target="y", noise_var="noise", sample_weight="weight").feature_names == tuple(NAMES)
    pd.read_csv(path).to_csv(path, index=False)
    with pytest.warns(UserWarning, match="'Unnamed: 0'"):
        assert "Unnamed: 0" not in open_source(path, target="y").feature_names
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_source(path, target="y", features=["Unnamed: 0", "age"]).n_features == 2


def test_what_the_file_does_not_tell_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a b y\n1,5 2 3\n")
    X, _ = rows_of(written(path, sep=" ", decimal=","))
    np.testing.assert_array_equal(X, [[1.5, 2.0]])
    path.write_bytes("größe,y\n1,2\n".encode("cp1252"))
    with pytest.warns(UserWarning, match="not UTF-8 text and was read as cp1252"):
        assert open_source(path, target="y").feature_names == ("größe",)
    path.write_bytes("größe,y\n1,2\n".encode("mac-roman"))
    assert open_source(written(path, encoding="mac-roman"), target="y").feature_names == ("größe",)
    with pytest.raises(InputError, match="--encoding 'klingon' is not known"):
        open_source(written(path, encoding="klingon"), target="y")
    path.write_bytes("größe,y\n1,2\n".encode("cp1252"))
    with pytest.raises(InputError, match="is not utf-8 text"):
        open_source(written(path, encoding="utf-8"), target="y")
    for wrong, message in (
        ({"sep": ";;"}, "one character"),
        ({"decimal": "x"}, "must be"),
        ({"sep": ",", "decimal": ","}, "both"),
    ):
        with pytest.raises(InputError, match=message):
            Dialect(**wrong)


def decoded_in(seen: set[int]) -> str:
    """The name of an encoding, that of Latin 1, which notes the threads that decode it."""

    class Decoder(codecs.getincrementaldecoder("latin-1")):  # type: ignore[misc]
        def decode(self, given: bytes, final: bool = False) -> str:
            seen.add(threading.get_ident())
            return str(super().decode(given, final))

    def decode(given: bytes, errors: str = "strict") -> tuple[str, int]:
        seen.add(threading.get_ident())
        return codecs.latin_1_decode(given, errors)

    name, encoder = f"noted-{id(seen)}", codecs.lookup("latin-1")
    info = codecs.CodecInfo(encoder.encode, decode, incrementaldecoder=Decoder, name=name)
    codecs.register(lambda asked: info if asked == name.replace("-", "_") else None)
    return name


def test_only_the_thread_that_reads_decodes(tmp_path: Path) -> None:
    """A thread of Arrow that calls Python while the interpreter ends hangs it, or aborts."""
    path, seen = tmp_path / "rows.csv", set[int]()
    path.write_bytes("größe,y\n".encode("latin-1") + b"1.5,2\n" * 500_000)
    X, _ = rows_of(written(path, encoding=decoded_in(seen)))
    assert len(X) == 500_000
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("block_bytes", [256, 1000])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "utf-8-sig"])
def test_text_that_is_decoded_in_blocks_has_the_rows_of_utf_8(
    encoding: str, header: bool, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f'{k},"größe ""{k % 3}"",\nzwei Zeilen",{k / 4}' for k in range(40)]
    text = "\r\n".join(["a,größe,y"] * header + lines)
    names: Any = dict(zip(("target", "features"), ("y", ["a"]) if header else ("column3", ["column1"]), strict=True))
    plain, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    plain.write_bytes(text.encode())
    other.write_bytes(text.encode(encoding))
    expected = rows_of(written(plain, header=header), **names)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", block_bytes)
    found = rows_of(written(other, encoding=encoding, header=header), **names)
    for got, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, reference)
    assert len(expected[1]) == 40


def test_what_cannot_be_decoded_further_down_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 64)
    path.write_bytes("a,y\n".encode("utf-16") + "1,2\n".encode("utf-16-le") * 100_000 + b"1")
    with pytest.raises(InputError, match="is not utf-16 text"):
        rows_of(path)
    monkeypatch.setattr(text_files, "_LONGEST_ROW_BYTES", 100)
    path.write_bytes("a,y\n1,2\n".encode("utf-16") + "1".encode("utf-16-le") * 1000)
    with pytest.raises(InputError, match="a row has more than 100 bytes"):
        rows_of(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a,y\n"1,234",1\n"12",2\n"1,234,567.5",3\n', [1234.0, 12.0, 1234567.5]),
        ("a;y\n1.234,5;1\n12;2\n", [1234.5, 12.0]),
        ("a;y\n1'234;1\n-12;2\n", [1234.0, -12.0]),
        ("a;y\n1 234;1\n;2\n", [1234.0, np.nan]),
    ],
)
def test_grouped_numbers_are_numbers(text: str, expected: list[float], tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(text)
    X, _ = rows_of(tmp_path / "rows.csv")
    np.testing.assert_array_equal(X[:, 0], expected)


def test_fields_with_separators_and_line_breaks_within_quotes(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('a,"the, name",y\n1,"2",3\n4,5,6\n')
    assert open_source(tmp_path / "rows.csv", target="y").feature_names == ("a", "the, name")
    (tmp_path / "notes.csv").write_text('a,note,y\n1,"two\nlines",3\n4,"one, ""quoted""",6\n')
    X, y = rows_of(tmp_path / "notes.csv", features=["a"])
    np.testing.assert_array_equal(X[:, 0], [1.0, 4.0])
    np.testing.assert_array_equal(y, [3.0, 6.0])


def test_several_files_and_globs(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"part{k}.csv").write_text(f"a,y\n{k},1\n")
    (tmp_path / "part3.csv").write_text("y,a\n1,3\n")  # another order of the columns
    np.testing.assert_array_equal(rows_of(str(tmp_path / "part*.csv"))[0][:, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(rows_of([tmp_path / "part2.csv", tmp_path / "part0.csv"])[0][:, 0], [2, 0])
    with pytest.raises(InputError, match=r"no file or folder '.*nothing\*.csv'"):
        open_source(tmp_path / "nothing*.csv", target="y")


def test_json_lines_with_missing_keys_and_later_decimals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegp.data.formats._JSON_BLOCK_BYTES", 50)
    lines = [{"a": k, "y": 2} for k in range(20)] + [{"y": 1.5, "extra": "x"}, {"a": 0.25, "y": 1}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    X, y = rows_of(tmp_path / "rows.jsonl")
    np.testing.assert_array_equal(X[:, 0], [*range(20), np.nan, 0.25])
    assert y[-2:].tolist() == [1.5, 1.0]
    (tmp_path / "rows.jsonl").write_text('{"a": 1, "y": 2}\n{"a": 1, "y"\n')
    with pytest.raises(InputError, match=r"rows.jsonl' cannot be read as JSON lines"):
        rows_of(tmp_path / "rows.jsonl")


def test_columns_that_are_there_and_not_used_are_known(tmp_path: Path) -> None:
    frame(station="north").to_parquet(tmp_path / "rows.parquet")
    source = open_source(tmp_path / "rows.parquet", target="y", features=["age"])
    assert source.unused == ("depth", "flag", "noise", "weight", "station")  # type: ignore[attr-defined]


def test_pieces_of_files_are_the_rows_in_their_order(tmp_path: Path) -> None:
    for k, part in enumerate((frame().iloc[:100], frame().iloc[100:])):
        pq.write_table(pa.Table.from_pandas(part), tmp_path / f"{k}.parquet", row_group_size=30)
    pieces = open_source(tmp_path, target="y").cut()  # type: ignore[attr-defined]
    assert [piece.n_rows for piece in pieces] == [30, 30, 30, 10, 30, 27]
    np.testing.assert_array_equal(np.concatenate([batch.y for piece in pieces for batch in piece]), columns()["y"])
    assert next(iter(pieces[2])).place.row(1).endswith("row group 2 (row 1 of the group, row 61 of the file)")


@pytest.mark.parametrize(
    ("name", "n_rows", "most_bytes"),
    [("rows.csv", 1_400_000, 40e6), ("rows.jsonl", 500_000, 16e6), ("rows.arrow", 500_000, 16e6),
     ("rows.parquet", 500_000, 16e6)],
)  # fmt: skip
def test_a_pass_over_a_file_holds_a_few_batches(name: str, n_rows: int, most_bytes: float, tmp_path: Path) -> None:
    """Numbers and text; what arrow holds is looked at after every batch. It reads 32 MB of a CSV file ahead."""
    table = pa.table({"a": np.arange(n_rows) / 7.0, "b": np.arange(n_rows) / 3.0, "note": ["a few words"] * n_rows})
    path = tmp_path / name
    if name.endswith("csv"):
        csv.write_csv(table, path)
    elif name.endswith("jsonl"):
        line = b'{"a": 1.2345678901234, "b": 2.3456789012345, "note": "a few words"}\n'
        path.write_bytes(line * n_rows)
    elif name.endswith("arrow"):
        feather.write_feather(table, path, compression="lz4", chunksize=20_000)
    else:
        pq.write_table(table, path, row_group_size=100_000)
    del table
    before, held, seen = pa.total_allocated_bytes(), [], 0
    for batch in open_source(path, target="b", features=["a"]):
        held.append(pa.total_allocated_bytes() - before)
        seen += len(batch)
    assert seen == n_rows
    assert max(held) < most_bytes
