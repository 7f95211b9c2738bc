"""Files that appear under their name complete or not at all, even while other processes write there.

Every file that this package leaves behind is written by `replacing`. What is read, checked and written again is inside
`locked`. A lock also tells a file that is being written from one that a killed process left: the latter is removed by
the next writer.
"""

import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sparsegp.errors import InputError, OutputError

UNFINISHED = ".tmp"
TOKEN_BYTES = 8
NEW_FILE_MODE = 0o666  # less what the umask takes


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write to, which becomes `path` in one step when the block ends without an error.

    After a crash there is the old file or the new one, never a part of it. The new file has the permissions of the old.
    """
    target = destination(path)
    try:
        _remove_leftovers(target)
        temporary, handle = _exclusive(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with io.BufferedWriter(_Unfinished(handle, target)) as out:
            yield out
            out.flush()
            try:
                os.fsync(handle)
                temporary.replace(target)
            except OSError as error:
                raise _unwritable(target, error) from error
    finally:
        with suppress(OSError):  # the next writer removes it
            temporary.unlink(missing_ok=True)
    _flush_folder(target)


def destination(path: str | os.PathLike[str]) -> Path:
    """Where a file is written: links are followed, and it is found out now that nothing could be written there."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise InputError(f"Cannot write {target}: the folder {target.parent} does not exist. Create it first.")
    if target.is_dir():
        raise InputError(f"Cannot write {target}: it is a folder. Give the name of a file.")
    if target.exists() and not target.is_file():
        raise InputError(f"Cannot write {target}: it is a device or a pipe, which cannot be replaced. Name a file.")
    return target


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Only one process at a time is within for the same file: others wait.

    Put it around load, update and save, so that no update is lost.

    Parameters
    ----------
    path : path of the file, which need not exist yet. The lock is a hidden file beside it, for as long as it is held.
    """
    target = destination(path)
    lock = target.with_name(f".{target.name}.lock")
    try:
        handle = _held(lock)
    except OSError as error:
        raise OutputError(
            f"Cannot lock {target} against other processes: {_reason(error)}. Write to a folder of your own."
        ) from error
    try:
        yield
    finally:
        # Before the lock is given up: whoever waits for it finds that the name is gone, and starts again.
        with suppress(OSError):
            lock.unlink(missing_ok=True)
        with suppress(OSError):
            os.close(handle)


class _Unfinished(io.FileIO):
    """A file that says what could not be written."""

    def __init__(self, handle: int, target: Path) -> None:
        super().__init__(handle, "wb")
        self.target = target

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError as error:
            raise _unwritable(self.target, error) from error


def _exclusive(target: Path) -> tuple[Path, int]:
    """A new file beside the target, which no other process has or takes for a leftover. Links are not followed."""
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(TOKEN_BYTES)}{UNFINISHED}")
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        handle = os.open(temporary, flags, NEW_FILE_MODE if mode is None else mode)
        try:
            with suppress(OSError):  # a file system without locks: leftovers are not removed there
                _lock(handle, wait=False)
            if _is_at(handle, temporary):  # else another writer was quicker and took it for a leftover
                if mode is not None:
                    os.fchmod(handle, mode)
                return temporary, handle
        except OSError:
            os.close(handle)
            temporary.unlink(missing_ok=True)
            raise
        os.close(handle)


def _remove_leftovers(target: Path) -> None:
    """Files of writers that were killed: nobody holds their locks."""
    prefix = f".{target.name}."
    length = len(prefix) + 2 * TOKEN_BYTES + len(UNFINISHED)
    for entry in os.scandir(target.parent):
        if entry.name.startswith(prefix) and entry.name.endswith(UNFINISHED) and len(entry.name) == length:
            with suppress(OSError):  # being written, or not ours: it stays
                _remove_if_free(Path(entry.path))


def _remove_if_free(path: Path) -> None:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _lock(handle, wait=False)
        if _is_at(handle, path):
            path.unlink()
    finally:
        os.close(handle)


def _held(lock: Path) -> int:
    """A handle of the file of a lock, locked."""
    while True:
        handle = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, NEW_FILE_MODE)
        try:
            _lock(handle, wait=True)
            if _is_at(handle, lock):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, *, wait: bool) -> None:
    import fcntl  # not on every system, and reading does without

    fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _flush_folder(target: Path) -> None:
    """Wait until the disk has the new name."""
    try:
        handle = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise OutputError(
            f"{target} was written, but the disk did not confirm its name: {_reason(error)}. Look at the disk."
        ) from error


def _unwritable(target: Path, error: OSError) -> OutputError:
    return OutputError(f"Cannot write {target}: {_reason(error)}. What was there before is unchanged.")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
