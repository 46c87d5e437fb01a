"""The page of results and README's table: made from records, never stale, and no twin among the evidence."""

import json
import re
from pathlib import Path

import pytest
from synthetic import COMMIT, finding_of, record, records_of, response

from gasam.lab.errors import InputError
from gasam.lab.paper import studies
from gasam.lab.report import pages as results
from gasam.lab.storage import write_json

ROOT = Path(__file__).parents[2]
README = "# gasam\n\nBefore.\n\n<!-- results -->\nold\n<!-- /results -->\n\nAfter.\n"
SCORES = {"baseline": [84.4, 84.5, 84.2, 84.6], "ga-sam": [86.0, 86.2, 85.8, 86.1]}


def checkout(folder, runs):
    (folder / "results").mkdir(exist_ok=True)
    (folder / "README.md").write_text(README)
    for number, run in enumerate(runs):
        (folder / "results" / f"{number}.json").write_text(json.dumps(run))
    return folder


def test_the_pages_of_this_repository_are_not_stale():
    assert results.stale(ROOT) == [], "run `gasam results --write .`"


def test_every_link_within_the_page_leads_to_one_heading():
    text = (ROOT / "docs/results.md").read_text()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
    links = re.findall(r"\]\(#([^)]+)\)", text)
    assert links
    assert {link: anchors.count(link) for link in links} == dict.fromkeys(links, 1)


def test_pages_are_stale_until_written_and_whenever_a_record_changes(tmp_path):
    checkout(tmp_path, records_of("imdb", SCORES))
    assert results.stale(tmp_path) == ["docs/results.md", "README.md"]
    assert results.write(tmp_path) == [tmp_path / "docs/results.md", tmp_path / "README.md"]
    assert results.stale(tmp_path) == []
    assert results.write(tmp_path) == []

    first = json.loads((tmp_path / "results/0.json").read_text())
    (tmp_path / "results/0.json").write_text(json.dumps(first | {"test": 99.0}))
    assert results.stale(tmp_path) == ["docs/results.md", "README.md"]
    (tmp_path / "results/0.json").write_text(json.dumps(first))
    assert results.stale(tmp_path) == []
    page = tmp_path / "docs/results.md"
    page.write_text(page.read_text().replace("84.42", "84.43"))
    assert results.stale(tmp_path) == ["docs/results.md"]
    (tmp_path / "results/7.json").unlink()
    assert results.stale(tmp_path) == ["docs/results.md", "README.md"]


def test_readme_keeps_all_that_is_outside_of_the_markers(tmp_path):
    results.write(checkout(tmp_path, records_of("imdb", SCORES)))
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# gasam\n\nBefore.\n\n<!-- results -->\n")
    assert text.endswith("<!-- /results -->\n\nAfter.\n")
    assert "old" not in text
    assert "| Baseline | 84.42 ± 0.17 (paper 84.42) |" in text
    assert "| GA-SAM | 86.03 ± 0.17 (+1.60, paper +1.69) |" in text


def test_readme_says_what_diverged_and_leaves_the_papers_number_to_its_own_budget(tmp_path):
    runs = records_of("imdb", {"baseline": [84.4, 84.5], "ga-sam": [86.0, None], "sam": [None, None]})
    longer = records_of("ptb", {"baseline": [190.0]}, settings={"epochs": 99})
    results.write(checkout(tmp_path, [*runs, *longer, *records_of("ptb", {"ga-sam": [180.0]})]))
    text = (tmp_path / "README.md").read_text()
    assert "| GA-SAM | 86.00, 1 of 2 diverged (" in text
    assert "| SAM | diverged" in text
    assert "| 190.00 (epochs 99) |" in text


def test_a_picture_that_is_missing_is_drawn_again(tmp_path):
    results.write(checkout(tmp_path, records_of("imdb", SCORES)))
    found = finding_of("imdb", "sam", [response(81.0, exponent=-3)])
    write_json(tmp_path / "results" / "tuning" / "a.json", found.as_json())
    picture = tmp_path / "docs" / "figures" / "tuning-imdb-small.svg"
    results.write(tmp_path)
    drawn = picture.read_bytes()
    picture.unlink()
    assert results.stale(tmp_path) == ["docs/figures/tuning-imdb-small.svg"]
    assert results.write(tmp_path) == [picture]
    assert results.stale(tmp_path) == []
    assert len(picture.read_bytes()) == len(drawn)


