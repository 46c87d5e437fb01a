"""The HTML report: one page that loads nothing, says what was found, and works in a real browser."""

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from synthetic import record, records_of

from browser import browser_page  # noqa: F401
from gasam.lab import records
from gasam.lab.report import chart_data, html_page
from gasam.lab.report.answers import answer_of, headline
from gasam.lab.report.charts import _placed, curves, over_epochs
from gasam.lab.report.frame import group_runs
from gasam.lab.report.html_sections import Run, sections
from gasam.lab.report.run_list import read_runs

ROOT = Path(__file__).parents[2]
HOSTILE = "</script><script>document.title = 'broken'</script> <b> & \"quotes\""
VOID = {"meta", "link", "input", "br", "line"}


def with_walks(made, ratio):
    walk = {"walks": 100, "strength": 0.5, "ratio": ratio, "largest_ratio": 2 * ratio, "rise": 0.1, "capped": 0.25}
    return made.model_copy(update={"curve": [row | {"walk": walk | {"predicted_rise": 0.09}} for row in made.curve]})


def digits():
    """Three seeds with walks, one method of which a seed diverged, and a note that looks like markup."""
    data = {"hash": "digits-data", "notes": [HOSTILE]}
    scores = {"baseline": [80.0, 81.0, 82.5], "sam": [81.0, None, 82.0], "ga-sam": [82.0, 83.5, 84.0]}
    made = records_of("digits", scores, size="tiny", data=data)
    return [each if each.method == "baseline" else with_walks(each, 0.01 * each.seed) for each in made]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Real runs and analyses of a language model, made-up runs of `digits`, and a task with a single seed."""
    place = tmp_path_factory.mktemp("report")
    (place / "analysis").mkdir()
    for file in (ROOT / "results").glob("ptb-small-*.json"):
        shutil.copy(file, place)
    for file in (ROOT / "results/analysis").glob("*-ptb-*.json"):
        shutil.copy(file, place / "analysis")
    single = records_of("numerals", {"baseline": [10.0], "ga-sam": [11.0]}, size="tiny")
    for each in (*digits(), *single):
        records.write(place / f"{each.task}-{each.method}-{each.seed}.json", each)
    rows = [{"label": "Baseline", "step_time": 1.0}, {"label": "GA-SAM", "step_time": 2.2}, {"label": "SAM"}]
    (place / "tables").mkdir()
    (place / "tables/digits-tiny.json").write_text(json.dumps({"title": "digits, size tiny", "rows": rows}))
    return place


@pytest.fixture(scope="module")
def page(folder, shared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GASAM_CACHE", str(shared / "cache"))
        html_page.write(html_page.of_runs(read_runs(folder)[0], folder), folder / "report.html")
    return folder / "report.html"


class Elements(HTMLParser):
    """The elements of a page; raises if they are not nested."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.scripts, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open[-1:] == ["script"] else self.words).append(data)


def test_the_page_is_one_file_that_refers_to_nothing_but_records(page):
    elements = Elements(page.read_text())
    tags = [tag for tag, _ in elements.seen]
    assert not {"img", "iframe", "object", "embed", "base"} & set(tags)
    assert all("src" not in found for _, found in elements.seen)
    links = [found["href"] for tag, found in elements.seen if tag in ("a", "link")]
    assert not [link for link in links if re.match(r"(\w+:)?//", link)]
    named = {found["id"] for _, found in elements.seen if "id" in found}
    for link in links:
        assert link == "data:," or link[1:] in named or (page.parent / link).is_file(), link
    [policy] = [found["content"] for _, found in elements.seen if "http-equiv" in found]
    assert policy.startswith("default-src 'none'")
    assert page.stat().st_size < 2e6


