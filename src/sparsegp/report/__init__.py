"""One HTML page about a model: `report.write(model, X, y, path)`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsegp.report.judgement import Judgement, judge
    from sparsegp.report.page import write

__all__ = ["Judgement", "judge", "write"]


def __getattr__(name: str) -> Any:
    """Names are imported when first asked for: `report.headline` is numpy alone."""
    if name == "write":
        from sparsegp.report.page import write

        return write
    if name in ("Judgement", "judge"):
        from sparsegp.report import judgement

        return getattr(judgement, name)
    raise AttributeError(f"module 'sparsegp.report' has no attribute {name!r}")