def test_readme_without_markers_is_refused(tmp_path):
    checkout(tmp_path, []).joinpath("README.md").write_text("# gasam\n")
    with pytest.raises(InputError, match="has no place for results"):
        results.write(tmp_path)


def test_without_records_the_page_says_so_and_has_no_number_of_ours(tmp_path):
    results.write(checkout(tmp_path, []))
    page = (tmp_path / "docs/results.md").read_text()
    assert results.NOTHING in page
    assert results.NOTHING in (tmp_path / "README.md").read_text()
    assert "|" not in page
    assert "imdb: baseline 84.42 ± 0.12, GA-SAM 86.11 ± 0.22 (+1.69) is best" in page
    assert "prints +0.83 for Layer-SAM on imdb, where its means give +0.85" in page


def test_twins_and_the_users_own_data_are_no_evidence():
    runs = [*records_of("docstrings", SCORES), record("classify"), record("digits")]
    assert results.page(runs) == results.page([])
    assert results.block(runs) == results.block([])
    assert results.page([*runs, record("imdb")]) == results.page([record("imdb")])


def test_page_says_beside_each_table_where_it_comes_from():
    notes = {"hash": "x", "notes": ["two classes instead of three"]}
    runs = [*records_of("imdb", SCORES, data=notes), record("ptb", dirty=True, commit="f" * 40)]
    page = results.page(runs)
    found = sections(page)
    imdb = found["imdb, size small"]
    assert "Data: two classes instead of three." in imdb
    assert "These runs: " in imdb
    assert f"From 8 runs of commit {COMMIT[:7]}. " in imdb
    assert "`gasam compare imdb --size small@1 --methods baseline,ga-sam --seeds 4`" in imdb
    assert "From 1 run of commit fffffff with changes. " in found["ptb, size small"]
    table = next(text for title, text in found.items() if title.startswith("Table 1"))
    assert "Again: as told with [imdb](#imdb-size-small), [ptb](#ptb-size-small)." in table
    assert re.search(r"^\*\*en-vi\.\*\* .* Not run in size small\.$", table, flags=re.MULTILINE)
    assert not any(title.startswith(("Table 2", "Table 3", "Table 5")) for title in found)


def test_a_table_of_the_paper_is_shown_as_soon_as_it_has_runs_of_its_own():
    runs = [*records_of("imdb", SCORES), record("imdb", "ga-sam", 85.0, walk={"steps": 3})]
    titles = re.findall(r"^## (Table \d)", results.page(runs), flags=re.MULTILINE)
    assert titles == ["Table 1", "Table 3"]


def test_a_task_whose_baseline_was_never_trained_longer_is_named():
    runs = [*records_of("imdb", SCORES), record("imdb", settings={"epochs": 16}), record("de-en")]
    told = sections(results.page(runs))["Two budgets"]
    assert "### Budgets on imdb, size small" in told
    assert "Without a baseline that was trained longer, not run: de-en, size small." in told
    assert "Two budgets" not in sections(results.page(records_of("imdb", SCORES)))


def test_commands_carry_every_option_that_the_runs_need():
    runs = [
        record("imdb"),
        record("imdb", "ga-sam", seed=2, walk={"steps": 3, "same_noise": True}),
        record("imdb", "sam", settings={"epochs": 40, "windows": (3, 4)}),
    ]
    page = results.page(runs)
    start = "`gasam compare imdb --size small@1 --methods"
    assert f"{start} baseline --seeds 1`" in page
    assert f"{start} ga-sam --seeds 2 --same-noise --walk ga-sam.steps=3`" in page
    assert f"{start} sam --seeds 1 --epochs 40 --set windows=[3,4]`" in page


def test_readme_takes_the_size_nearest_to_the_paper():
    runs = [record("imdb", test=80.0, size=size) for size in ("tiny", "small")]
    assert "imdb, size small" in results.block(runs)
    assert "imdb, size tiny" not in results.block(runs)
    assert "imdb, size tiny" in results.page(runs)


def sections(page):
    return dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))


def paragraph(page, table="Table 1", task="imdb"):
    [text] = [text for title, text in sections(page).items() if title.startswith(table)]
    _, _, told = text.partition(f"\n**{task}.**")
    return re.split(r"\n\n(?=\*\*|From )", told)[0].replace("\n\n", " ")


def test_verdicts_are_defined_and_counted_once_a_cell():
    tuned = {"walk": {"epsilon": 5e-4}, "epsilon_source": "tuned on validation, 6 tries"}
    runs = records_of("imdb", SCORES)
    assert "| Table 1 | imdb | 1 | 0 | 0 | 4 |" in sections(results.page(runs))["Verdicts"]
    runs += [record("imdb", "ga-sam", 86.0, **tuned)]
    found = sections(results.page(runs))["Verdicts"]
    assert "Welch's 95% interval" in found
    assert "| Table 1 | imdb | 0 | 0 | 1 | 4 |" in found, "the tuned radius speaks for its method: one seed"
    assert "| Table 3 | ptb | 0 | 0 | 0 | 17 |" in found


def test_a_paragraph_tells_the_papers_claim_ours_what_differs_and_what_fails():
    notes = {"hash": "x", "notes": ["two classes instead of three"]}
    runs = records_of("imdb", SCORES | {"sam": [83.0, 83.2, 82.9, 83.1], "asam": [84.0]}, data=notes)
    text = paragraph(results.page(runs))
    assert "The paper: baseline 84.42 ± 0.12, GA-SAM 86.11 ± 0.22 (+1.69) is best." in text
    assert "Its intervals say better than the baseline (ASAM: +0.63, Layer-SAM: +0.85, " in text
    assert "; neither (SAM: +0.33)." in text
    assert "Here: baseline 84.42 ± 0.17 (4 seeds); of the others GA-SAM has the best mean, 86.03 ± 0.17" in text
    assert re.search(r"Our intervals say better than the baseline \(GA-SAM: \+1\.60 \[\+1\.\d+, ", text)
    assert "; worse (SAM: -1.3" in text
    assert "From one seed, which carries nothing: ASAM: -0.40." in text
    assert "Reproduced: GA-SAM. Not reproduced: SAM (worse), ASAM (one seed)." in text
    assert "Not run: Layer-SAM, Multi-step Defense." in text
    assert "Data: two classes instead of three." in text
    assert "These runs: " in text


def test_a_later_table_points_to_what_differs_instead_of_telling_it_again():
    notes = {"hash": "x", "notes": ["two classes instead of three"]}
    runs = [*records_of("imdb", SCORES, data=notes), record("imdb", "ga-sam", 85.0, walk={"steps": 3}, data=notes)]
    page = results.page(runs)
    assert "Data: two classes instead of three." in paragraph(page)
    later = paragraph(page, table="Table 3")
    assert "What differs in data and size is told [above](#imdb-size-small)." in later
    assert "two classes" not in later


def test_walks_of_one_method_are_compared_with_the_one_that_the_paper_found_best():
    steps = [record("imdb", "ga-sam", test, seed=seed, walk={"steps": 3}) for seed, test in ((1, 84.0), (2, 84.1))]
    told = paragraph(results.page([*records_of("imdb", SCORES), *steps]), table="Table 3")
    contrast = "K = 1 minus each other method, paired by seed: better"
    assert f"{contrast} (K = 3: +2.05 [+1.41, +2.69] (2 common seeds))." in told
    assert "minus each other method" not in paragraph(results.page(records_of("imdb", SCORES)))


def test_scores_are_told_by_seed_where_some_learn_and_others_do_not():
    runs = records_of("imdb", SCORES | {"sam": [86.0, 50.0], "asam": [84.0, 85.2]})
    told = paragraph(results.page(runs))
    assert "Seeds disagree, by more than 5 times the baseline's standard deviation: SAM: 86.00, 50.00." in told
    assert "Seeds disagree" not in paragraph(results.page(records_of("imdb", SCORES)))