def test_text_of_records_is_escaped(page):
    elements = Elements(page.read_text())
    assert HOSTILE in re.sub(r"\s+", " ", "".join(elements.words)).replace("Data: ", "")
    kinds = [found.get("type") for tag, found in elements.seen if tag == "script"]
    assert set(kinds) == {"application/json", None}
    assert kinds.count(None) == 2, "the library and the page's own script"
    shown = html_page.TEMPLATES.from_string("{{ spec | tojson }}").render(spec={"label": HOSTILE})
    assert "<" not in shown
    assert json.loads(shown) == {"label": HOSTILE}


def test_every_section_is_in_the_contents_and_every_run_in_the_table(page, folder):
    elements = Elements(page.read_text())
    words = " ".join(elements.words)
    for title in ("digits, size tiny", "numerals, size tiny", "ptb, size small"):
        anchor = title.replace(", ", "-").replace(" ", "-")
        assert any(found.get("href") == f"#{anchor}" for tag, found in elements.seen if tag == "a")
        assert any(found.get("id") == anchor for tag, found in elements.seen if tag == "section")
    for file in folder.glob("*.json"):
        assert file.name in words
    assert "Of 3 comparisons with the baseline: " in words
    assert "Robustness of the weights: L2, up to collapse" in words


def test_answers_say_what_the_seeds_allow():
    def told(scores, **options):
        return answer_of(group_runs(records_of("digits", scores, size="tiny", **options)))

    better = told({"baseline": [80.0, 81.0, 82.0], "ga-sam": [83.0, 84.1, 84.9]})
    assert better.standing == "better"
    assert better.sentence.startswith("GA-SAM is better than the baseline: +3.00 [")
    single = told({"baseline": [80.0], "ga-sam": [83.0]})
    assert single.standing == "too few seeds"
    assert single.sentence.startswith("Test accuracy, %: GA-SAM 83.00, Baseline 80.00. One seed decides nothing")
    assert told({"baseline": [80.0, 81.0]}).sentence == (
        "Only plain training was run. Test accuracy, %: Baseline 80.00 and 81.00 over 2 seeds."
    )
    assert told({"sam": [80.0]}).sentence.startswith("SAM has no baseline with a common seed.")
    assert told({"baseline": [80.0], "sam": [None]}).sentence == (
        "SAM diverged with every seed. Test accuracy, %: SAM diverged."
    )
    assert headline([single, better, better]) == "Of 3 comparisons with the baseline: 2 better, 1 with too few seeds."


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_fewer_than_three_seeds_are_shown_one_by_one(seeds):
    made = records_of("digits", {"baseline": [80.0, 81.0, 82.5][:seeds], "ga-sam": [82.0, 83.0, 84.0][:seeds]})
    groups = group_runs(made)
    series = chart_data.series_of(groups)
    means = [row for row in chart_data.differences(groups, series) if row["kind"] == "mean"]
    assert [("low" in row, "value" in row) for row in means] == [(seeds == 3, seeds == 3)]
    epochs = groups[0].settings["epochs"]
    curve = chart_data.over_epochs(groups, lambda point: point["valid"])
    assert len(curve) == 2 * epochs * (1 if seeds == 3 else seeds)
    assert all(("low" in row) == (seeds == 3) for row in curve)
    scores = chart_data.scores(groups, lambda group: group.passes)
    assert [row["kind"] for row in scores] == (["mean"] * 2 if seeds == 3 else ["seed"] * 2 * seeds)


def test_what_is_missing_is_absent():
    groups = group_runs(digits())
    assert [group.method for group in groups] == ["baseline", "sam", "ga-sam"]
    walks = dict(chart_data.walk_rows(groups, ["ratio", "rise", "never recorded"]))
    assert walks.keys() == {"ratio", "rise"}
    assert {row["label"] for row in walks["ratio"]} == {"SAM", "GA-SAM"}
    last = [row for row in walks["ratio"] if row["label"] == "GA-SAM"][-1]
    assert (last["low"], last["value"], last["high"]) == pytest.approx((0.01, 0.02, 0.03))
    assert chart_data.scores(groups, {"sam": 2.0}.get) == []
    old = [each.model_copy(update={"curve": []}) for each in digits()]
    [section] = sections([Run(Path(f"{number}.json"), each) for number, each in enumerate(old)])
    assert [chart.title for chart in section.charts] == ["Difference to the baseline", "Score against passes"]
    assert section.walks == []
    diverged = [run for run in section.runs if run.diverged]
    assert [(run.method, run.seed, run.test) for run in diverged] == [("SAM", 2, None)]


