"""The scan under its former name, for `model_rows`, the last module that asks for it there."""

from sparsegp.sources.batch import regrouped
from sparsegp.sources.scan import valid_batches, with_weight

__all__ = ["regrouped", "valid_batches", "with_weight"]
