"""Reading ahead: the next items are made by a thread of their own while the caller works on the last one."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def prefetched(items: Iterator[Item], ahead: int = 2) -> Iterator[Item]:
    """The same items in the same order, at most `ahead` of them made before they are asked for.

    An error of the reader is raised where its item would have come.
    """
    with ThreadPoolExecutor(1) as reader:
        pending = deque(reader.submit(next, items, _END) for _ in range(ahead))
        while (item := pending.popleft().result()) is not _END:
            pending.append(reader.submit(next, items, _END))
            yield item  # type: ignore[misc]
