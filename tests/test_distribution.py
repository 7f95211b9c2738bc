"""Wheel and sdist: built, installed into an empty environment, and the demo runs from there."""

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytest.importorskip("build", reason="builds need the extra: pip install 'sparsegp[dev]'")

ROOT = Path(__file__).parent.parent
SHARED = Path(distribution("numpy").locate_file(""))

pytestmark = pytest.mark.slow


def run(command, **options):
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The two files, from what git would give to somebody else."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    archive = source / "source.tar"
    if not (ROOT / ".git").exists():
        pytest.skip("what belongs to a distribution is asked of git")
    names = run(["git", "ls-files", "-z"], cwd=ROOT).split("\0")
    with tarfile.open(archive, "w") as file:
        for name in filter(None, names):
            if (ROOT / name).is_file():
                file.add(ROOT / name, name)
    with tarfile.open(archive) as file:
        file.extractall(source / "tree", filter="data")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source / "tree"])
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def environment(folder, package):
    """A fresh environment with the package alone; what it depends on is shared, so that no network is needed."""
    run([sys.executable, "-m", "venv", folder])
    python = folder / "bin" / "python"
    flags = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(f"import sys; sys.path.append({str(SHARED)!r})\n")
    run([python, "-m", "pip", "install", *flags, package], env=clean())
    return python


def clean():
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def wheel_of(sdist, folder):
    """What pip does with an sdist, with the tools of this environment."""
    with tarfile.open(sdist) as file:
        file.extractall(folder / "sdist", filter="data")
    (tree,) = (folder / "sdist").iterdir()
    run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "wheel", tree])
    (wheel,) = (folder / "wheel").iterdir()
    return wheel


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_demo_runs_from_an_installed_package(kind, built, tmp_path):
    wheel, sdist = built
    python = environment(tmp_path / "env", wheel if kind == "wheel" else wheel_of(sdist, tmp_path))
    home = run([python, "-c", "import sparsegp; print(sparsegp.__file__)"], env=clean(), cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(tmp_path / "env")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import demo; from pathlib import Path; "
        "demo.main(Path(sys.argv[2]), n_rows=600, n_inducing=10, seconds=20.0)"
    )
    told = run([python, "-c", code, ROOT / "examples", tmp_path / "out"], env=clean(), cwd=tmp_path)
    assert "Done in" in told
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_what_the_files_hold(built):
    wheel, sdist = built
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        told = file.read(metadata).decode()
    assert "sparsegp/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"sparsegp", metadata.split("/")[0]}
    needed = [line for line in told.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert not any("torch" in line for line in needed)
    assert "Provides-Extra: fit" in told
    assert "Project-URL" not in told
    with tarfile.open(sdist) as file:
        assert any(name.endswith("/LICENSE") for name in file.getnames())


def test_version_is_the_same_everywhere():
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
