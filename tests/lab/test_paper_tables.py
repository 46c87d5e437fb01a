"""The paper's tables: every run can be planned, the claims follow from the printed numbers, and each cell's verdict."""

import math
from decimal import Decimal

import pytest
from scipy import stats
from synthetic import record, records_of

from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS, TABLE1
from gasam.lab.paper.tables import Printed, load, names
from gasam.lab.paper.verdicts import judge
from gasam.lab.report.comparison import Comparison, Difference
from gasam.lab.tasks import SIZE_NAMES, TASKS
from gasam.lab.training import plan

TABLES = ("table1", "table2", "table3", "table5")
BASELINE = [84.4, 84.5, 84.2, 84.6]
BETTER, WORSE, EVEN = Difference(0.5, 0.2, 0.8, 4), Difference(-0.5, -0.8, -0.2, 4), Difference(0.1, -0.2, 0.4, 4)
"""What the paper may claim."""


def every_row():
    return [(name, row) for name in TABLES for task in load(name).tasks for row in load(name).rows(task)]


def scores(shift, noise=0.05):
    return [score + shift + noise * (-1) ** number for number, score in enumerate(BASELINE)]


def verdicts(runs, table="table1"):
    """Without the hours that are missing."""
    return {row["row"]: row["verdict"].partition(", ")[0] for row in load(table).beside(runs, "small").rows}


def test_rows_are_known_methods_on_known_tasks_and_the_first_is_the_baseline():
    assert tuple(names()) == TABLES
    for _, row in every_row():
        assert row.task in TASKS
        assert row.method in METHODS
        assert (row.method == "baseline") == (row.baseline is None) == (row.label == "Baseline")
    for table in map(load, TABLES):
        assert table.seeds == 4
        labels = [row.label for row in table.rows(table.tasks[0])]
        assert len(set(labels)) == len(labels)
    assert tuple(row.method for row in load("table1").rows("imdb")) == TABLE1
    with pytest.raises(InputError, match=r"study must be one of figure1, .*, table1, table2, table3, .* got 'table9'"):
        load("table9")


@pytest.mark.parametrize("name", TABLES)
def test_every_plan_is_made_once(name):
    for size in SIZE_NAMES:
        plans = load(name).plans(size)
        assert len({(str(run.config()), run.seed) for run in plans}) == len(plans)
        assert {(run.size, run.seed) for run in plans} == {(size, seed) for seed in (1, 2, 3, 4)}
        assert {run.walk.source for run in plans} == {"paper", "none"}


def test_the_rung_with_the_own_epsilon_is_the_walk_of_k_1():
    own = {task: plan.make(task, "ga-sam", walks="paper").key("") for task in ("imdb", "ptb")}
    for task, rung in (("imdb", "L-inf, 1 x"), ("ptb", "L-inf, 0.8 x")):
        rows = load("table3").rows(task)
        assert {row.label for row in rows if row.plan("small", 1).key("") == own[task]} == {"K = 1", rung}


@pytest.mark.parametrize(
    ("norm", "prefix", "factors", "unit"),
    [
        (2.0, "L2", (0.1, 0.5, 1, 5, 10, 50), {"imdb": 1e-2, "ptb": 1e-3}),
        (math.inf, "L-inf", (0.2, 0.5, 0.8, 1, 2, 5), {"imdb": 1e-4, "ptb": 1e-5}),
    ],
)
def test_ladders_climb_in_the_units_of_their_task(norm, prefix, factors, unit):
    for task in unit:
        rows = [row for row in load("table3").rows(task) if row.label.startswith(prefix)]
        assert [row.label for row in rows] == [f"{prefix}, {factor:g} x" for factor in factors]
        for row, factor in zip(rows, factors, strict=True):
            assert row.walk == {"norm": norm, "epsilon": pytest.approx(factor * unit[task])}


def test_the_same_run_has_the_same_number_in_every_table():
    numbers = {}
    for _, row in every_row():
        assert numbers.setdefault(row.plan("small", 1).key(""), row.paper[:2]) == row.paper[:2]


def test_differences_are_those_of_the_printed_means():
    assert Printed.of("507.0 ± 243").minus(Printed.of("86.70 ± 0.54")) == Decimal("420.3")
    rows = {row["row"]: row for row in load("table1").beside([record("imdb")], "small").rows}
    assert rows["Layer-SAM"]["paper (minus baseline)"] == "85.27 ± 0.19 (+0.85)"


def test_plans_can_be_limited():
    plans = load("table5").plans("tiny", ["de-en"], range(1, 3))
    assert {(run.task, run.seed) for run in plans} == {("de-en", 1), ("de-en", 2)}
    with pytest.raises(InputError, match=r"has no task 'imdb': it has en-vi, de-en"):
        load("table5").plans("tiny", ["imdb"])