def test_step_times_come_from_the_table_of_a_comparison(folder):
    [section] = [section for section in html_page.of_runs(read_runs(folder)[0], folder) if section.task == "digits"]
    [chart] = [chart for chart in section.charts if chart.title == "Score against step time"]
    values = chart.spec["data"]["values"]
    assert {row["label"]: row["cost"] for row in values} == {"Baseline": 1.0, "GA-SAM": 2.2}


def test_names_in_a_chart_do_not_overlap():
    groups = group_runs(records_of("digits", {method: [80.0] for method in ("baseline", "sam", "asam", "ga-sam")}))
    rows = chart_data.scores(groups, lambda group: group.passes)
    rows.append(rows[0] | {"label": "GA-SAM", "value": 90.0})
    heights = sorted(row["at"] for row in _placed(rows, chart_data.series_of(groups)))
    assert min(b - a for a, b in pairwise(heights)) >= 10 * 15 / 300


def test_equal_values_have_an_axis_that_shows_no_rounding_errors():
    groups = group_runs(records_of("digits", {"baseline": [80.0]}))
    for value, shown in (
        (lambda point: 0.01 + 1e-17 * point["epoch"], pytest.approx([0.0095, 0.0105])),
        (lambda point: 0.01 * point["epoch"], None),
    ):
        spec = over_epochs(chart_data.over_epochs(groups, value), chart_data.series_of(groups), "")
        assert spec["layer"][0]["encoding"]["y"]["scale"].get("domain") == shown


def test_a_metric_below_zero_has_a_linear_axis():
    groups = group_runs(records_of("digits", {"baseline": [80.0]}))
    for value, kind in ((lambda point: -point["valid"], None), (lambda point: point["valid"], "log")):
        spec = curves(chart_data.over_epochs(groups, value), chart_data.series_of(groups), "", log=True)
        assert spec["layer"][0]["encoding"]["y"]["scale"].get("type") == kind


def test_many_configurations_begin_with_the_main_ones():
    walks = [{"epsilon": 0.001 * number} for number in range(1, 12)]
    made = [record("digits", "ga-sam", 80.0, walk=walk) for walk in walks] + records_of("digits", {"baseline": [80.0]})
    series = chart_data.series_of(group_runs(made))
    assert len(series) == 12
    assert [each.name.partition(" ")[0] for each in series if each.shown] == ["Baseline", "GA-SAM"]


def test_the_command_writes_the_page_beside_the_records(command, tmp_path):
    folder = tmp_path / "runs"
    for each in digits():
        records.write(folder / f"{each.method}-{each.seed}.json", each)
    ended = command("report", folder, "--html", tmp_path / "new" / "page.html")
    assert ended.code == 0
    assert "digits, size tiny: GA-SAM is better than the baseline" in ended.out
    assert ended.out.splitlines()[-1] == f"saved: {tmp_path / 'new' / 'page.html'}"
    assert "Comparison of training methods" in (tmp_path / "new" / "page.html").read_text()
    told = json.loads(command("report", folder, "--json").out)
    assert told["file"] == str(folder / "report.html")
    assert [answer["task"] for answer in told["answers"]] == ["digits"]
    assert (folder / "report.html").is_file()


