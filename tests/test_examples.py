"""The examples run, with small sizes, and say what they should."""

import json
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sparsegp.cli import app

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name):
    spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_stream(capsys):
    gp = example("stream").main(n_start=300, n_batches=3)
    assert gp.n_samples_seen_ == 600
    printed = capsys.readouterr().out
    assert "600 rows; drift: False" in printed
    assert "after a faulty batch, drift: True" in printed


def test_big_file(capsys):
    gp = example("big_file").main(n_files=2, rows_per_file=400)
    assert gp.n_samples_seen_ == 800
    expected = 20 + np.sin(1.0) + 0.2
    assert gp.predict(pd.DataFrame({"x": [0.5], "t": [100.0]})) == pytest.approx(expected, abs=0.15)
    assert "800 rows" in capsys.readouterr().out


def test_noisy_data():
    found = example("noisy_data").main(n_rows=500)
    constant, varying = found["constant noise"], found["noise that varies"]
    assert varying["nlpd"] < constant["nlpd"]
    assert varying["width_at_night"] < 0.5 * constant["width_at_night"]


def test_custom_kernel():
    assert example("custom_kernel").main(n_days=100) < 0.6


def test_cluster():
    pytest.importorskip("distributed", reason="the cluster example needs the extra: pip install 'sparsegp[dask]'")
    gp = example("cluster").main(n_rows=400, processes=False)
    assert gp.noise_var_**0.5 == pytest.approx(0.1, rel=0.5)


def test_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="the picture needs the extra: pip install 'sparsegp[plot]'")
    assert 5_000 < example("picture").main(tmp_path / "picture.png", n=80).stat().st_size < 150_000


def test_every_picture_of_the_gallery_is_there():
    gallery = example("gallery")
    text = (gallery.DOCS / "gallery.md").read_text()
    named = [f"gallery-{gallery.slug(heading)}.png" for heading, _ in gallery.SECTION.findall(text)]
    assert named == [path.rpartition("/")[2] for path in re.findall(r"!\[.+?\]\((.+?)\)", text)]
    assert all(10_000 < (gallery.DOCS / "images" / name).stat().st_size < 100_000 for name in named)


def test_the_gallery_is_drawn_by_the_code_of_its_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nimport matplotlib.pyplot as plt\n```\n\n## A line\n\n```python\nplt.plot([1, 2])\n```\n"
    )
    (drawn,) = example("gallery").main(tmp_path, page)
    assert drawn == tmp_path / "gallery-a-line.png"
    assert drawn.stat().st_size > 1000


def test_demo(tmp_path, monkeypatch, capsys):
    """Its commands in this process; tests/cli/test_cli_processes.py has them as processes."""
    demo, commands = example("demo"), []

    def run(folder, arguments):
        monkeypatch.chdir(folder)
        result = CliRunner().invoke(app, [*arguments.split(), "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        commands.append((arguments.split()[0], json.loads(result.stdout)))

    monkeypatch.setattr(demo, "sparsegp", run)
    report = demo.main(tmp_path / "out", n_rows=500, n_inducing=10, seconds=600.0)
    assert [name for name, _ in commands] == ["fit", "evaluate", "update", "update", "report"]
    first, second = (options for name, options in commands if name == "update")
    assert (first["batches"][0]["added"], second["batches"][0]["added"]) == (True, False)
    assert first["rows_in_model"] == second["rows_in_model"] == 450
    assert str(report) in capsys.readouterr().out
    assert report.read_text().startswith("<!DOCTYPE html>")