def test_the_papers_claims_are_those_of_its_printed_numbers():
    for _, row in every_row():
        if row.baseline is not None:
            numbers = (float(number) for each in (row.paper, row.baseline) for number in (*each[:2], 4))
            p = stats.ttest_ind_from_stats(*numbers, equal_var=False).pvalue
            better = (row.paper.mean > row.baseline.mean) == (row.task != "ptb")
            found = row.paper.claim(row.baseline).standing(higher_is_better=row.task != "ptb")
            assert found == ("no clear difference" if p > 0.05 else "better" if better else "worse")


@pytest.mark.parametrize(
    ("claim", "ours", "baseline", "expected"),
    [
        (BETTER, [2, 2.1, 2.2], [1, 1.1, 1.3], "reproduced (both: better)"),
        (WORSE, [2, 2.1, 2.2], [1, 1.1, 1.3], "contradicted (paper: worse)"),
        (WORSE, [0, 0.1, 0.2], [1, 1.1, 1.3], "reproduced (both: worse)"),
        (EVEN, [1, 1.2, 1.2], [1, 1.1, 1.3], "reproduced (both: no clear difference)"),
        (BETTER, [1, 1.2, 1.2], [1, 1.1, 1.3], "contradicted (paper: better)"),
        (BETTER, [1, 1.5, 1.4], [1, 1.1, 1.3], "undecided (interval too wide)"),
        (WORSE, [1, 1.5, 1.4], [1, 1.1, 1.3], "contradicted (paper: worse)"),
        (EVEN, [1.05, 60.0, 1.2], [1, 1.1, 1.3], "undecided (interval too wide)"),
        (BETTER, [2, 2.1], [1, 1.1], "undecided (two seeds)"),
        (EVEN, [1], [1], "undecided (one seed)"),
        (WORSE, [None, None], [1, 1.1], "contradicted (diverged)"),
        (BETTER, [2, 2.1, 2.2, None], [1, 1.1, 1.3], "contradicted (1 of 4 diverged)"),
        (BETTER, [2, 2.1, 2.2], [None, None, 1.3], "undecided (the baseline diverged)"),
        (BETTER, [2, 2.1], [], "not run (no baseline)"),
    ],
)
def test_every_verdict_and_its_reason(claim, ours, baseline, expected):
    [found] = Comparison.of(records_of("imdb", {"baseline": baseline, "ga-sam": ours}))
    assert str(judge(claim, found.rows[-1])) == expected


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
    found = verdicts(records_of("ptb", {"baseline": BASELINE, "sam": scores(3), "ga-sam": scores(3)}))
    assert found["SAM"] == "reproduced (both: worse)", "a perplexity"
    assert found["GA-SAM"] == "contradicted (paper: better)"
    unpaired = [record("imdb", seed=1), record("imdb", "ga-sam", seed=2)]
    assert verdicts(unpaired)["GA-SAM"] == "not run (no baseline with its seeds)"
    assert set(verdicts([], "table5").values()) == {"", "not run"}


def test_a_row_has_the_runs_with_its_settings_and_the_asked_walk_beside_the_recommended_one():
    """A rung of a ladder has only its own epsilon. Where nothing was tuned, the paper's epsilon stands, undecided."""
    epsilon = {"epsilon": 5e-4, "norm": math.inf}
    runs = [record("imdb"), record("imdb", "ga-sam"), record("imdb", "ga-sam", 80.0, walk=epsilon, source="tuned")]
    runs.append(record("imdb", "ga-sam", 90.0, settings={"epochs": 30}))

    def shown(table, walks):
        rows = load(table).beside(runs, "small", walks).values
        return {row["row"]: row["test"]["mean"] for row in rows if row["key"] and row["row"] != "Baseline"}

    usual = record("imdb", "ga-sam").test
    assert shown("table1", "tuned") == {"GA-SAM": 80.0}
    assert shown("table1", "paper") == {"GA-SAM": usual}
    assert shown("table3", "tuned") == {"K = 1": 80.0, "L-inf, 1 x": usual, "L-inf, 5 x": 80.0}


def test_what_is_missing_is_told_in_core_hours_and_only_a_tuned_epsilon_contradicts():
    runs = records_of("imdb", {"baseline": BASELINE, "ga-sam": scores(-3)})
    rows = {row["row"]: row for row in load("table1").beside(runs, "small", "tuned").rows}
    hours = runs[0].seconds / 3600
    assert rows["GA-SAM"]["verdict"] == f"undecided (epsilon not tuned), {4 * 2 * hours:.1f} core-hours missing"
    assert rows["SAM"]["verdict"] == f"not run, {7 * 2 * hours:.1f} core-hours missing"
    assert verdicts(runs)["GA-SAM"] == "contradicted (paper: better)"
