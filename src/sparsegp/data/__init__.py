"""Rows from anywhere: re-iterable sources of batches, one scan of them, and in `data.rows` their groups for engines.

All but `data.rows` does without torch.
"""

from sparsegp.data.batches import Batch, Place, Source
from sparsegp.data.encoded import read_encoded, with_encoding
from sparsegp.data.encoding import Encoding
from sparsegp.data.files import Files
from sparsegp.data.layout import FeatureLayout
from sparsegp.data.open import is_read_in_batches, open_inputs, open_source
from sparsegp.data.scan import Moments, Scan, scan, whole_batch
from sparsegp.data.survey import Asked
from sparsegp.data.text_files import Dialect

__all__ = [
    "Asked",
    "Batch",
    "Dialect",
    "Encoding",
    "FeatureLayout",
    "Files",
    "Moments",
    "Place",
    "Scan",
    "Source",
    "is_read_in_batches",
    "open_inputs",
    "open_source",
    "read_encoded",
    "scan",
    "whole_batch",
    "with_encoding",
]
