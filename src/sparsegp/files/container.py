"""What a model file is on disk: a description in JSON and named arrays in the safetensors format, with a checksum.

The description is data; nothing in a file is ever executed. A file is written whole or not at all.
"""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from sparsegp import memory, whole_file
from sparsegp.errors import InputError, ModelFileError
from sparsegp.files.schema import VERSION

FORMAT = "sparsegp-model"
# Names of the dtypes in a file.
TYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8"} | {
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}

AGAIN = "Use a backup, or save the model again."
# Names that files of rows have: commands take the model first.
TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".feather", ".arrow", ".jsonl", ".json", ".gz")

Arrays = Mapping[str, NDArray[Any]]


def write(path: str | os.PathLike[str], description: Mapping[str, Any], arrays: Arrays) -> None:
    """Replace `path` in one step: after a crash there is the old file or the new one, never a part of it."""
    bad = [name for name, array in arrays.items() if not is_finite(array)]
    if bad:
        raise ModelFileError(
            f"The model has values that are not finite ({len(bad)} of its {len(arrays)} arrays), so it would be "
            "refused when loaded. Look at info_ and fit again; the file was not written."
        )
    text = json.dumps({"schema_version": VERSION, **description}, allow_nan=False)
    header = {"format": FORMAT, "description": text, "checksum": checksum(text, arrays)}
    try:
        with whole_file.replacing(path) as out:
            _write_tensors(out, header, arrays)
    except InputError as error:
        raise ModelFileError(str(error)) from error


def _write_tensors(out: IO[bytes], header: Mapping[str, str], arrays: Arrays) -> None:
    """The safetensors format: length of the JSON header, the header, the arrays in little-endian order.

    Written here because safetensors itself opens files by name, which follows links.
    """
    facts: dict[str, Any] = {"__metadata__": dict(header)}
    # those with the largest items first, as safetensors does, so that each array is aligned
    names, start = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name)), 0
    for name in names:
        array = arrays[name]
        offsets = [start, start := start + array.nbytes]
        facts[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
    head = json.dumps(facts).encode()
    head += b" " * (-len(head) % 8)
    out.write(struct.pack("<Q", len(head)) + head)
    for name in names:
        array = arrays[name]
        out.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """(description, arrays) of a file that is complete, unaltered and of a known version."""
    source = Path(path)
    if not source.is_file():
        raise ModelFileError(
            f"There is no model file {source}. Check the path; models are written by save() and by `sparsegp fit`."
        )
    size = source.stat().st_size
    memory.require(2.0 * size, f"Loading {source}", "Load it where there is more, or make a model of fewer rows.")
    try:
        with safe_open(source, framework="np") as file:
            header = file.metadata() or {}
            _require_format(source, header)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        if isinstance(error, ModelFileError):
            raise
        table = Path(source).suffix.lower() in TABLES
        advice = "It has the name of a table: the model comes first, then the table." if table else AGAIN
        raise ModelFileError(
            f"{source} cannot be read as a model file: it is truncated or not a model file ({error}). {advice}"
        ) from error
    if checksum(header["description"], arrays) != header["checksum"]:
        raise ModelFileError(f"{source} was altered after it was saved: its checksum does not match. {AGAIN}")
    if not all(map(is_finite, arrays.values())):
        raise ModelFileError(f"{source} holds values that are not finite: no fitted model does. Do not use this file.")
    return _described(source, header["description"]), arrays


def checksum(text: str, arrays: Arrays) -> str:
    """SHA-256 of the description, and of name, dtype, shape and bytes of each array in the order of names.

    It is that of version 1, so that an older reader can say that it is too old.
    """
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"|{name}|torch.{array.dtype}|{tuple(array.shape)}|".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def is_finite(array: NDArray[Any]) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _require_format(source: Path, header: Mapping[str, str]) -> None:
    if header.get("format") != FORMAT or not {"description", "checksum"} <= header.keys():
        raise ModelFileError(f"{source} is a safetensors file, but not one of a sparsegp model. Give a file of save().")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _described(source: Path, text: str) -> dict[str, Any]:
    try:
        description = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"The description in {source} is not JSON. Do not use this file.") from error
    version = description.get("schema_version") if isinstance(description, dict) else None
    if not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{source} does not say the version of its schema. Do not use this file.")
    if version > VERSION:
        raise ModelFileError(
            f"{source} has schema version {version}; this version of sparsegp reads up to {VERSION}. "
            "Upgrade sparsegp, or save the model with the older version."
        )
    return dict(description)
