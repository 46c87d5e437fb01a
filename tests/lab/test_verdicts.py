"""Verdicts: intervals against scipy, every class and every reason, and what speaks for a row of a table."""

from functools import partial

import numpy
import pytest
import synthetic
from hypothesis import assume, given
from hypothesis import strategies as some
from scipy import stats

from gasam.lab.paper import studies
from gasam.lab.paper.verdicts import WORDS, judge, judge_figure, paper_difference
from gasam.lab.report import matching
from gasam.lab.report.frame import group_runs
from gasam.lab.report.labels import named
from gasam.lab.report.matching import paper_of
from gasam.lab.report.paper_tables import study_table, tally
from gasam.lab.statistics import Difference, Summary, summary, welch_difference
from gasam.lab.tables import as_json

record, records_of = (partial(each, size="paper") for each in (synthetic.record, synthetic.records_of))
SAMPLES = some.lists(some.floats(-100, 100), min_size=2, max_size=6)
BASELINE = [84.4, 84.5, 84.2, 84.6]
TUNED = "tuned"


def tuned(task, method="ga-sam", test=86.0, *, epsilon, source=TUNED, **options):
    walk = {"epsilon": epsilon, "norm": options.pop("norm", float("inf")), **options.pop("walk", {})}
    return record(task, method, test, walk=walk, source=source, **options)


def verdicts(runs, table="table1", task="imdb", size="paper"):
    rows = as_json(study_table(studies.load(table), runs, size))["rows"]
    return {row["label"]: row["verdict"] for row in rows if row["task"] == task}


def said(runs, table="table1", size="paper"):
    """Label to the verdict that a reader sees, with its reason."""
    shown = study_table(studies.load(table), runs, size)
    cells = [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]
    texts = [named(row["verdict"], row.get("reason", "")) for row in cells]
    return dict(zip([row["label"] for row in shown.values], texts, strict=True))


def rows_of(group, study):
    return matching.rows_of(group, study, {})


def scores(shift, noise=0.05):
    return [score + shift + noise * (-1) ** number for number, score in enumerate(BASELINE)]


@given(SAMPLES, SAMPLES, some.floats(0.5, 0.99))
def test_welchs_interval_is_that_of_scipy(ours, theirs, confidence):
    assume(min(numpy.std(ours), numpy.std(theirs)) > 1e-3)
    found = welch_difference(summary(ours), summary(theirs), confidence)
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-6)


def test_welch_without_any_spread_is_a_point():
    assert welch_difference(Summary(3.0, 0.0, 4), Summary(1.0, 0.0, 4)) == Difference(2.0, 2.0, 2.0, 4)
    one_sided = welch_difference(Summary(3.0, 0.5, 4), Summary(1.0, 0.0, 4))
    reach = 3.182446305284263 * 0.5 / 2  # Student's quantile with 3 degrees of freedom
    assert (one_sided.low, one_sided.high) == pytest.approx((2.0 - reach, 2.0 + reach))


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
            assert found == ("no difference" if p > 0.05 else "better" if higher == (task != "ptb") else "worse")


@pytest.mark.parametrize(
    ("low", "high", "higher", "expected"),
    [
        (0.1, 0.5, True, "better"),
        (0.1, 0.5, False, "worse"),
        (-0.5, -0.1, True, "worse"),
        (-0.5, -0.1, False, "better"),
        (-0.1, 0.5, True, "no difference"),
        (0.0, 0.0, False, "no difference"),
        (None, None, True, None),
    ],
)
def test_standing_is_what_the_interval_carries(low, high, higher, expected):
    assert Difference(0.2, low, high, 4).standing(higher) == expected


BETTER, WORSE, SAME = Difference(0.5, 0.2, 0.8, 4), Difference(-0.5, -0.8, -0.2, 4), Difference(0.1, -0.2, 0.4, 4)
"""What the paper may claim."""


