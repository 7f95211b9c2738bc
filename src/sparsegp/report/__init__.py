"""One HTML page about a model: `report.write(model, X, y, path)`."""

from sparsegp.report.judgement import Judgement, judge
from sparsegp.report.page import write

__all__ = ["Judgement", "judge", "write"]
