"""report.write: a page that is well formed, complete, escaped, and alone in the world."""

import re
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pandas as pd
import pytest

from sparsegp import (
    CommitteeGPRegressor,
    HeteroscedasticGPRegressor,
    InputError,
    SparseGPRegressor,
    kernels,
    metrics,
    report,
)
from sparsegp.report.headline import scores

matplotlib.use("Agg")

HOSTILE = '<script>alert("1")</script> & $x_{ id="a"'
VOID = {"meta", "br"}
FIXED = {"kernel": kernels.SquaredExponential(1.5, [0.9, 4.0]), "optimizer": None}
MODELS = {
    "vfe": SparseGPRegressor(approximation="vfe", n_inducing=30, noise_var=0.02, **FIXED),
    "exact": SparseGPRegressor(approximation="exact", noise_var=0.02, **FIXED),
    "pic": SparseGPRegressor(approximation="pic", n_inducing=15, n_blocks=3, noise_var=0.02, **FIXED),
    "sum": SparseGPRegressor(
        kernels.Matern32() + kernels.Linear(), approximation="vfe", n_inducing=20, noise_var=0.1, optimizer=None
    ),
    "heteroscedastic": HeteroscedasticGPRegressor(n_inducing=30, n_noise_inducing=5, noise_mean=-4.0, **FIXED),
    "committee": CommitteeGPRegressor(n_experts=2, noise_var=0.02, **FIXED),
}


class Reader(HTMLParser):
    """Checks that every element is closed in order, and keeps what a page could load or run."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.links, self.ids, self.words = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href", "srcset", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def wave(n=90, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    y = np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 0.15 * rng.standard_normal(n)
    return pd.DataFrame(X, columns=[HOSTILE, "plain"]), y


@pytest.fixture(scope="module", params=["pic", "sum", "heteroscedastic", "committee"])
def written(request, tmp_path_factory):
    model = MODELS[request.param].fit(*wave())
    path = tmp_path_factory.mktemp("report") / "page.html"
    rows = wave(60, seed=1)
    assert report.write(model, *rows, path, title=f"About {HOSTILE}", target_name="<i>yield</i>") == path
    return model, rows, path.read_text(encoding="utf-8")


def test_a_page_is_well_formed_and_needs_nothing_else(written):
    page = Reader(written[2])
    assert not {"script", "link", "iframe", "object", "img", "base", "form"} & set(page.tags)
    assert page.links
    assert all(re.match(r"data:image/png;base64,|#", link) for link in page.links)
    assert not re.search(r"https?://|@import|url\((?!#)", written[2])
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", written[2])) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_strings_of_the_user_are_text(written):
    page = Reader(written[2])
    assert page.text.startswith(f"About {HOSTILE}")
    assert f"Effect of {HOSTILE}" in page.text
    assert "<i>yield</i> (target)" in page.text
    assert "i" not in page.tags


def test_a_page_says_what_is_known_of_the_model(written):
    model, (X, y), text = written
    page = Reader(text)
    found = scores(model, X, y)
    for value in (
        f"{found['rmse']:.4g}",
        f"{found['nlpd']:.4g}",
        f"{found['crps']:.4g}",
        f"{found['coverage_95']:.1%}",
    ):
        assert value in page.text
    for finding in report.judge(model, X, y).findings:
        assert finding.what in page.text
        assert finding.try_this in page.text
    assert repr(model.kernel_) in page.text
    assert f"{y.max():.4g}" in page.text
    for heading in (
        "What matters",
        "Where the intervals hold",
        "What the model does not know",
        "Warnings and findings",
        "Calibration",
        "Errors",
        "What the model assumes",
        "The rows",
    ):
        assert heading in page.text
    assert page.tags.count("svg") == page.tags.count("figure") >= 5


def test_pictures_take_the_colours_of_the_page(written):
    assert "prefers-color-scheme: dark" in written[2]
    assert "width=device-width" in written[2]
    assert "currentColor" in written[2]
    assert "#010203" not in written[2]


def test_a_model_of_one_column_that_learned(tmp_path):
    X, y = wave()
    model = SparseGPRegressor(approximation="vfe", n_inducing=10, random_state=0).fit(X.to_numpy()[:, :1], y)
    page = Reader(report.write(model, X.to_numpy()[:, :1], y, tmp_path / "page.html").read_text())
    assert "Learning" in page.text
    assert "Map of the two" not in page.text
    assert f"Lengthscale of column 0 {model.kernel_.lengthscales.item():.4g}" in page.text


def test_what_is_wrong_with_a_model_is_on_its_page(tmp_path):
    X, y = wave()
    model = MODELS["vfe"].fit(X, y)
    text = report.write(model, X, y + 4.0, tmp_path / "page.html").read_text()
    assert "The intervals are too narrow" in Reader(text).text
    assert 'class="warning"' in text
    fine = MODELS["exact"].fit(*wave(300))
    assert "Nothing stood out" in report.write(fine, *wave(300, seed=1), tmp_path / "page.html").read_text()


def test_a_page_shows_the_coverage_of_parts(tmp_path):
    X, y = wave(300)
    model, (rows, target) = MODELS["vfe"].fit(X, y), wave(400, seed=1)
    loud = rows["plain"].to_numpy() > 2.0
    target = np.where(loud, target + 0.8 * np.random.default_rng(2).standard_normal(400), target)
    judgement = report.judge(model, rows, target)
    worst = judgement.segments.worst
    assert worst.quantity == "plain"
    page = Reader(report.write(model, rows, target, tmp_path / "page.html", judgement=judgement).read_text())
    assert f"The worst part is {worst.name}: {worst.coverage:.1%} of its {worst.n_rows} rows are inside" in page.text
    for part in judgement.segments.parts:
        assert f"{part.name} {part.n_rows} {part.coverage:.1%}" in page.text
    assert "too few" in page.text
    assert "All parts" in page.text
    few = report.write(model, rows[:15], target[:15], tmp_path / "page.html")
    assert "too few rows to say where" in Reader(few.read_text()).text


def test_a_page_warns_of_the_nlpd_of_a_discrete_target(tmp_path):
    X, y = wave(200)
    model = MODELS["vfe"].fit(X, np.round(y))
    page = Reader(report.write(model, X, np.round(y), tmp_path / "page.html").read_text())
    assert "many targets are equal; see CRPS" in page.text
    assert "The target has only" in page.text
    assert "many targets are equal" not in Reader(report.write(model, X, y, tmp_path / "page.html").read_text()).text


def test_rows_that_have_moved_since_the_fit_are_found():
    X, y = wave(200)
    model = MODELS["vfe"].fit(X, y)
    fresh, target = wave(100, seed=1)
    here = {finding.what for finding in report.judge(model, fresh, target).findings}
    assert not any("not where the training rows were" in what or "lean" in what for what in here)
    away = fresh.assign(plain=fresh["plain"] + 5.0)
    moved = [finding for finding in report.judge(model, away, target).findings if "not where" in finding.what]
    assert [(finding.severity, finding.what.endswith("were: plain")) for finding in moved] == [("warning", True)]
    leaning = [finding for finding in report.judge(model, fresh, target + 1.0).findings if "lean" in finding.what]
    assert "above their predictions" in leaning[0].evidence
    few = report.judge(model, away[:10], target[:10] + 1.0).findings
    assert not any("not where" in finding.what or "lean" in finding.what for finding in few)


def test_scores_are_those_of_the_metrics():
    X, y = wave()
    model = MODELS["vfe"].fit(X, y)
    mean, std = model.predict(X, return_std=True)
    found, expected = scores(model, X, y), metrics.summary(y, mean, std)
    for name in ("rmse", "nlpd", "crps", "coverage_95", "width_95"):
        assert found[name] == pytest.approx(expected[name])
    assert found["r2"] == pytest.approx(model.score(X, y))


def test_crps_of_a_mixture_is_the_integral_of_its_quantile_scores():
    X, y = wave(25)
    model = MODELS["heteroscedastic"].fit(*wave())
    levels = (np.arange(2000) + 0.5) / 2000
    by_quantiles = metrics.crps_from_quantiles(y, model.predict_quantiles(X, levels), levels)
    assert model.forecast(X).crps(y).mean() == pytest.approx(by_quantiles, rel=1e-4)


def test_the_rows_are_told_without_levels_and_gaps_that_none_of_them_has(tmp_path):
    X, y = wave(60)
    X = X.assign(site=np.where(X["plain"] > 0, "north", "south"), gaps=X["plain"].where(X["plain"] > -2))
    model = SparseGPRegressor(approximation="vfe", n_inducing=20, optimizer=None, random_state=0).fit(X, y)
    few = X["plain"] > 0.5  # all in the north, and nothing missing
    text = Reader(report.write(model, X[few], y[few], tmp_path / "few.html").read_text(encoding="utf-8")).text
    told = text[text.index("distinct values") :]
    assert "plain" in told
    assert "site = north" in told
    assert "site = south" not in told
    assert "missing" not in told
    text = Reader(report.write(model, X, y, tmp_path / "all.html").read_text(encoding="utf-8")).text
    assert "gaps missing" in text[text.index("distinct values") :]


def test_a_folder_that_does_not_exist(tmp_path):
    X, y = wave()
    with pytest.raises(InputError, match="does not exist"):
        report.write(MODELS["vfe"].fit(X, y), X, y, tmp_path / "missing" / "page.html")
