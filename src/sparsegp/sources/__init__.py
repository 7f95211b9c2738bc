"""Rows from anywhere: re-iterable sources of batches, one survey pass, groups of rows for engines, blocks on disk."""

from sparsegp.sources.batch import Batch, Place, Source
from sparsegp.sources.disk_blocks import DiskBlocks, nearest_block, random_block, write_blocks
from sparsegp.sources.model_rows import ModelRows, Units, to_block
from sparsegp.sources.opening import open_source
from sparsegp.sources.survey import Survey, survey

__all__ = [
    "Batch",
    "DiskBlocks",
    "ModelRows",
    "Place",
    "Source",
    "Survey",
    "Units",
    "nearest_block",
    "open_source",
    "random_block",
    "survey",
    "to_block",
    "write_blocks",
]
