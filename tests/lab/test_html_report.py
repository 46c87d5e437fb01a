"""The HTML report: one page that loads nothing, says what was found, and works in a real browser."""

import json
import re
from html.parser import HTMLParser

import pytest
from synthetic import records_of

from browser import browser_page  # noqa: F401
from gasam.lab import record as records
from gasam.lab.report import html

HOSTILE = "</script><script>document.title = 'broken'</script> <b> & \"quotes\""
VOID = {"meta", "link", "input", "br", "line"}


def digits():
    """Three seeds with walks, one method of which a seed diverged, and a note that looks like markup."""
    data = {"hash": "digits-data", "encoding": 1, "notes": [HOSTILE]}
    scores = {"baseline": [80.0, 81.0, 82.5], "sam": [81.0, None, 82.0], "ga-sam": [82.0, 83.5, 84.0]}
    made = records_of("digits", scores, size="tiny", data=data)
    for each in made:
        if each.method != "baseline":
            each.curve = [
                row | {"walk": {"strength": 0.5, "ratio": 0.01 * each.seed, "rise": 0.1}} for row in each.curve
            ]
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up runs of `digits`, and a task with a single seed."""
    place = tmp_path_factory.mktemp("report")
    single = records_of("numerals", {"baseline": [10.0], "ga-sam": [11.0]}, size="tiny")
    for each in (*digits(), *single):
        records.write(place / f"{each.name}.json", each)
    return place


@pytest.fixture(scope="module")
def page(folder, shared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GASAM_CACHE", str(shared / "cache"))
        _, _, faults = html.write_folder(folder, folder / "report.html")
    assert not faults
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
    shown = html.TEMPLATES.from_string("{{ spec | tojson }}").render(spec={"label": HOSTILE})
    assert "<" not in shown
    assert json.loads(shown) == {"label": HOSTILE}


def test_every_comparison_is_in_the_contents_and_every_run_in_the_table(page, folder):
    elements = Elements(page.read_text())
    words = " ".join(elements.words)
    for anchor in ("digits-size-tiny", "numerals-size-tiny"):
        assert any(found.get("href") == f"#{anchor}" for tag, found in elements.seen if tag == "a")
        assert any(found.get("id") == anchor for tag, found in elements.seen if tag == "section")
    for file in folder.glob("*.json"):
        assert file.name in words
    assert "Compared with plain training: 1 better, 1 too few seeds." in words


def test_many_configurations_begin_with_the_main_ones():
    methods = {f"GA-SAM ({number})": "ga-sam" for number in range(11)} | {"Baseline": "baseline"}
    assert [each["label"] for each in html.chips(methods) if each["shown"]] == ["GA-SAM (0)", "Baseline"]
    assert all(each["shown"] for each in html.chips(dict(list(methods.items())[:3])))


def test_the_command_lists_the_runs_and_writes_the_page(command, tmp_path):
    told = command("report", tmp_path).refused()
    assert told == f"no records in {tmp_path}: train something first, or name another folder\n"
    folder = tmp_path / "runs"
    for each in digits():
        records.write(folder / f"{each.name}.json", each)
    (folder / "torn.json").write_text('{"task": ')
    ended = command("report", folder, "--html", tmp_path / "new" / "page.html").done()
    assert "digits, size tiny: GA-SAM is better than Baseline" in ended.out
    assert ended.out.splitlines()[-1] == f"saved: {tmp_path / 'new' / 'page.html'}"
    assert "torn.json is not a record" in ended.err
    assert all(each.name in ended.out for each in digits())
    told = json.loads(command("report", folder, "--json").out)
    assert told["file"] == str(folder / "report.html")
    assert [answer["standing"] for answer in told["answers"]] == ["better"]
    assert len(told["runs"]) == len(command("report", folder, "--csv").out.splitlines()) - 1 == len(digits())
    assert command("report", folder, "--csv", "--json").code == 2


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
    assert len(charts) == 2 + 3 + 2, "two charts a comparison, three of the walks"
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
    """Sorting, filtering, tooltips, and names that hide lines."""
    found = browser_page(page)
    shown = drawn(found)
    rows = "#all-runs tbody tr:visible"
    every = shown.locator(rows).count()

    shown.click("#all-runs th:nth-child(8) button")
    values = "[...document.querySelectorAll('#all-runs tbody td:nth-child(8)')].map(cell => cell.dataset.value)"
    scores = [float(value) for value in shown.evaluate(values) if value is not None]
    assert scores == sorted(scores)
    assert shown.evaluate(values)[-1] is None, "a run without a score comes last"
    shown.click("#all-runs th:nth-child(8) button")
    assert [float(value) for value in shown.evaluate(values) if value is not None] == scores[::-1]
    assert shown.evaluate(values)[-1] is None
    shown.fill(".filters input", "digits ga-sam")
    assert shown.locator(rows).count() == 3
    assert shown.text_content(".filters output") == f"3 of {every} runs"

    marks = shown.locator("#digits-size-tiny .chart >> nth=0").locator("path[aria-roledescription=point]")
    marks.last.hover()
    shown.wait_for_selector("#vg-tooltip-element.visible")
    assert "GA-SAM" in shown.text_content("#vg-tooltip-element")
    visible = "document.querySelectorAll('#digits-size-tiny .charts:not(.small) figure:first-child path').length"
    every = shown.evaluate(visible)
    shown.click("#digits-size-tiny .chip[data-label='GA-SAM']")
    shown.wait_for_function(f"every => {visible} < every", arg=every)
    assert found.errors == []