@pytest.mark.parametrize(
    ("claim", "ours", "baseline", "diverged", "expected"),
    [
        (BETTER, [2, 2.1, 2.2], [1, 1.1, 1.3], 0, ("reproduced", "both: better")),
        (WORSE, [2, 2.1, 2.2], [1, 1.1, 1.3], 0, ("contradicted", "better; paper: worse")),
        (WORSE, [0, 0.1, 0.2], [1, 1.1, 1.3], 0, ("reproduced", "both: worse")),
        (BETTER, [0, 0.1, 0.2], [1, 1.1, 1.3], 0, ("contradicted", "worse; paper: better")),
        (SAME, [1, 1.2, 1.2], [1, 1.1, 1.3], 0, ("reproduced", "both: no difference")),
        (BETTER, [1, 1.2, 1.2], [1, 1.1, 1.3], 0, ("contradicted", "no difference; paper: better")),
        (WORSE, [1, 1.2, 1.2], [1, 1.1, 1.3], 0, ("contradicted", "no difference; paper: worse")),
        (BETTER, [1, 1.5, 1.4], [1, 1.1, 1.3], 0, ("undecided", "interval too wide")),
        (WORSE, [1, 1.5, 1.4], [1, 1.1, 1.3], 0, ("contradicted", "no difference; paper: worse")),
        (SAME, [1, 1.5, 1.4], [1, 1.1, 1.3], 0, ("undecided", "interval too wide")),
        (SAME, [1.05, 60.0, 1.2], [1, 1.1, 1.3], 0, ("undecided", "interval too wide")),
        (BETTER, [2, 2.1], [1, 1.1], 0, ("undecided", "two seeds")),
        (BETTER, [2], [1, 1.1], 0, ("undecided", "one seed")),
        (SAME, [1], [1], 0, ("undecided", "one seed")),
        (WORSE, [], [1, 1.1], 2, ("contradicted", "diverged")),
        (BETTER, [2, 2.1, 2.2], [1, 1.1, 1.3], 1, ("contradicted", "1 of 4 diverged")),
        (BETTER, [], [1], 0, ("not run", "")),
        (BETTER, [2, 2.1], [], 0, ("not run", "no baseline")),
    ],
)
def test_every_verdict_and_its_reason(claim, ours, baseline, diverged, expected):
    by_seed = (dict(enumerate(side)) for side in (ours, baseline))
    found = judge(claim, *by_seed, higher_is_better=True, diverged=diverged)
    assert (found.word, found.reason) == expected
    assert found.word in WORDS


@pytest.mark.parametrize("baseline", [{}, {1: 1.0, 2: 1.1}], ids=["all", "some"])
def test_a_baseline_that_diverged_decides_nothing(baseline):
    verdict = judge(BETTER, {1: 2.0, 2: 2.1, 3: 2.2}, baseline, higher_is_better=True, baselines_diverged=2)
    assert (verdict.word, verdict.reason) == ("undecided", "the baseline diverged")


def test_a_table_says_that_the_baseline_diverged_and_takes_no_cost_from_it():
    runs = records_of("imdb", {"baseline": [None, None], "ga-sam": [86.0, 86.1]})
    table = study_table(studies.load("table1"), runs, "paper")
    [row] = [row for row in table.rows if row[1].startswith("GA-SAM")]
    assert row[-2:] == ("undecided", "the baseline diverged")
    assert "x)" not in " ".join(row)
    assert tally([studies.load("table1")], runs, "paper").rows[0] == ("Table 1", "imdb", "0", "0", "1", "4")


@pytest.mark.parametrize(
    ("name", "norms", "word", "reason"),
    [
        ("figure4", {"a": [1.0, 2.0], "b": [2.0, 1.0], "c": [2.0, 1.0]}, "contradicted", "a: they grow"),
        ("figure4", {"a": [2.0, 2.5, 1.0], "b": [2.0, 1.0], "c": [2.0, 1.0]}, "reproduced", ""),
        ("figure4", {"en-vi": [1.0, 2.0]}, "undecided", "one run; en-vi: they grow"),
        ("figure4", {"a": [2.0, 1.0], "b": [2.0, 1.0]}, "undecided", "two runs; as in the paper"),
        ("figure5", {"encoder": {"1": [3.0], "2": [1.0, 2.0]}}, "undecided", "one run; encoder: the order is reversed"),
        ("figure5", {"decoder": {"1": [1.0], "2": [1.0, 2.0]}}, "undecided", "one run; as in the paper"),
        ("figure5", {"decoder": {"1": [1.0], "2": [3.0], "3": [2.0]}}, "undecided", "one run; decoder: no such order"),
    ],
)
def test_figures_of_gradient_norms_are_judged_by_their_order(name, norms, word, reason):
    found = judge_figure(name, norms)
    assert (found.word, found.reason) == (word, reason)
    assert judge_figure("figure1", {}) is None


def test_other_seeds_than_the_baselines_are_no_comparison():
    verdict = judge(BETTER, {3: 2.0, 4: 2.0}, {1: 1.0, 2: 1.0}, higher_is_better=True)
    assert (verdict.word, verdict.reason) == ("not run", "no baseline with its seeds")


def test_each_cell_of_a_table_has_a_verdict_and_the_baseline_has_none():
    runs = records_of("imdb", {"baseline": BASELINE, "sam": scores(0), "asam": [None] * 4, "ga-sam": scores(1.6)})
    assert said(runs) == {
        "Baseline": "",
        "SAM": "reproduced (both: no difference)",  # the paper's own +0.33 is within its interval
        "ASAM": "contradicted (diverged)",
        "Layer-SAM": "not run",
        "Multi-step Defense": "not run",
        "GA-SAM": "reproduced (both: better)",
    }
    found = verdicts(runs)
    assert found["Baseline"] is None
    assert found["GA-SAM"] == {"word": "reproduced", "paper": "better", "ours": "better", "reason": "both: better"}
    assert found["Layer-SAM"] == {"word": "not run", "paper": "better", "ours": None, "reason": ""}


