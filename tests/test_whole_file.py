"""Files appear whole or not at all: under faults, races, kills and links that somebody planted."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sparsegp.errors import InputError, OutputError
from sparsegp.whole_file import locked, replacing

WRITES_UNTIL_KILLED = """
import sys
from sparsegp.whole_file import locked, replacing
with locked(sys.argv[1]), replacing(sys.argv[1]) as out:
    out.write(b"half")
    out.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.csv"


def put(path, content):
    with replacing(path) as out:
        out.write(content)


def names(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def test_a_file_is_there_when_the_block_has_ended_and_not_before(path):
    with replacing(path) as out:
        out.write(b"new")
        out.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert names(path) == ["out.csv"]


def test_two_writers_at_once_each_write_their_own_file(path):
    with replacing(path) as first:
        with replacing(path) as second:
            for _ in range(3):
                first.write(b"a" * 9000)
                second.write(b"b" * 9000)
        assert path.read_bytes() == b"b" * 27000
    assert path.read_bytes() == b"a" * 27000
    assert names(path) == ["out.csv"]


def test_an_error_in_the_block_leaves_the_old_file_and_nothing_else(path):
    put(path, b"old")
    with pytest.raises(TypeError), replacing(path) as out:
        out.writelines([b"new" * 10000, "no bytes"])
    assert path.read_bytes() == b"old"
    assert names(path) == ["out.csv"]


@pytest.mark.parametrize("step", ["open", "fchmod", "fsync", "replace"])
def test_every_step_that_fails_says_so_and_leaves_the_old_file(path, monkeypatch, step):
    put(path, b"old")

    def fails(*given, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path if step == "replace" else os, step, fails)
    with pytest.raises(OutputError, match=r"No space left on device.*unchanged"):
        put(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert names(path) == ["out.csv"]


def test_a_write_that_fails_says_so_and_leaves_the_old_file(path):
    """A limit of the size of files is the full disk that a test can make."""
    put(path, b"old")
    code = (
        "import resource, sys; from sparsegp.whole_file import replacing\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))\n"
        "with replacing(sys.argv[1]) as out: out.write(bytes(200000))"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "OutputError: Cannot write" in ran.stderr
    assert "File too large" in ran.stderr
    assert path.read_bytes() == b"old"
    assert names(path) == ["out.csv"]


def test_what_a_killed_writer_left_is_removed_by_the_next_and_what_is_being_written_is_not(path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES_UNTIL_KILLED, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    left = [name for name in names(path) if name.endswith(".tmp")]
    put(path, b"one")
    assert len(left) == 1
    assert left[0] in names(path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with locked(path):
        put(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path) == ["out.csv"]


def test_files_of_others_are_left_alone(path):
    others = [".out.csv.tmp", ".out.csv.backup.tmp", ".other.csv.0123456789abcdef.tmp", "out.csv.0123456789abcdef.tmp"]
    for name in others:
        path.with_name(name).write_text("mine")
    put(path, b"new")
    assert names(path) == sorted([*others, "out.csv"])


def test_links_planted_where_the_package_writes_are_not_followed(path, monkeypatch):
    victim = path.with_name("victim.txt")
    victim.write_text("precious")
    for name in (".out.csv.part", ".out.csv.lock", ".out.csv.0123456789abcdef.tmp"):
        path.with_name(name).symlink_to(victim)
    monkeypatch.setattr("secrets.token_hex", lambda n: "0123456789abcdef")
    with pytest.raises(OutputError, match="File exists"):
        put(path, b"new")
    with pytest.raises(OutputError, match="Cannot lock"), locked(path):
        pass
    monkeypatch.undo()
    put(path, b"new")
    assert victim.read_text() == "precious"
    assert not path.is_symlink()


def test_a_link_to_the_file_stays_one(path, tmp_path):
    put(path, b"old")
    link = tmp_path / "latest.csv"
    link.symlink_to(path)
    put(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_permissions_are_those_of_the_old_file_from_the_first_byte(path):
    put(path, b"old")
    path.chmod(0o600)
    with replacing(path) as out:
        (temporary,) = (entry for entry in path.parent.iterdir() if entry.suffix == ".tmp")
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        out.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_devices_and_pipes_are_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="a device or a pipe"):
        put(pipe, b"new")
    with pytest.raises(InputError, match="a device or a pipe"):
        put("/dev/null", b"new")


def test_no_lock_stays_behind(path):
    with locked(path):
        assert names(path) == [".out.csv.lock"]
    assert names(path) == []