def test_what_people_remark_ends_the_paragraph_of_its_table_and_task(tmp_path):
    checkout(tmp_path, records_of("imdb", SCORES))
    (tmp_path / "results/remarks.toml").write_text('table1.imdb = "Less dropout was tried."\ntable1.ptb = "Later."\n')
    results.write(tmp_path)
    page = (tmp_path / "docs/results.md").read_text()
    assert paragraph(page).endswith(" Less dropout was tried.")
    assert paragraph(page, task="ptb").endswith("Not run in size small. Later.")
    assert page.count("Less dropout was tried.") == 1


def test_what_people_remark_on_a_search_stands_below_it(tmp_path):
    checkout(tmp_path, records_of("imdb", SCORES))
    (tmp_path / "results/remarks.toml").write_text('search.imdb = "Cut short."\nsearch.ptb = "Later."\n')
    write_json(tmp_path / "results/tuning/a.json", finding_of("imdb", "sam", [response(81.0, exponent=-3)]).as_json())
    results.write(tmp_path)
    text = (tmp_path / "docs/results.md").read_text()
    assert "\n\nCut short.\n\nFrom commit" in text
    assert "Later." not in text


@pytest.mark.parametrize(
    "text", ['table9.imdb = "x"', 'table1.mnist = "x"', "table1.imdb = 3", 'table1 = "x"', "table1.imdb ="]
)
def test_remarks_on_nothing_are_refused(tmp_path, text):
    checkout(tmp_path, []).joinpath("results/remarks.toml").write_text(text)
    with pytest.raises(InputError, match=r"remarks\.toml"):
        results.write(tmp_path)


def test_readme_takes_the_tuned_radius_and_commands_say_so():
    tuned = {"walk": {"epsilon": 5e-4}, "epsilon_source": "tuned on validation, 6 tries"}
    rung = {"walk": {"epsilon": 2.5e-4}, "epsilon_source": "tuned on validation, 0.5 x"}
    runs = [
        *records_of("imdb", SCORES),
        record("imdb", "ga-sam", 87.0, **tuned),
        record("imdb", "ga-sam", 80.0, **rung),
    ]
    assert "| GA-SAM | 87.00 (+2.60, paper +1.69) (tuned: L-inf 0.0005) |" in results.block(runs)
    found = sections(results.page(runs))
    start = "`gasam compare imdb --size small@1 --methods ga-sam --seeds 1"
    assert f"{start} --tuned --out results`" in found["imdb, size small"]
    assert f"{start} --walk ga-sam.epsilon=0.00025`" in found["imdb, size small"]


def test_a_table_names_the_command_that_runs_it_where_all_its_rows_have_runs():
    tuned = {"epsilon_source": "tuned on validation, 6 tries"}
    methods = [row.method for row in studies.load("table1").rows]
    runs = [record("imdb", method, seed=seed, **tuned) for method in methods for seed in (1, 2)]

    def again(*more):
        [text] = [text for title, text in sections(results.page([*runs, *more])).items() if title.startswith("Table 1")]
        return re.search(r" Again: (.*)\.$", text, flags=re.MULTILINE)[1]

    command = "`gasam reproduce table1 --size small --tasks imdb --seeds 2 --tuned --out results`"
    rest = "; the rest as told with [imdb](#imdb-size-small)"
    assert again() == command
    assert again(record("imdb", seed=3)) == again(record("imdb", settings={"epochs": 16})) == command + rest
    assert again(record("ptb")) == f"{command}; the rest as told with [ptb](#ptb-size-small)"
    runs.pop()
    assert again() == command.replace("2", "1") + rest
    runs.pop()
    assert again() == "as told with [imdb](#imdb-size-small)", "no command that would run what was not run"


def test_readme_leaves_ablations_and_their_seeds_to_the_page():
    runs = [*records_of("imdb", SCORES), record("imdb", "model-wise", 85.0), record("imdb", "freelb", 85.0)]
    block = results.block(runs)
    assert "Model-wise" not in block
    assert "| FreeLB | 85.00 (+0.60) |" in block
    assert results.block(runs[:-1]).startswith("| method | imdb, size small: accuracy, % (higher is better); 4 seeds |")