def test_bad_folders_get_one_sentence(command, tmp_path):
    ended = command("report", tmp_path)
    assert ended.code == 2
    assert ended.err == f"gasam: no records in {tmp_path}: train something first, or name another folder\n"
    records.write(tmp_path / "a.json", record("digits", size="tiny"))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/b.json").write_text("[]")
    ended = command("report", tmp_path)
    assert ended.code == 2
    assert "b.json is not a table of this program" in ended.err


def drawn(found):
    found.page.wait_for_selector("html[data-drawn]", timeout=60_000)
    return found.page


MARKS = """[...document.querySelectorAll('.chart')].filter(each => !each.closest('details:not([open])')).map(chart => {
    const box = chart.querySelector('svg').getBoundingClientRect();
    return [box.width, box.height, chart.querySelectorAll('.role-mark path, .role-mark text, .role-mark line').length];
})"""


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1400, False)])
def test_charts_are_drawn_at_every_width_without_errors_or_a_network(browser_page, page, width, dark):  # noqa: F811
    found = browser_page(page, width, dark=dark)
    shown = drawn(found)
    assert found.errors == []
    assert {url.partition(":")[0] for url in found.requests} <= {"file", "data"}
    assert shown.title() == "Comparison of training methods"
    charts = shown.evaluate(MARKS)
    assert len(charts) >= 3 + 1 + 6 + 3
    for wide, high, marks in charts:
        assert min(width - 110, 250) < wide <= width
        assert high > 100
        assert marks > 0
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 28)" if dark else "rgb(246, 247, 249)"
    )
    shown.close()


def test_the_page_answers_to_its_reader(browser_page, page):  # noqa: F811
    """Sorting, filtering, tooltips, names that hide lines, analyses that open, and the theme."""
    found = browser_page(page)
    shown = drawn(found)
    rows = "#all-runs tbody tr:visible"
    every = shown.locator(rows).count()

    shown.click("#all-runs th:nth-child(9) button")
    values = "[...document.querySelectorAll('#all-runs tbody td:nth-child(9)')].map(cell => cell.dataset.value)"
    scores = [float(value) for value in shown.evaluate(values) if value is not None]
    assert scores == sorted(scores)
    assert shown.evaluate(values)[-1] is None, "a run without a score comes last"
    shown.click("#all-runs th:nth-child(9) button")
    assert [float(value) for value in shown.evaluate(values) if value is not None] == scores[::-1]
    assert shown.evaluate(values)[-1] is None
    shown.select_option(".filters select >> nth=0", "digits")
    assert shown.locator(rows).count() == 9
    shown.fill(".filters input", "ga-sam")
    assert shown.locator(rows).count() == 3
    assert shown.text_content(".filters output") == f"3 of {every} runs"

    marks = shown.locator("#digits-size-tiny .chart >> nth=0").locator("path[aria-roledescription=point]")
    before = marks.count()
    marks.last.hover()
    shown.wait_for_selector("#vg-tooltip-element.visible")
    assert "GA-SAM" in shown.text_content("#vg-tooltip-element")
    shown.click("#digits-size-tiny .chip[data-label='GA-SAM']")
    shown.wait_for_function("before => document.querySelectorAll('#digits-size-tiny figure:first-child "
                            "path[aria-roledescription=point]').length < before", arg=before)  # fmt: skip

    shown.click("#ptb-size-small details.analysis summary >> nth=0")
    line = shown.wait_for_selector("#ptb-size-small details.analysis .chart .mark-line path")
    assert line.bounding_box()["width"] > 200

    colours = "[document.body, document.querySelector('.chart .role-axis-label text'), " \
              "document.querySelector('.chart .mark-line path')].map(part => getComputedStyle(part)).map(" \
              "style => [style.backgroundColor, style.fill, style.stroke].join())"  # fmt: skip
    light = shown.evaluate(colours)
    shown.click("#theme")
    assert all(new != old for new, old in zip(shown.evaluate(colours), light, strict=True))
    shown.click("#theme")
    assert shown.evaluate(colours) == light
    assert found.errors == []
