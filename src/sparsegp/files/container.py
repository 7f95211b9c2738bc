"""What a model file is on disk: a description in JSON and named arrays in the safetensors format, with a checksum.

The description is data; nothing in a file is ever executed. A file is written whole or not at all.
"""

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sparsegp.errors import ModelFileError
from sparsegp.files.schema import VERSION

FORMAT = "sparsegp-model"

Arrays = Mapping[str, NDArray[Any]]


def write(path: str | os.PathLike[str], description: Mapping[str, Any], arrays: Arrays) -> None:
    """Replace `path` in one step: after a crash there is the old file or the new one, never a part of it."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise ModelFileError(f"Cannot save to {target}: the folder {target.parent} does not exist. Create it first.")
    if target.is_dir():
        raise ModelFileError(f"Cannot save to {target}: it is a folder. Give the name of a file.")
    bad = [name for name, array in arrays.items() if not is_finite(array)]
    if bad:
        raise ModelFileError(
            f"The model has values that are not finite ({len(bad)} of its {len(arrays)} arrays), so it would be "
            "refused when loaded. Look at info_ and fit again; the file was not written."
        )
    text = json.dumps({"schema_version": VERSION, **description}, allow_nan=False)
    header = {"format": FORMAT, "description": text, "checksum": checksum(text, arrays)}
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        permissions = _permissions(temporary, target)
        save_file(dict(arrays), temporary, header)
        temporary.chmod(permissions)
        _flush(temporary)
        temporary.replace(target)
    except SafetensorError as error:
        raise ModelFileError(f"Cannot write {target}: {error}. What was there before is unchanged.") from error
    finally:
        temporary.unlink(missing_ok=True)
    _flush(target.parent)


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


def _described(source: Path, text: str) -> dict[str, Any]:
    try:
        description = json.loads(text)
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


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Only one process at a time is within for the same model file: others wait.

    Put it around load, update and save, so that no update is lost.

    Parameters
    ----------
    path : path of the model file, which need not exist yet. The lock is a hidden file beside it.
    """
    import fcntl  # not on every system, and reading does without

    target = Path(path).resolve()
    handle = os.open(target.with_name(f".{target.name}.lock"), os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _permissions(temporary: Path, target: Path) -> int:
    """Those of the file that is replaced, or those a new file gets here."""
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, 0o666))
    return stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)


def _flush(path: Path) -> None:
    """Wait until the disk has it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
