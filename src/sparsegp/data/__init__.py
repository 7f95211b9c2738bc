"""Rows from anywhere: re-iterable sources of batches, one scan of them, groups of rows for engines, blocks on disk."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsegp.data.batches import Batch, Place, Source
from sparsegp.data.encoded import read_encoded, with_encoding
from sparsegp.data.encoding import Encoding
from sparsegp.data.files import Files
from sparsegp.data.layout import FeatureLayout
from sparsegp.data.open import is_read_in_batches, open_inputs, open_source
from sparsegp.data.scan import Moments, Scan, scan, whole_batch
from sparsegp.data.survey import Asked
from sparsegp.data.text_files import Dialect

if TYPE_CHECKING:
    from sparsegp.data.rows import DiskRows, Scaling, SourceRows, nearest_block, random_block, to_block, write_blocks

__all__ = [
    "Asked",
    "Batch",
    "Dialect",
    "DiskRows",
    "Encoding",
    "FeatureLayout",
    "Files",
    "Moments",
    "Place",
    "Scaling",
    "Scan",
    "Source",
    "SourceRows",
    "is_read_in_batches",
    "nearest_block",
    "open_inputs",
    "open_source",
    "random_block",
    "read_encoded",
    "scan",
    "to_block",
    "whole_batch",
    "with_encoding",
    "write_blocks",
]

# What needs torch is imported when first asked for: tables are read without it.
_HOMES = {
    "DiskRows": "rows",
    "SourceRows": "rows",
    "Scaling": "rows",
    "nearest_block": "rows",
    "random_block": "rows",
    "to_block": "rows",
    "write_blocks": "rows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsegp.data' has no attribute {name!r}")
    value = getattr(import_module(f"sparsegp.data.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
