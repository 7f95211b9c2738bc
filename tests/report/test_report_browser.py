"""A report in a real browser: it renders, the console stays silent, and nothing is asked of a network."""

import json
import re
import shutil
import subprocess

import matplotlib
import numpy as np
import pytest

from sparsegp import SparseGPRegressor, kernels, report

matplotlib.use("Agg")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
OF_THE_BROWSER = (None, "not an origin")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: chromium or google-chrome on the PATH")


def opened(page, folder):
    """The document after rendering, what the console said, and the addresses that were asked for."""
    net_log = folder / "net.json"
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={net_log}"]
    ran = subprocess.run(
        [*command, "--window-size=390,844", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    events = json.loads(net_log.read_text())["events"]
    sent = [event.get("params", {}) for event in events]
    # a browser has errands of its own, which no page has started; they get nowhere
    asked = {params["url"] for params in sent if params.get("initiator") not in OF_THE_BROWSER and "url" in params}
    return ran.stdout, re.findall(r"CONSOLE.*", ran.stderr), {url for url in asked if re.match("https?:|wss?:", url)}


def test_a_page_that_is_not_alone_is_found_out(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("here")</script>')
    _, console, asked = opened(page, tmp_path)
    assert any("here" in line for line in console)
    assert any(url.startswith("http://127.0.0.1:9/") for url in asked)


def test_a_report_renders_in_silence(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (120, 2))
    y = np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 0.15 * rng.standard_normal(120)
    kernel = kernels.SquaredExponential(1.5, [0.9, 4.0])
    model = SparseGPRegressor(kernel, approximation="vfe", n_inducing=20, noise_var=0.02, optimizer=None).fit(
        X[:80], y[:80]
    )
    document, console, asked = opened(report.write(model, X[80:], y[80:], tmp_path / "page.html"), tmp_path)
    assert (console, asked) == ([], set())
    assert document.count("<figure>") == document.count("<svg ") >= 5
    assert "What the model assumes" in document
