"""Reading ahead: the next items are made by a thread of their own while the caller works on the last one."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def prefetched(items: Iterator[Item], ahead: int = 2) -> Iterator[Item]:
    """The same items in the same order, at most `ahead` of them made before they are asked for.

    An error of the reader is raised where its item would have come. The reader sees the context of the caller, in
    which a Dask client may be current.
    """
    context = copy_context()

    def following() -> Item:
        return context.run(next, items, _END)  # type: ignore[return-value]

    with ThreadPoolExecutor(1) as reader:
        pending = deque(reader.submit(following) for _ in range(ahead))
        while (item := pending.popleft().result()) is not _END:
            pending.append(reader.submit(following))
            yield item
