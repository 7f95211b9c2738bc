"""One HTML page about a model: `report.write(model, X, y, path)`."""

from sparsegp.report.writing import write

__all__ = ["write"]
