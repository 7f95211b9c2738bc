"""Where an estimator works: in this process, or on a Dask cluster by the layer above, which is imported by name."""

import sys
from importlib import import_module
from typing import Any

from sparsegp.errors import InputError
from sparsegp.sources.tables import library_of


def distributed() -> Any:
    """`sparsegp.distributed`: the estimators depend neither on the layer above them nor on dask."""
    return import_module("sparsegp.distributed")


def is_dask(X: Any) -> bool:
    return library_of(X) == "dask"


def chosen(client: Any, cluster: Any) -> Any:
    """The cluster that was named, by one argument or the other; None: none was."""
    if client is not None and cluster is not None:
        raise InputError("Give client= or cluster=, not both: each names the Dask cluster to work on.")
    return cluster if client is None else client


def current_client(X: Any) -> Any:
    """For a dask collection, the Dask client in use where there is one: its partitions are computed there anyway."""
    module = sys.modules.get("distributed")
    if module is None or not is_dask(X):
        return None
    try:
        return module.Client.current()
    except ValueError:
        return None


def place(task: str, estimator: Any, X: Any, named: Any, blocks: Any) -> Any:
    """The cluster for `task`, "fit" or "update": the one that was named, or the client in use if it can; else None."""
    if named is not None:
        if blocks is not None:
            raise InputError("blocks= cannot be given together with client=: the workers make the blocks.")
        return named
    current = None if blocks is not None else current_client(X)
    if current is None:
        return None
    can = {"fit": distributed().can_fit, "update": distributed().can_update}[task]
    return current if can(estimator) else None
