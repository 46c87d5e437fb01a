"""Verdicts on the paper's tables: the paper's claims from its printed numbers, four words, and the runs of a row."""

import pytest
from scipy import stats
from synthetic import record, records_of

from gasam.lab.paper import studies
from gasam.lab.paper.results import paper_table, runs_of
from gasam.lab.paper.verdicts import WORDS, judge, paper_difference
from gasam.lab.report.comparison import Comparison, Difference

BASELINE = [84.4, 84.5, 84.2, 84.6]
BETTER, WORSE, SAME = Difference(0.5, 0.2, 0.8, 4), Difference(-0.5, -0.8, -0.2, 4), Difference(0.1, -0.2, 0.4, 4)
"""What the paper may claim."""


def scores(shift, noise=0.05):
    return [score + shift + noise * (-1) ** number for number, score in enumerate(BASELINE)]


def verdicts(runs, table="table1"):
    return {row["row"]: row["verdict"] for row in paper_table(studies.load(table), runs, "small").rows}


@pytest.mark.parametrize("table", studies.names())
def test_the_papers_claims_are_those_of_its_printed_numbers(table):
    study = studies.load(table)
    for task in study.tasks:
        for row in study.rows_on(task)[1:]:
            expected, plain = row.expected, row.expected.baseline
            numbers = (float(number) for each in (expected, plain) for number in (each.mean, each.std, 4))
            p = stats.ttest_ind_from_stats(*numbers, equal_var=False).pvalue
            found = paper_difference(expected, plain).standing(higher_is_better=task != "ptb")
            higher = expected.mean > plain.mean
            assert found == ("no clear difference" if p > 0.05 else "better" if higher == (task != "ptb") else "worse")


@pytest.mark.parametrize(
    ("claim", "ours", "baseline", "expected"),
    [
        (BETTER, [2, 2.1, 2.2], [1, 1.1, 1.3], ("reproduced", "both: better")),
        (WORSE, [2, 2.1, 2.2], [1, 1.1, 1.3], ("contradicted", "better; paper: worse")),
        (WORSE, [0, 0.1, 0.2], [1, 1.1, 1.3], ("reproduced", "both: worse")),
        (SAME, [1, 1.2, 1.2], [1, 1.1, 1.3], ("reproduced", "both: no clear difference")),
        (BETTER, [1, 1.2, 1.2], [1, 1.1, 1.3], ("contradicted", "no clear difference; paper: better")),
        (BETTER, [1, 1.5, 1.4], [1, 1.1, 1.3], ("undecided", "interval too wide")),
        (WORSE, [1, 1.5, 1.4], [1, 1.1, 1.3], ("contradicted", "no clear difference; paper: worse")),
        (SAME, [1.05, 60.0, 1.2], [1, 1.1, 1.3], ("undecided", "interval too wide")),
        (BETTER, [2, 2.1], [1, 1.1], ("undecided", "two seeds")),
        (SAME, [1], [1], ("undecided", "one seed")),
        (WORSE, [None, None], [1, 1.1], ("contradicted", "diverged")),
        (BETTER, [2, 2.1, 2.2, None], [1, 1.1, 1.3], ("contradicted", "1 of 4 diverged")),
        (BETTER, [2, 2.1, 2.2], [None, None, 1.3], ("undecided", "the baseline diverged")),
        (BETTER, [2, 2.1], [], ("not run", "no baseline")),
        (BETTER, [None, 2], [1], ("contradicted", "1 of 2 diverged")),
    ],
)
def test_every_verdict_and_its_reason(claim, ours, baseline, expected):
    [found] = Comparison.of(records_of("imdb", {"baseline": baseline, "ga-sam": ours}))
    verdict = judge(claim, found.rows[-1], higher_is_better=True)
    assert (verdict.word, verdict.reason) == expected
    assert verdict.word in WORDS


def test_what_was_not_run_has_a_verdict_too():
    assert str(judge(BETTER, None, higher_is_better=True)) == "not run"
    [found] = Comparison.of([record("imdb", seed=1), record("imdb", "ga-sam", seed=2)])
    assert judge(BETTER, found.rows[-1], higher_is_better=True).reason == "no baseline with its seeds"


def test_each_cell_of_a_table_has_a_verdict_and_the_baseline_has_none():
    runs = records_of("imdb", {"baseline": BASELINE, "sam": scores(0.01), "asam": [None] * 4, "ga-sam": scores(1.6)})
    assert verdicts(runs) == {
        "Baseline": "",
        "SAM": "reproduced (both: no clear difference)",
        "ASAM": "contradicted (diverged)",
        "Layer-SAM": "not run",
        "Multi-step Defense": "not run",
        "GA-SAM": "reproduced (both: better)",
    }


def test_verdicts_follow_the_direction_of_the_metric():
    found = verdicts(records_of("ptb", {"baseline": BASELINE, "sam": scores(3), "ga-sam": scores(3)}))
    assert found["SAM"] == "reproduced (both: worse)"
    assert found["GA-SAM"] == "contradicted (worse; paper: better)"


def test_runs_with_other_settings_are_not_those_of_a_row():
    runs = [record("imdb"), record("imdb", "ga-sam", 90.0, settings={"epochs": 30})]
    assert verdicts(runs)["GA-SAM"] == "not run"


def test_a_row_has_the_walks_that_stand_for_the_papers():
    """The paper's and a tuned one; a rung of a ladder only its own epsilon."""
    epsilon = {"epsilon": 5e-4, "norm": float("inf")}
    runs = [record("imdb"), record("imdb", "ga-sam"), record("imdb", "ga-sam", walk=epsilon, source="tuned")]
    [found] = Comparison.of(runs)
    [row] = [row for row in studies.load("table1").rows_on("imdb") if row.method == "ga-sam"]
    assert [each.walk.source for each in runs_of(row, found, "small")] == ["tuned", "paper"]
    rungs = {row.label: runs_of(row, found, "small") for row in studies.load("table3").rows_on("imdb")}
    assert [label for label, some in rungs.items() if some] == ["Baseline", "K = 1", "L-inf, 1 x", "L-inf, 5 x"]


def test_a_difference_that_the_paper_misprints_is_named_beside_the_one_of_its_means():
    rows = {row["row"]: row for row in paper_table(studies.load("table1"), [record("imdb")], "small").rows}
    assert rows["Layer-SAM"]["paper's difference"] == "+0.85 (printed +0.83)"
    assert rows["SAM"]["paper's difference"] == "+0.33"


def test_a_table_without_runs_shows_the_paper_alone():
    table = paper_table(studies.load("table5"), [], "small")
    assert {row["ours"] for row in table.rows} == {"not run"}
    assert len(table.rows) == 8
    assert any("BLEU" in note for note in table.notes)
