"""One HTML page about a model: `report.write(model, X, y, path)`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsegp.report.judgement import Judgement, judge
    from sparsegp.report.page import write

__all__ = ["Judgement", "judge", "write"]

# Imported when first asked for: scores are computed without torch.
_HOMES = {"Judgement": "judgement", "judge": "judgement", "write": "page"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsegp.report' has no attribute {name!r}")
    value = getattr(import_module(f"sparsegp.report.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
