"""One file a model: tensors and a JSON description in the safetensors format, written whole or not at all.

The description is data; nothing in a file is ever executed. A checksum covers the description and every tensor.
"""

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sparsegp.errors import ModelFileError
from sparsegp.io import container


def write(path: str | os.PathLike[str], description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Replace `path` in one step: after a crash there is the old file or the new one, never a part of it."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise ModelFileError(f"Cannot save to {target}: the folder {target.parent} does not exist. Create it first.")
    if target.is_dir():
        raise ModelFileError(f"Cannot save to {target}: it is a folder. Give the name of a file.")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    bad = [name for name, array in arrays.items() if not container.is_finite(array)]
    if bad:
        raise ModelFileError(
            f"The model has values that are not finite ({len(bad)} of its {len(tensors)} tensors), so it would be "
            "refused when loaded. Look at info_ and fit again; the file was not written."
        )
    text = json.dumps({"schema_version": container.SCHEMA_VERSION, **description}, allow_nan=False)
    header = {"format": container.FORMAT, "description": text, "checksum": container.checksum(text, arrays)}
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        permissions = _permissions(temporary, target)
        save_file(dict(tensors), temporary, header)
        temporary.chmod(permissions)
        _flush(temporary)
        temporary.replace(target)
    except SafetensorError as error:
        raise ModelFileError(f"Cannot write {target}: {error}. What was there before is unchanged.") from error
    finally:
        temporary.unlink(missing_ok=True)
    _flush(target.parent)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(description, tensors) of a file that is complete, unaltered and of a known version."""
    description, arrays = container.read(path)
    return description, {name: torch.from_numpy(array) for name, array in arrays.items()}


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Only one process at a time is within for the same path: others wait."""
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
