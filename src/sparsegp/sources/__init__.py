"""Rows from anywhere: re-iterable sources of batches, one survey pass, groups of rows for engines, blocks on disk."""

from sparsegp.sources.batch import Batch, Place, Source
from sparsegp.sources.disk_blocks import DiskBlocks, nearest_block, random_block, write_blocks
from sparsegp.sources.model_rows import ModelRows, Units, to_block
from sparsegp.sources.opening import is_read_in_batches, open_inputs, open_source
from sparsegp.sources.survey import Survey, survey, whole_batch

__all__ = [
    "Batch",
    "DiskBlocks",
    "ModelRows",
    "Place",
    "Source",
    "Survey",
    "Units",
    "is_read_in_batches",
    "nearest_block",
    "open_inputs",
    "open_source",
    "random_block",
    "survey",
    "to_block",
    "whole_batch",
    "write_blocks",
]
