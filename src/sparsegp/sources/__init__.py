"""Rows from anywhere: re-iterable sources of batches, one scan of them, groups of rows for engines, blocks on disk."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsegp.sources.batch import Batch, Place, Source
from sparsegp.sources.open import is_read_in_batches, open_inputs, open_source
from sparsegp.sources.scan import Moments, Scan, scan, whole_batch

if TYPE_CHECKING:
    from sparsegp.sources.disk_blocks import DiskBlocks, nearest_block, random_block, write_blocks
    from sparsegp.sources.model_rows import ModelRows, Units, to_block

__all__ = [
    "Batch",
    "DiskBlocks",
    "ModelRows",
    "Moments",
    "Place",
    "Scan",
    "Source",
    "Units",
    "is_read_in_batches",
    "nearest_block",
    "open_inputs",
    "open_source",
    "random_block",
    "scan",
    "to_block",
    "whole_batch",
    "write_blocks",
]

# What needs torch is imported when first asked for: tables are read without it.
_HOMES = {
    "DiskBlocks": "disk_blocks",
    "ModelRows": "model_rows",
    "Units": "model_rows",
    "nearest_block": "disk_blocks",
    "random_block": "disk_blocks",
    "to_block": "model_rows",
    "write_blocks": "disk_blocks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsegp.sources' has no attribute {name!r}")
    value = getattr(import_module(f"sparsegp.sources.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
