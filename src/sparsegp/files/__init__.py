"""Model files: what they hold, and which batches of rows are in a model. See docs/file-format.md."""

from sparsegp.files.container import locked
from sparsegp.files.model_file import batch_ids, content_id, record_batches, require_disjoint

__all__ = ["batch_ids", "content_id", "locked", "record_batches", "require_disjoint"]
