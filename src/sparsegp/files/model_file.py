"""A model file as a record, whatever the version it was written in."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from sparsegp.errors import ModelFileError
from sparsegp.files import container, encoding, read_v1
from sparsegp.files.schema import Model

# Trees of version 2 from description and arrays of each version.
_TREES: Mapping[int, Callable[[dict[str, Any], container.Arrays], Any]] = {
    1: read_v1.translated,
    2: encoding.with_arrays,
}


def read(path: str | os.PathLike[str]) -> Model:
    """The record of a file that is complete, unaltered, of a known version and of the right types."""
    description, arrays = container.read(path)
    tree = _TREES[description.pop("schema_version")]
    description.pop("package_version", None)
    try:
        return encoding.build(Model, tree(description, arrays))
    except Exception as error:
        # whatever a strange file provokes, the reader learns that it is the file
        raise unusable(path, error) from error


def write(path: str | os.PathLike[str], model: Model) -> None:
    description, arrays = encoding.to_json(model)
    container.write(path, {"package_version": _version(), **description}, arrays)


def unusable(path: str | os.PathLike[str], error: Exception) -> ModelFileError:
    """What is said of a file whose content is not that of a model."""
    text = str(error).rstrip(".")
    reason = text if isinstance(error, ModelFileError) else f"its content is not that of a model ({text!r})"
    return ModelFileError(f"{path} cannot be used: {reason}.")


def _version() -> str:
    from importlib.metadata import version

    return version("sparsegp")
