"""Rows of tables as the commands want them, and which columns of a table a model wants."""

import atexit
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegp.cli.output import note
from sparsegp.errors import InputError

if TYPE_CHECKING:
    from sparsegp.data import Batch, Encoding, Files
    from sparsegp.data.files import FileSource

STDIN = Path("-")
_MOST_NAMES = 8


def names_in(text: str | None) -> list[str] | None:
    """Names given with commas between them."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def files(
    data: Sequence[Path],
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    no_header: bool = False,
) -> "Files":
    """The files of a command, and how CSV among them is written. Standard input is spooled to a temporary file."""
    from sparsegp.data import Dialect, Files

    if STDIN in data and len(data) > 1:
        raise InputError("- stands for the table on standard input and cannot be given together with files.")
    named = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";"}
    dialect = Dialect(None if sep is None else named.get(sep, sep), decimal, encoding, not no_header)
    return Files((_spooled_stdin(),) if STDIN in data else tuple(data), dialect)


def require_other(output: Path | None, inputs: Sequence[Path]) -> None:
    """The output takes the place of none of the files that are read."""
    from sparsegp.data.files import files_in

    if output is None or not output.exists():
        return
    for path in inputs:
        if path != STDIN and any(output.samefile(file) for file in files_in(path)):
            raise InputError(f"--output {output} is a file that is read: it would be lost. Give another name.")


def _spooled_stdin() -> Path:
    """Learning reads its rows more than once, and a format is known by the first bytes: a file, until the end."""
    if sys.stdin.isatty():
        raise InputError("- reads the table from standard input, and nothing is piped into it. Give a file.")
    folder = tempfile.mkdtemp(prefix="sparsegp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "standard-input"
    with path.open("wb") as out:
        shutil.copyfileobj(sys.stdin.buffer, out)
    return path


def open_table(
    data: "Files",
    target: str | None,
    features: Sequence[str] | None = None,
    *,
    weight: str | None = None,
    noise_var: str | None = None,
    batch_rows: int | None = None,
) -> "FileSource":
    """The columns of files; `features` None: all columns that are nothing else. No target: inputs only."""
    from sparsegp.data.columns import Roles

    roles = Roles(target, None if features is None else tuple(features), noise_var, weight)
    return data.open(roles, batch_rows)


def encoding_of(model: Any) -> "Encoding | None":
    """How the columns of a model become numbers; None where they are numbers."""
    fitted = getattr(model, "fitted_", None)
    found: Encoding | None = getattr(model, "encoding", None) if fitted is None else fitted.columns.encoding
    return found


def takes_missing(model: Any) -> bool:
    """Whether rows with missing inputs have forecasts."""
    fitted = getattr(model, "fitted_", None)
    columns = None if fitted is None else fitted.columns
    found = model.takes_missing if columns is None else bool(columns.encoding or columns.completion)
    return bool(found)


def open_for(model: Any, data: "Files", target: str | None, **options: Any) -> "FileSource":
    """The columns of a table that the model was fitted with, by name; without names, all that are nothing else."""
    from sparsegp.data.codes import Category, Embedding

    names, encoding = getattr(model, "feature_names_in_", None), encoding_of(model)
    if encoding is not None and names is not None:
        names = encoding.needed
        text = [code.name for code in encoding.codes if isinstance(code, Category | Embedding)]
        data = replace(data, text=data.text | {*text})
    source = open_table(data, target, None if names is None else list(map(str, names)), **options)
    if encoding is None and source.n_features != model.n_features_in_:
        raise InputError(
            f"The model was fitted with {model.n_features_in_} columns without names; {data} has {source.n_features}: "
            f"{', '.join(source.feature_names or ())}. Give a table with the same columns."
        )
    return source


def say_unused(model: Any, source: "FileSource", *others: str | None) -> None:
    """Columns of the table that the model does not know are ignored, with a word."""
    names = getattr(model, "feature_names_in_", None)
    known = {*(() if names is None else map(str, names)), model.target_name_in_, *others}
    unused = [name for name in source.unused if name not in known]
    if unused:
        more = f" and {len(unused) - _MOST_NAMES} more" if len(unused) > _MOST_NAMES else ""
        note(f"Columns that the model does not use: {', '.join(unused[:_MOST_NAMES])}{more}.")


@dataclass(frozen=True)
class Labelled:
    """Inputs and known targets, as estimators take them."""

    X: Any
    y: Any

    def __len__(self) -> int:
        return len(self.y)

    def take(self, mask: Any) -> "Labelled":
        import pyarrow as pa

        return Labelled(self.X.filter(pa.array(mask)) if isinstance(self.X, pa.Table) else self.X[mask], self.y[mask])


@dataclass(frozen=True)
class Rows:
    """Rows for a model that was fitted: as it takes them, and as numbers, with their noise and weights."""

    given: Labelled
    batch: "Batch"

    def take(self, mask: Any) -> "Rows":
        return Rows(self.given.take(mask), self.batch.take(mask))


def rows_of(model: Any, source: "FileSource", *, may_miss: bool = False) -> Iterator[Rows]:
    """Batches of rows with known targets, every number checked, for a model that was fitted.

    `may_miss`: inputs may be missing.
    """
    import numpy as np

    from sparsegp.data import with_encoding
    from sparsegp.data.scan import names_of, require_valid

    encoding = encoding_of(model)
    encoded: Any = with_encoding(source, encoding)
    for piece in encoded.pieces():
        # checked as numbers, of which the hash of a batch is, and handed over as they were read
        batch = encoded.columns.batch(piece)
        whole = replace(batch, X=np.where(np.isnan(batch.X), 0.0, batch.X)) if may_miss else batch
        require_valid(whole, names_of(encoded))
        X = batch.X if encoding is None else piece.table.select(list(encoded.columns.inputs))
        rows = Rows(Labelled(X, batch.y), batch)
        known = np.isfinite(batch.y)
        if known.any():
            yield rows if known.all() else rows.take(known)


def read_all(model: Any, source: "FileSource", *, may_miss: bool = False) -> tuple[Labelled, bool]:
    """All rows with known targets at once, for a model that was fitted, and whether they are a batch that it holds."""
    rows = list(rows_of(model, source, may_miss=may_miss))
    return _joined([part.given for part in rows]), _hash(rows) in _batches_of(model)


def _batches_of(model: Any) -> tuple[str, ...]:
    """Ids of the batches in a model, or in what predicts without torch."""
    fitted = getattr(model, "fitted_", None)
    found: tuple[str, ...] = model.batches if fitted is None else fitted.batches
    return found


def labelled(source: "FileSource") -> Labelled:
    """All rows with known targets at once, as they were read."""
    import numpy as np

    from sparsegp.data.values import numbers

    found, target = [], str(source.columns.target)
    for piece in source.pieces():
        y = numbers(piece.column(target), target)
        rows = Labelled(piece.table.select(list(source.columns.features)), y)
        found.append(rows.take(~np.isnan(y)))
    return _joined(found)


def _joined(found: list[Labelled]) -> Labelled:
    import numpy as np
    import pyarrow as pa

    if not sum(map(len, found)):
        raise InputError("There are no rows with a target: the table is empty, or the target is missing everywhere.")
    X = [rows.X for rows in found]
    joined = pa.concat_tables(X, promote_options="default") if isinstance(X[0], pa.Table) else np.concatenate(X)
    return Labelled(joined, np.concatenate([rows.y for rows in found]))


def content_id(model: Any, source: "FileSource") -> str:
    """The name of a batch of rows that was given none."""
    return _hash(rows_of(model, source))


def _hash(rows: Iterable[Rows]) -> str:
    from sparsegp import files as model_files

    batches = (part.batch for part in rows)
    return model_files.content_id((batch.X, batch.y, batch.weight, batch.noise_var) for batch in batches)


def target_of(model: Any, given: str | None) -> str:
    """The name of the target: as given, or as in the table of the fit."""
    name = given or model.target_name_in_
    if name is None:
        raise InputError("The model does not know the name of its target: give --target.")
    return str(name)


@contextmanager
def named_columns() -> Iterator[None]:
    """Within, arrays whose columns were chosen by name are as good as tables."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield
