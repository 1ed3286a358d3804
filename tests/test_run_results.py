"""Tables, formats and the report: statistics equal scipy's, and nothing is left out or malformed."""

import csv
import html
import io
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
import torch

from xattn._evaluate_cli import _cell
from xattn.errors import ArgumentError
from xattn.evaluation import JUDGES, Results, segmentation_totals
from xattn.evaluation._rows import SCHEMA
from xattn.evaluation.results import Example

N = 12
RNG = np.random.default_rng(0)
BASE = RNG.random(N)
VALUES = {
    "best": BASE + 0.3,
    "near": BASE + 0.3 + RNG.normal(0, 0.05, N),
    "worse": BASE,
    "<odd> & |names|_": BASE - 0.1,
}
COUNTS = {name: RNG.integers(1, 50, (N, 4)) for name in VALUES}


def row(method, protocol, metric, i, value, curve=False):
    return dict.fromkeys(SCHEMA.names) | {
        "method": method,
        "protocol": protocol,
        "metric": metric,
        "value": float(value),
        "undefined": bool(np.isnan(value)),
        "constant": False,
        "sample": f"{i}.png",
        "sample_index": i,
        "correct": i % 3 != 0,
        "seconds": 0.5,
        "fractions": [0.0, 0.5, 1.0] if curve else None,
        "curve": [1.0, float(value), 0.0] if curve else None,
    }


def make(values=None, counts=COUNTS, **facts):
    rows = [
        row(m, "perturbation", "negative", i, v, curve=True)
        for m, vs in (VALUES if values is None else values).items()
        for i, v in enumerate(vs)
    ]
    for method, table in counts.items():
        for i, (tp, fp, fn, tn) in enumerate(table):
            found = {"tp": tp, "fp": fp, "fn": fn, "tn": tn}
            found["miou_image"] = (tp / (tp + fp + fn) + tn / (tn + fp + fn)) / 2
            rows += [row(method, "segmentation", name, i, value) for name, value in found.items()]
    judges = JUDGES["perturbation"], JUDGES["segmentation"]
    facts = {"model": "a <model>", "dataset": "data", "target": "predicted", **facts}
    table = pa.Table.from_pylist(rows, SCHEMA)
    examples = [Example("0.png", torch.rand(3, 32, 32), {name: torch.rand(4, 4) for name in VALUES})]
    return Results(table, judges, {"7.png": "7.png: <broken>"}, {"gone": "no & way"}, facts, tuple(examples))


@pytest.fixture(scope="module")
def results():
    return make()


def cells(table):
    return {(method, column.metric.name): cell for (method, column), cell in table.cells.items()}


def test_means_and_intervals_are_those_of_scipy(results):
    found = cells(results.table(resamples=500))
    for method, values in VALUES.items():
        expected = scipy.stats.bootstrap(
            (values,), np.mean, n_resamples=500, method="BCa", random_state=np.random.default_rng(0)
        ).confidence_interval
        interval = found[method, "negative"].interval
        assert interval.estimate == pytest.approx(values.mean())
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
        assert (interval.n, interval.undefined) == (N, 0)


def test_the_best_is_compared_with_each_by_wilcoxon_and_holm(results):
    found = cells(results.table(resamples=50))
    best = max(VALUES, key=lambda name: VALUES[name].mean())
    others = [name for name in VALUES if name != best]
    raw = np.array([scipy.stats.wilcoxon(VALUES[name], VALUES[best]).pvalue for name in others])
    order = np.argsort(raw)
    adjusted = np.empty(3)
    adjusted[order] = np.minimum(np.maximum.accumulate(raw[order] * np.array([3, 2, 1])), 1)
    assert [found[name, "negative"].p_versus_best for name in others] == pytest.approx(adjusted.tolist())
    assert found[best, "negative"].is_best
    assert found[best, "negative"].p_versus_best is None
    assert not found[best, "negative"].is_clear  # one of the others is as good
    assert [found[name, "negative"].is_tied for name in others] == [p >= 0.05 for p in adjusted]
    assert found[best, "negative"].is_tied  # and so shares the first place
    without = {name: values for name, values in VALUES.items() if name not in ("near", "best")} | {"best": BASE + 0.3}
    alone = cells(make(without).table(resamples=50))
    assert alone["best", "negative"].is_clear
    assert not any(cell.is_tied for (_, metric), cell in alone.items() if metric == "negative")


def test_the_direction_of_the_metric_decides_what_is_best():
    rows = make(counts={}).rows
    lower = rows.set_column(2, "metric", pa.array(["positive"] * rows.num_rows))
    table = Results(lower, (JUDGES["perturbation"],)).table(resamples=50)
    assert [method for (method, _), cell in table.cells.items() if cell.is_best] == ["<odd> & |names|_"]
    assert "positive ↓" in str(table)


def test_data_set_miou_is_pooled_from_counts(results):
    found = cells(results.table(resamples=200))
    for method, table in COUNTS.items():
        scores = {name: torch.tensor(table[:, i]) for i, name in enumerate(("tp", "fp", "fn", "tn"))}
        no = torch.zeros(N, dtype=torch.bool)
        empty = {name: torch.zeros(N) for name in ("miou_image", "iou", "f1", "ap", "ap_two_class", "f1_rows")}
        totals = segmentation_totals({**scores, **empty, "undefined": no, "no_foreground": no})
        interval = found[method, "miou_dataset"].interval
        assert interval.estimate == pytest.approx(totals["miou_dataset"])
        assert interval.low < interval.estimate < interval.high
        assert interval.estimate != pytest.approx(found[method, "miou_image"].interval.estimate, abs=1e-4)


def test_undefined_values_are_left_out_in_pairs_and_counted():
    values = {"a": np.array([1.0, 2, 3, np.nan, 5, 6]), "b": np.array([0.0, 1, np.nan, 3, 4, 4])}
    table = make(values, {}).table(resamples=50)
    found = cells(table)
    assert found["a", "negative"].interval.estimate == pytest.approx(3.4)
    pairs = scipy.stats.wilcoxon([1, 1, 1, 2]).pvalue
    assert found["b", "negative"].p_versus_best == pytest.approx(pairs)
    text = str(table)
    assert "| undefined |" in text
    assert text.count("| 1 |") == 2
    assert "undefined" not in str(make().table(resamples=50))


def test_a_method_without_any_defined_value_has_no_say():
    values = {"a": np.arange(8.0), "b": np.arange(8.0) - 1, "none": np.full(8, np.nan)}
    found = cells(make(values, {}).table(resamples=50))
    assert found["none", "negative"].interval.undefined == 8
    assert found["a", "negative"].is_clear
    assert "| none | - |" in str(make(values, {}).table(resamples=50))


def test_one_method_alone_is_not_bold():
    found = cells(make({"a": BASE}, {}).table(resamples=50))
    assert found["a", "negative"].is_best
    assert not found["a", "negative"].is_clear
    assert not found["a", "negative"].is_tied


def test_correctly_classified_images_only(results):
    table = results.table(correct_only=True, resamples=50)
    kept = [i for i in range(N) if i % 3]
    assert table.images == len(kept)
    assert cells(table)["worse", "negative"].interval.estimate == pytest.approx(BASE[kept].mean())
    wrong = results.rows.set_column(10, "correct", pa.array([None] * results.rows.num_rows, pa.bool_()))
    with pytest.raises(ArgumentError, match="no correctly classified"):
        Results(wrong, results.judges).table(correct_only=True)


def test_formats(results, tmp_path):
    markdown = results.to_markdown(tmp_path / "t.md").read_text()
    assert r"| \<odd> & \|names\|_ | " in markdown
    assert "### perturbation" in markdown
    latex = results.to_latex(tmp_path / "t.tex").read_text()
    assert r"$<$odd$>$ \& $|$names$|$\_ &" in latex
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 2
    assert r"negative $\uparrow$" in latex
    lines = list(csv.DictReader(io.StringIO(results.to_csv(tmp_path / "t.csv").read_text())))
    assert len(lines) == 4 * 3
    assert float(lines[0]["value"]) == VALUES["best"].mean()
    assert lines[0]["better"] == "higher"
    assert pq.read_table(results.to_parquet(tmp_path / "rows.parquet")).equals(results.rows)


def test_names_that_are_commands_elsewhere(tmp_path):
    name = r"a$_$^{2} #1 100% ~c\d `e` *f*"
    found = make({name: BASE, "b": BASE - 1}, {})
    escaped = r"a\$\_\$\textasciicircum{}\{2\} \#1 100\% \textasciitilde{}c\textbackslash{}d `e` *f* &"
    assert escaped in latex(found, tmp_path / "t.tex")
    assert r"| a$_$^{2} #1 100% ~c\\d \`e\` \*f\* |" in markdown(found, tmp_path / "t.md")
    assert html.escape(name) in page(found, tmp_path / "report.html")


FIRST = np.arange(9.0) + 1
ALIKE = FIRST + np.array([1, -1, 1, -1, 1, -1, 1, -1, -1.0])


def markdown(results, path):
    return results.to_markdown(path).read_text()


def latex(results, path):
    return results.to_latex(path).read_text()


def page(results, path):
    return results.report(path).read_text().split("<details")[0]  # without the table of correct answers


def terminal(results, path):
    cells = [_cell(cell) for cell in results.table().cells.values()]
    return "".join(f"{'<b>' if 'bold' in str(cell.style) else ''}{cell.plain}\n" for cell in cells)


@pytest.mark.parametrize(
    ("write", "bold", "tied"),
    [
        (markdown, "| **", "] ≈ |"),
        (latex, r"& \textbf{", r"] $\approx$"),
        (page, "<strong>", "] ≈<"),
        (terminal, "<b>", " ≈\n"),
    ],
    ids=["markdown", "latex", "html", "terminal"],
)
def test_one_is_bold_or_the_best_and_all_like_it_are_marked(write, bold, tied, tmp_path):
    one = write(make({"a": FIRST, "b": FIRST - 1, "c": FIRST - 2}, {}), tmp_path / "one")
    several = write(make({"a": FIRST, "b": ALIKE, "c": FIRST - 2}, {}), tmp_path / "several")
    none = write(make({"a": FIRST}, {}), tmp_path / "none")
    assert [(text.count(bold), text.count(tied)) for text in (one, several, none)] == [(1, 0), (0, 2), (0, 0)]


def test_marks_in_csv(tmp_path):
    several = make({"a": FIRST, "b": ALIKE, "c": FIRST - 2}, {})
    lines = csv.DictReader(io.StringIO(several.to_csv(tmp_path / "t.csv").read_text()))
    marks = [(line["best"], line["significantly_best"], line["shares_first"]) for line in lines]
    assert marks == [("1", "0", "1"), ("0", "0", "1"), ("0", "0", "0")]


class Checker(HTMLParser):
    """Collects texts and images; fails where tags do not nest."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.sources = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.sources += [value for key, value in attrs if key in ("src", "href")]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_report_is_whole_and_alone(results, tmp_path):
    path = results.report(tmp_path / "deep" / "report.html")
    checker, page = Checker(), path.read_text()
    assert page.count("<table>") == page.count('<div class="wide"><table>') > 0
    assert "right / 1rem 100% no-repeat" in page  # the shadow of what a wide table hides at its right
    checker.feed(page)
    checker.close()
    assert checker.open == []
    text = " ".join(checker.texts)
    for wanted in (*VALUES, "a <model>", "7.png: <broken>", "gone", "no & way", "8 correctly classified", "explained"):
        assert wanted in text
    assert len(checker.sources) == 4  # one curve, the ranks of two protocols, one example
    assert all(source.startswith("data:image/png;base64,") for source in checker.sources)


def test_nothing_to_show(tmp_path):
    empty = Results(SCHEMA.empty_table(), (JUDGES["perturbation"],), {"a": "broken"})
    with pytest.raises(ArgumentError, match="there are no rows; 1 samples could not be used"):
        empty.report(tmp_path / "r.html")
