"""Model files: what they hold, and which batches of rows are in a model. See docs/file-format.md."""

from sparsegp.files.model_file import batch_ids, content_id, record_batches, require_disjoint
from sparsegp.whole_file import locked

__all__ = ["batch_ids", "content_id", "locked", "record_batches", "require_disjoint"]
