"""One HTML page about a model: `report.write(model, X, y, path)`."""

from sparsegp.report.writing import Judgement, judge, write

__all__ = ["Judgement", "judge", "write"]
