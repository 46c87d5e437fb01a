"""The pages of results, README's table and their pictures: made from records, never stale, and short enough to read."""

import json
import re
from pathlib import Path

import pytest
from synthetic import COMMIT, finding_of, record, records_of, response

from gasam.lab.errors import InputError
from gasam.lab.records import as_json
from gasam.lab.report import pages
from gasam.lab.report.contents import Contents
from gasam.lab.report.frame import groups_of
from gasam.lab.report.sections import every, study_sections, task_sections
from gasam.lab.storage import write_json

ROOT = Path(__file__).parents[2]
README = "# gasam\n\nBefore.\n\n<!-- results -->\nold\n<!-- /results -->\n\nAfter.\n"
SCORES = {"baseline": [84.4, 84.5, 84.2, 84.6], "ga-sam": [86.0, 86.2, 85.8, 86.1]}
LINKED = re.compile(r"\]\(\.\./(figures/[^)]+)\)")
PAGES = [ROOT / "docs/results.md", *sorted((ROOT / "docs/results").glob("*.md"))]


def checkout(folder, runs):
    (folder / "README.md").write_text(README)
    (folder / "results").mkdir(exist_ok=True)
    for number, run in enumerate(runs):
        write_json(folder / "results" / f"{number}.json", as_json(run))
    return folder


def written(*runs):
    """The texts of all pages by their name."""
    found = Contents(list(runs))
    return {file.stem: text for file, text in pages.pages(found, every(found)).items()}


def block(*runs):
    """README's part."""
    return pages.rendered("readme", Contents(list(runs)))


def rows(text):
    """The cells of each line of a table in Markdown."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def headings(text, level="#+"):
    return re.findall(rf"^{level} (.*)$", text, flags=re.MULTILINE)


def test_the_page_readme_and_pictures_of_this_repository_are_not_stale():
    assert pages.stale(ROOT) == [], "run `gasam results --write .`"


def test_pages_have_one_question_each_and_can_be_read():
    names = ["ablations", "de-en", "earlier", "en-vi", "family", "flatness", "imdb", "mnist", "paper", "ptb", "reading"]
    assert [file.stem for file in PAGES] == ["results", *names, "tuning"]
    for file in PAGES:
        text = file.read_text()
        lines = text.splitlines()
        assert max(map(len, lines)) <= 400, file
        assert len(text.split()) <= 5000, file
        assert lines[0].endswith("?"), file
        assert "reading.md" in text or headings(text, "##")[-1] == "How to read this page" or file.stem == "reading"
        assert "not reproduced" not in text
        tables = [line for line in lines if line.startswith("|")]
        bars = [line.replace("\\|", "").count("|") for line in tables]
        assert max(bars, default=0) <= 10, f"{file}: more than 9 columns"


def test_every_link_of_a_page_leads_somewhere_and_every_picture_is_shown_once():
    pictures, tables = [], []
    for file in PAGES:
        text = file.read_text()
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (file.parent / link).exists(), (file, link)
        pictures += LINKED.findall(text)
        tables += re.findall(r"\]\(\.\./data/([^)]+)\)", text)
    assert len(pictures) > 20
    assert sorted(file.name for file in (ROOT / "docs/data").iterdir()) == sorted(tables)
    assert sorted(f"figures/{file.name}" for file in (ROOT / "docs/figures").iterdir()) == sorted(pictures)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "zensical.toml").read_text()
    assert all(f'"{file.relative_to(ROOT / "docs").as_posix()}"' in navigation for file in PAGES)


def test_two_seeds_have_no_interval_on_any_page():
    rows_of_two = [line for file in PAGES for line in file.read_text().splitlines() if "(2 seeds" in line]
    assert rows_of_two
    assert not any("[" in line for line in rows_of_two)


def test_pages_are_stale_until_written_and_whenever_a_record_changes(tmp_path):
    checkout(tmp_path, records_of("imdb", SCORES))
    names = ("results", "results/reading", "results/imdb", "results/paper")
    every_page = [*(f"docs/{name}.md" for name in names), "README.md"]
    assert pages.stale(tmp_path) == every_page
    assert pages.write(tmp_path) == [tmp_path / file for file in every_page]
    assert pages.stale(tmp_path) == []
    assert pages.write(tmp_path) == []

    first = json.loads((tmp_path / "results/0.json").read_text())
    (tmp_path / "results/0.json").write_text(json.dumps(first | {"test": 99.0}))
    with_numbers = [file for file in every_page if "reading" not in file]
    assert pages.stale(tmp_path) == with_numbers
    (tmp_path / "results/0.json").write_text(json.dumps(first))
    assert pages.stale(tmp_path) == []
    file = tmp_path / "docs/results.md"
    file.write_text(file.read_text().replace("84.42", "84.43"))
    assert pages.stale(tmp_path) == ["docs/results.md"]
    (tmp_path / "results/7.json").unlink()
    assert pages.stale(tmp_path) == with_numbers


def another_colour(file):
    text = file.read_text()
    assert "#d55e00" in text
    file.write_text(text.replace("#d55e00", "#d55e01"))


@pytest.mark.parametrize("spoil", [Path.unlink, another_colour])
def test_a_picture_that_is_missing_or_another_is_stale_and_drawn_again(tmp_path, spoil, command):
    checkout(tmp_path, records_of("imdb", SCORES))
    found = finding_of("imdb", "sam", [response(81.0, exponent=-3)])
    write_json(tmp_path / "results" / "tuning" / "a.json", found.as_json())
    picture = tmp_path / "docs" / "figures" / "tuning-imdb-small.svg"
    assert picture in pages.write(tmp_path)
    drawn = picture.read_text()
    spoil(picture)
    assert pages.stale(tmp_path) == ["docs/figures/tuning-imdb-small.svg"]
    ended = command("results", "--write", tmp_path)
    assert ended.out.split() == ["wrote", str(picture)]
    assert picture.read_text() == drawn
    write_json(tmp_path / "results" / "tuning" / "a.json", finding_of("imdb", "sam", [response(82.0)]).as_json())
    assert "docs/figures/tuning-imdb-small.svg" in pages.stale(tmp_path), "another result is another picture"


def test_every_picture_that_the_page_shows_is_written(tmp_path):
    """Of a search, and of figures of the paper, which are drawn from their numbers."""
    checkout(tmp_path, records_of("imdb", SCORES))
    found = finding_of("imdb", "sam", [response(81.0, exponent=-3)])
    write_json(tmp_path / "results" / "tuning" / "a.json", found.as_json())
    runs, layers = (
        {"en-vi, seed 1": [1.0, 2.0]},
        {"encoder": {"1": [1.0, 2.0], "2": [3.0, 2.0]}, "decoder": {"1": [1.0]}},
    )
    for name, norms in (("figure4-small", runs), ("figure5-small", layers)):
        value = {"title": f"Norms {name}", "sentence": "they rise", "norms": norms}
        write_json(tmp_path / "results" / "figures" / f"{name}.json", value)
    written = pages.write(tmp_path)
    texts = [(tmp_path / f"docs/results/{name}.md").read_text() for name in ("paper", "tuning")]
    linked = LINKED.findall("".join(texts))
    assert sorted(linked) == [f"figures/{name}.svg" for name in ("figure4-small", "figure5-small", "tuning-imdb-small")]
    assert {tmp_path / "docs" / name for name in linked} <= set(written)
    assert "They rise." in texts[0]
    assert "Verdict: undecided (one run; en-vi, seed 1: they grow)." in texts[0]
    assert "Figure 4" not in texts[0].split("##")[0], "its title is another here"


def test_readme_keeps_all_that_is_outside_of_the_markers(tmp_path):
    pages.write(checkout(tmp_path, records_of("imdb", SCORES)))
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# gasam\n\nBefore.\n\n<!-- results -->\n")
    assert text.endswith("<!-- /results -->\n\nAfter.\n")
    assert "old" not in text
    assert rows(text)[2:] == [
        ["Baseline", "84.42"],
        ["GA-SAM", "86.03 (+1.60)"],
    ]


def test_readme_has_plain_training_that_was_as_expensive():
    runs = [
        record("imdb", method, score + seed, seed=seed, settings=settings, gradient_evaluations=cost)
        for method, score, settings, cost in (
            ("baseline", 80.0, {}, 100),
            ("baseline", 80.5, {"epochs": 99}, 200),
            ("ga-sam", 81.0, {}, 200),
        )
        for seed in (1, 2, 3)
    ]
    assert rows(block(*runs))[2:] == [
        ["Baseline", "82.00"],
        ["Baseline, as expensive as GA-SAM", "82.50 (+0.50)"],
        ["GA-SAM", "83.00 (+1.00)"],
    ]


def test_readme_says_what_diverged_and_which_settings_are_other_ones():
    runs = records_of("imdb", {"baseline": [84.4, 84.5], "ga-sam": [86.0, None], "sam": [None, None]})
    longer = records_of("ptb", {"baseline": [190.0]}, settings={"epochs": 99})
    cells = {row[0]: row[1:] for row in rows(block(*runs, *longer, *records_of("ptb", {"ga-sam": [180.0]})))}
    assert cells["GA-SAM"][0].startswith("86.00, 1 of 2 diverged (")
    assert cells["SAM"][0].startswith("diverged")
    assert cells["SAM"][1] == "not run"
    assert cells["Baseline"][1] == "190.00 (epochs 99)"


def test_readme_without_markers_is_refused(tmp_path):
    checkout(tmp_path, []).joinpath("README.md").write_text("# gasam\n")
    with pytest.raises(InputError, match="has no place for results"):
        pages.write(tmp_path)


def test_without_records_page_and_readme_say_so_and_have_no_table(tmp_path):
    pages.write(checkout(tmp_path, []))
    for file in ("docs/results.md", "README.md"):
        text = (tmp_path / file).read_text()
        assert "Nothing has been measured" in text
        assert "|" not in text


def test_twins_and_the_users_own_data_are_no_evidence():
    runs = [*records_of("docstrings", SCORES), record("classify"), record("digits")]
    assert written(*runs) == written()
    assert block(*runs) == block()
    assert written(*runs, record("imdb")) == written(record("imdb"))


def test_each_table_names_its_runs_their_commits_and_one_command():
    notes = {"hash": "x", "notes": ["two classes instead of three"]}
    runs = [*records_of("imdb", SCORES, data=notes), record("ptb", dirty=True, commit="f" * 40)]
    [[imdb], [ptb]] = (list(task_sections(Contents(runs), task)) for task in ("imdb", "ptb"))
    assert (imdb.title, ptb.title) == ("Size small", "Size small")
    assert any("- Data: two classes instead of three." in part for part in imdb.parts)
    assert f"8 runs of commits {COMMIT[:7]}." in imdb.parts[-2]
    commands = re.findall(r"`(gasam [^`]*)`", imdb.parts[-1])
    assert commands == ["gasam compare imdb --size small@1 --methods baseline,ga-sam --seeds 4"]
    assert "1 run of commits fffffff with changes." in ptb.parts[-2]
    [table] = study_sections(Contents(runs))
    assert table.title.startswith("Table 1")
    assert re.findall(r"`(gasam [^`]*)`", table.parts[-1]) == [
        "gasam reproduce table1 --size small --tasks imdb,ptb --seeds 4"
    ]
    assert "9 runs" in table.parts[-2]


def test_commands_of_tuned_runs_use_what_was_tuned():
    runs = [
        record("imdb"),
        record("imdb", "ga-sam", walk={"epsilon": 5e-4}, epsilon_source="tuned on validation, 6 tries"),
    ]
    [section] = task_sections(Contents(runs), "imdb")
    assert section.parts[-1].endswith("--seeds 1 --tuned --out results`.")
    [table] = study_sections(Contents([*runs, record("ptb")]))
    assert "--tasks imdb --seeds 1 --tuned --out results`" in table.parts[-1]
    assert "`--tuned` for ptb" in table.parts[-1], "ptb was not tuned: its command would find no search"


def test_a_table_of_the_paper_is_shown_as_soon_as_it_has_runs_of_its_own():
    runs = [*records_of("imdb", SCORES), record("imdb", "ga-sam", 85.0, walk={"steps": 3}, identity="another")]
    assert [section.title[:7] for section in study_sections(Contents(runs))] == ["Table 1", "Table 3"]
    assert [section.title[:7] for section in study_sections(Contents(runs[:-1]))] == ["Table 1"]


def test_pages_without_records_are_left_out_and_the_summary_links_the_others():
    found = written(*records_of("imdb", SCORES))
    assert list(found) == ["results", "reading", "imdb", "paper"]
    assert set(re.findall(r"\]\(results/(\w+)\.md\)", found["results"])) == {"imdb", "paper", "reading"}
    assert headings(found["imdb"], "##") == ["Size small"]


def test_a_version_that_a_newer_one_replaced_is_on_the_page_of_earlier_versions():
    newer = {"baseline": [86.4, 86.5, 86.2], "ga-sam": [86.6, 86.4, 86.5]}
    steps = records_of("imdb", {"ga-sam": [85.0] * 3}, walk={"steps": 3})
    old = [*records_of("imdb", SCORES), *steps]
    found = written(*old, *records_of("imdb", newer, size="small@2"))
    assert headings(found["imdb"], "##") == ["Size small@2"]
    assert headings(found["earlier"], "##") == ["imdb, size small", "imdb, size small: parts of GA-SAM"]
    assert "imdb, size small: GA-SAM is better than the baseline: +1.60 [" in found["earlier"].split("##")[0]
    assert "](earlier.md)" in found["imdb"]
    assert "ablations" not in found
    assert "[imdb](results/earlier.md#imdb-size-small) | small |" in found["results"]


def test_table_1_is_judged_again_on_the_newest_version():
    """With recommended walks only; ptb has one version, whose walks are the paper's."""
    scores = {"baseline": [86.4, 86.5, 86.2], "asam": [86.3, 86.6, 86.2], "ga-sam": [86.9, 86.9, 86.7]}
    newer = records_of("imdb", scores, size="small@2")
    tuned = records_of("imdb", {"ga-sam": [80.0] * 3}, size="small@2", walk={"budget": 1.0})
    old = [*records_of("imdb", SCORES), *records_of("ptb", SCORES)]
    text = written(*old, *newer, *tuned)["paper"]
    told = "with our recommended walks in place of the paper's epsilons: 1 reproduced, 1 contradicted, 3 not run."
    assert f"- Table 1 on imdb, size small@2, {told}" in text
    section = text.split("## Table 1 with recommended walks: imdb, size small@2")[1].split("\n## ")[0]
    found = {row[0]: row for row in rows(section)[2:]}
    assert found["GA-SAM"][1].startswith("+0.47 [")
    assert [found[name][-2] for name in ("ASAM", "GA-SAM", "SAM")] == ["contradicted", "reproduced", "not run"]
    assert len(rows(section)) == 2 + 6
    assert "From 9 runs" in section
    assert "`gasam compare imdb --size small@2 --methods baseline,asam,ga-sam --seeds 3`" in section
    assert text.count("## Table 1 with recommended walks") == 1


def test_a_control_does_not_replace_a_version():
    old = records_of("imdb", SCORES)
    plain = records_of("imdb", {"baseline": [86.4, 86.5, 86.2]}, size="small@3")
    control = records_of("imdb", {"ga-sam": [86.6, 86.4, 86.5]}, size="small@3", walk={"budget": 1e-6})
    found = written(*old, *plain, *control)
    assert "earlier" not in found
    assert "Size small" in headings(found["imdb"], "##")


def test_sections_have_contents():
    for file in PAGES:
        lines = [line for line in file.read_text().splitlines() if line]
        for line, following in zip(lines, [*lines[1:], "## End"], strict=True):
            assert not (line.startswith("## ") and following.startswith("## ")), f"{file}: {line} is empty"


def test_a_version_is_not_replaced_before_the_newer_one_decides_something():
    newer = records_of("imdb", {"baseline": [86.4, 86.5], "ga-sam": [86.6, 86.4]}, size="small@2")
    found = written(*records_of("imdb", SCORES), *newer)
    assert headings(found["imdb"], "##") == ["Size small@2", "Size small"]
    assert "earlier" not in found


FAMILY = {
    "baseline": [84.0, 84.4, 84.2],
    "sam": [84.3, 84.8, 84.4],
    "gsam": [86.0, 86.4, 86.21],
    "wsam": [83.0, 84.9, 83.0],
}


def test_the_family_has_a_page_that_corrects_for_the_number_of_methods():
    runs = [*records_of("docstrings", FAMILY, size="small@2"), *records_of("imdb", FAMILY, size="small")]
    text = written(*runs)["family"]
    assert headings(text, "##")[:-1] == ["imdb, size small", "docstrings, size small@2"]
    assert "docstrings, size small@2, 3 seeds, corrected for 3 methods: better than plain training: GSAM." in text
    groups = {group.method: group for group in groups_of(runs, "docstrings", "small@2")}
    assert groups["sam"].standing(groups["baseline"]) == "better", "only if it is looked at alone"
    assert "family" not in written(*records_of("imdb", SCORES))


def test_the_summary_shows_how_the_answer_changed_with_the_baseline():
    newer = {"baseline": [86.4, 86.5, 86.2, 86.6], "ga-sam": [86.6, 86.4, 86.5, 86.7]}
    text = written(*records_of("imdb", SCORES), *records_of("imdb", newer, size="small@2"))["results"]
    part = text.split("## What we got wrong before")[1].split("\n## ")[0]
    assert [(row[1], row[3]) for row in rows(part)[2:]] == [("small", "84.42"), ("small@2", "86.42")]
    assert rows(part)[2][4].startswith("+1.60 [")


def test_each_page_begins_with_its_finding():
    runs = records_of("imdb", SCORES, test_error=0.3)
    found = written(*runs)
    assert "GA-SAM is better than the baseline: +1.60 [" in found["imdb"].split("##")[0]
    assert "standard error of 0.30 to one score" in found["imdb"].split("##")[0]
    assert "4 reproduced (all on imdb), 76 not run" in found["paper"].split("##")[0]


def test_numbers_of_the_paper_are_on_its_page_and_ours_on_the_tasks():
    found = written(*records_of("imdb", SCORES))
    assert "86.11 ± 0.22" in found["paper"]
    assert "86.11 ± 0.22" not in found["imdb"]
    assert "86.03 ± 0.17 (4 seeds)" in found["imdb"]
    assert "86.03 ± 0.17" not in found["paper"]
    assert "| reproduced |" in found["paper"]


def test_readme_takes_the_size_nearest_to_the_paper():
    runs = [record("imdb", test=80.0, size=size) for size in ("tiny", "small")]
    assert rows(block(*runs))[0] == ["method", "imdb, accuracy"]
    assert "imdb small, 1 seed" in block(*runs)
    assert {"Size small", "Size tiny"} <= set(headings(written(*runs)["imdb"]))


def test_readme_has_a_version_of_small_and_a_size_nearer_to_the_paper_has_its_own_answer():
    small = records_of("ptb", {"baseline": [190.0] * 3, "sam": [189.0] * 3, "ga-sam": [188.0, 188.5, 188.2]})
    medium = records_of("ptb", {"baseline": [150.0] * 3, "ga-sam": [149.0, 148.0, 148.5]}, size="medium")
    assert "ptb small, 3 seeds" in block(*small, *medium)
    assert ["SAM", "189.00 (-1.00)"] in rows(block(*small, *medium))
    text = written(*small, *medium)["results"]
    found = [row[:4] for row in rows(text) if row[1] in ("medium", "small")]
    assert [row[:3] for row in found] == [["[ptb](results/ptb.md)", size, "3"] for size in ("medium", "small")]
    for row, difference in zip(found, ("-1.50 [", "-1.77 ["), strict=True):
        assert row[3].startswith(difference)
        assert row[3].endswith("] perplexity: better")
    assert "What we got wrong before" not in text, "medium is no version of small"


def test_readme_prefers_the_better_baseline_to_more_methods():
    old = records_of("ptb", {"baseline": [190.0] * 3, "sam": [189.0] * 3, "ga-sam": [188.0, 188.5, 188.2]})
    new = records_of("ptb", {"baseline": [180.0] * 3, "ga-sam": [179.0, 179.5, 179.2]}, size="small@3")
    assert "ptb small@3, 3 seeds" in block(*old, *new)
    assert "How far the weights are moved: ptb recommended." in block(*old, *new)
    assert "ptb small, 3 seeds" in block(*old, *[run for run in new if run.seed < 3]), "two seeds decide nothing"


def test_readme_takes_the_tuned_radius_and_leaves_ablations_and_their_seeds_to_the_page():
    tuned = {"walk": {"epsilon": 5e-4}, "epsilon_source": "tuned on validation, 6 tries"}
    rung = {"walk": {"epsilon": 2.5e-4}, "epsilon_source": "tuned on validation, 0.5 x"}
    runs = [
        *records_of("imdb", SCORES),
        record("imdb", "ga-sam", 87.0, **tuned),
        record("imdb", "ga-sam", 80.0, **rung),
        record("imdb", "model-wise", 85.0),
        record("imdb", "freelb", 85.0),
    ]
    found = rows(block(*runs))
    assert "imdb small, 1 to 4 seeds" in block(*runs)
    assert found[2:] == [
        ["Baseline", "84.42"],
        ["GA-SAM", "87.00 (+2.60)"],
        ["FreeLB", "85.00 (+0.60)"],
    ]


def test_what_people_remark_stands_below_its_table_or_search(tmp_path):
    checkout(tmp_path, records_of("imdb", SCORES))
    remarks = ["table1.imdb = 'Less dropout was tried.'", "table2.imdb = 'Later.'", "search.imdb = 'Cut short.'"]
    remarks += ["runs.imdb = 'An earlier size.'", "summary.answer = 'Perhaps.'"]
    (tmp_path / "results/remarks.toml").write_text("\n".join(remarks))
    write_json(tmp_path / "results/tuning/a.json", finding_of("imdb", "sam", [response(81.0, exponent=-3)]).as_json())
    pages.write(tmp_path)
    text = "".join(file.read_text() for file in (tmp_path / "docs").rglob("*.md"))
    parts = dict(re.findall(r"^##? (.*?)\n(.*?)(?=^##? |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    places = {
        "Less dropout was tried.": "Table 1",
        "Cut short.": "imdb, size small",
        "An earlier size.": "imdb: what",
        "Perhaps.": "Should I",
    }
    for remark, place in places.items():
        [title] = [title for title, part in parts.items() if remark in part]
        assert title.startswith(place)
    assert "Later." not in text, "Table 2 has no runs of its own"


@pytest.mark.parametrize(
    "text",
    [
        'table9.imdb = "x"',
        'summary.imdb = "x"',
        'table1.mnist = "x"',
        "table1.imdb = 3",
        'table1 = "x"',
        "table1.imdb =",
    ],
)
def test_remarks_on_nothing_are_refused(tmp_path, text):
    checkout(tmp_path, []).joinpath("results/remarks.toml").write_text(text)
    with pytest.raises(InputError, match=r"remarks\.toml"):
        pages.write(tmp_path)
