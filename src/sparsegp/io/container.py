"""What a model file is on disk: a description in JSON and named arrays, with a checksum. Read here without torch."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from sparsegp.errors import ModelFileError

FORMAT = "sparsegp-model"
SCHEMA_VERSION = 1

Arrays = Mapping[str, NDArray[Any]]


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """(description, arrays) of a file that is complete, unaltered and of a known version."""
    source = Path(path)
    if not source.is_file():
        raise ModelFileError(
            f"There is no model file {source}. Check the path; models are written by save() and by `sparsegp fit`."
        )
    try:
        with safe_open(source, framework="np") as file:
            header = file.metadata() or {}
            _require_format(source, header)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(
            f"{source} cannot be read as a model file: it is truncated or not a model file ({error}). "
            "Use a backup, or save the model again."
        ) from error
    if checksum(header["description"], arrays) != header["checksum"]:
        raise ModelFileError(
            f"{source} was altered after it was saved: its checksum does not match. Use a backup, or save the model "
            "again."
        )
    if not all(map(is_finite, arrays.values())):
        raise ModelFileError(f"{source} holds values that are not finite: no fitted model does. Do not use this file.")
    return _described(source, header["description"]), arrays


def checksum(text: str, arrays: Arrays) -> str:
    """SHA-256 of the description, and of name, dtype, shape and bytes of each array in the order of names."""
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


def _described(source: Path, text: str) -> dict[str, Any]:
    try:
        description = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"The description in {source} is not JSON. Do not use this file.") from error
    version = description.get("schema_version") if isinstance(description, dict) else None
    if not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{source} does not say the version of its schema. Do not use this file.")
    if version > SCHEMA_VERSION:
        raise ModelFileError(
            f"{source} has schema version {version}; this version of sparsegp reads up to {SCHEMA_VERSION}. "
            "Upgrade sparsegp, or save the model with the older version."
        )
    return dict(description)