def test_verdicts_follow_the_metrics_direction():
    runs = records_of("ptb", {"baseline": BASELINE, "sam": scores(3), "ga-sam": scores(3)})
    assert said(runs)["SAM"] == "reproduced (both: worse)"  # worse, there and here
    assert said(runs)["GA-SAM"] == "contradicted (worse; paper: better)"


def test_verdicts_are_against_the_baseline_of_as_many_epochs():
    longer = [
        record("imdb", "baseline", test, seed=seed, settings={"epochs": 30}) for seed, test in enumerate([90.0] * 4)
    ]
    runs = records_of("imdb", {"baseline": BASELINE, "ga-sam": scores(1.6)})
    found = said([*runs, *longer])
    assert found["GA-SAM"] == "reproduced (both: better)"
    assert found["Baseline (epochs 30)"] == ""
    alone = said([*longer, *(run for run in runs if run.method != "baseline")])
    assert alone["GA-SAM"] == "not run (no baseline)"


def test_a_row_with_other_settings_alone_was_not_run():
    runs = [*records_of("imdb", {"baseline": BASELINE}), record("imdb", "ga-sam", 90.0, settings={"epochs": 30})]
    assert said(runs)["GA-SAM (epochs 30)"] == ""
    assert said(runs)["GA-SAM"] == "not run"


def test_a_tuned_radius_belongs_to_its_method_never_to_a_rung_of_that_size():
    """2e-4 is Table 3's "L-inf, 2 x" on imdb and 5e-4 its collapse."""
    runs = [
        record("imdb"),
        tuned("imdb", epsilon=5e-4, test=86.5),
        record("imdb", "ga-sam", 85.0, walk={"epsilon": 5e-4}),
    ]
    assert len(group_runs(runs)) == 2, "one configuration: a run counts once, whoever asked for it"
    group = group_runs([record("imdb"), tuned("imdb", epsilon=5e-4)])[1]
    assert [row.label for row in rows_of(group, studies.load("table1"))] == ["GA-SAM"]
    assert [row.label for row in rows_of(group, studies.load("table3"))] == ["K = 1", "L-inf, 1 x"]
    assert paper_of(group).text == "86.11 ± 0.22"
    plain = group_runs([record("imdb", "ga-sam", walk={"epsilon": 5e-4})])[0]
    assert [row.label for row in rows_of(plain, studies.load("table3"))] == ["L-inf, 5 x"]
    assert rows_of(plain, studies.load("table1")) == []


def test_a_tuned_radius_may_have_another_norm_than_the_papers():
    group = group_runs([tuned("imdb", "sam", epsilon=0.05, norm=2.0)])[0]
    assert [row.label for row in rows_of(group, studies.load("table1"))] == ["SAM"]
    own = group_runs([tuned("imdb", epsilon=0.05, norm=2.0)])[0]
    assert [row.label for row in rows_of(own, studies.load("table3"))] == ["K = 1", "L2, 10 x"], (
        "the paper's best in L2"
    )


def test_a_difference_that_the_paper_misprints_is_named_beside_the_one_of_its_means():
    shown = study_table(studies.load("table1"), [record("imdb")], "paper")
    texts = {
        row["label"]: dict(zip(shown.columns, text, strict=True))
        for row, text in zip(shown.values, shown.rows, strict=True)
    }
    values = {row["label"]: row["paper_difference"] for row in shown.values}
    assert texts["Layer-SAM"]["paper's difference"] == "+0.85 (printed +0.83)"
    assert texts["SAM"]["paper's difference"] == "+0.33"
    assert values["Layer-SAM"] == 0.85


def test_cells_are_counted_once_though_several_groups_belong_to_a_row():
    runs = records_of("imdb", {"baseline": BASELINE, "ga-sam": scores(1.6)})
    every = [studies.load(name) for name in studies.names()]
    counts = {row[:2]: row[2:] for row in tally(every, runs, "paper").rows}
    assert counts["Table 1", "imdb"] == ("1", "0", "0", "4")
    runs.append(tuned("imdb", epsilon=5e-4))
    counts = {row[:2]: row[2:] for row in tally(every, runs, "paper").rows}
    assert counts["Table 1", "imdb"] == ("0", "0", "1", "4"), "the tuned radius speaks for its method: one seed"
    assert counts["Table 3", "ptb"] == ("0", "0", "0", "17")
