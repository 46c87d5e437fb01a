"""Comparisons: differences paired by seed, plain training of equal cost, what collapsed, and the list of runs."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from synthetic import STEPS, record, records_of
from tools import results

from gasam.lab import record as records
from gasam.lab.report.comparison import Comparison, paired, run_list

BASELINE = [84.4, 84.5, 84.2, 84.6]
EPOCHS = record("imdb").settings["epochs"]
NOISE = {"test_error": 0.5, "worthless": 50.0}
PASSES, LONG = "passes", "at equal cost"


def moved(shift, noise=0.05):
    return [score + shift + noise * (-1) ** number for number, score in enumerate(BASELINE)]


def longer(task, scores, times=2, **settings):
    return records_of(
        task, {"baseline": scores}, settings={"epochs": times * record(task).settings["epochs"], **settings}
    )


def shown(runs):
    """The table of one comparison by label."""
    [found] = Comparison.of(runs)
    return {row["method"]: row for row in found.table().rows}


def interval(ours, theirs):
    """As a table shows it, from scipy."""
    found = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    mean = sum(ours) / len(ours) - sum(theirs) / len(theirs)
    return f"{mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")  # scipy, where pairs differ alike
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=3, max_size=8))
def test_a_difference_is_that_of_scipy(pairs):
    ours, theirs = ({seed: pair[side] for seed, pair in enumerate(pairs)} for side in (0, 1))
    found = paired(ours | {99: 1.0}, theirs)
    assert found.pairs == len(pairs)
    assert found.mean == pytest.approx(sum(a - b for a, b in pairs) / len(pairs), abs=1e-9)
    expected = stats.ttest_rel(list(ours.values()), list(theirs.values())).confidence_interval(0.95)
    if math.isfinite(expected.low) and expected.high - expected.low > 1e-9:
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)


def test_fewer_than_three_pairs_have_no_interval_and_decide_nothing():
    two = paired({1: 2.0, 2: 3.0}, {1: 1.0, 2: 1.0})
    assert two == (1.5, None, None, 2)
    assert two.standing(higher_is_better=True) == "too few seeds"
    assert paired({1: 2.0}, {2: 1.0}) is None
    assert paired(dict.fromkeys(range(3), 2.0), dict.fromkeys(range(3), 1.0)) == (1.0, 1.0, 1.0, 3)
    [found] = Comparison.of(records_of("imdb", {"baseline": [84.0, 84.5], "ga-sam": [85.0, 85.5]}))
    assert found.standing == "too few seeds"
    assert "GA-SAM 85.00, 85.50, Baseline 84.00, 84.50. Fewer than 3 seeds decide nothing; use --seeds" in found.answer


def test_a_row_has_its_score_its_difference_and_its_cost():
    runs = records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)})
    found = shown(runs)
    assert found["Baseline"]["accuracy, %"] == "84.42 ± 0.17"
    assert shown([*reversed(runs), *runs]) == shown(runs), "order and repetition of records do not matter"
    assert found["GA-SAM"]["minus baseline, points [95%]"] == interval(moved(1), BASELINE)
    assert (found["GA-SAM"]["seeds"], found["GA-SAM"][PASSES]) == ("4", "2.00x")
    [values] = [row for row in Comparison.of(runs)[0].table().values if row["method"] == "ga-sam"]
    assert values["test"]["seeds"] == dict(enumerate(moved(1), 1))
    json.dumps(values, allow_nan=False)


@pytest.mark.parametrize(
    ("task", "shift", "standing"),
    [("imdb", 2, "better"), ("imdb", -2, "worse"), ("imdb", 0.01, "no clear difference"), ("ptb", -2, "better")],
)
def test_the_answer_follows_the_interval_and_the_direction_of_the_metric(task, shift, standing):
    [found] = Comparison.of(records_of(task, {"baseline": BASELINE, "sam": moved(5), "ga-sam": moved(shift)}))
    assert found.standing == standing
    assert interval(moved(shift), BASELINE) in found.answer
    assert standing in found.answer.lower()


def test_runs_that_diverged_are_counted_and_are_no_sample():
    runs = records_of("imdb", {"baseline": BASELINE, "sam": [None] * 4, "ga-sam": [*moved(1)[:3], None]}, **NOISE)
    found = shown(runs)
    assert found["SAM"]["accuracy, %"] == "diverged, collapsed"
    assert found["GA-SAM"]["accuracy, %"].endswith(", 1 diverged")
    [comparison] = Comparison.of(runs)
    assert comparison.standing == "undecided"
    assert found["GA-SAM"][PASSES] == "2.00x", "the run that stopped early is not cheap"


def test_longer_plain_training_of_equal_cost_stands_beside_a_method():
    long = moved(3, 0.02)
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}), *longer("imdb", long)]
    assert LONG not in {name for name, text in shown(runs[:8])["GA-SAM"].items() if text}
    found = shown(runs)
    assert found["GA-SAM"][LONG] == f"{interval(moved(1), long)}, epochs {2 * EPOCHS}"
    assert found[f"Baseline (epochs {2 * EPOCHS})"]["minus baseline, points [95%]"] == interval(long, BASELINE)
    [comparison] = Comparison.of(runs)
    assert f"At equal cost, compared with Baseline (epochs {2 * EPOCHS}): worse" in comparison.answer
    assert "GA-SAM is better" in comparison.answer


def test_only_plain_training_that_differs_in_its_length_alone_costs_as_much():
    walk = records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)})
    assert not shown([*walk, *longer("imdb", moved(0), times=3)])["GA-SAM"][LONG]
    other = [*records_of("imdb", {"ga-sam": moved(1)}), *longer("imdb", moved(0), dropout=0.4)]
    assert not shown(other)["GA-SAM"][LONG]
    halve = 2 * record("ptb").settings["halve_after"]
    runs = [
        *records_of("ptb", {"baseline": BASELINE, "ga-sam": moved(-2)}),
        *longer("ptb", moved(-1, 0.02), halve_after=halve),
    ]
    assert shown(runs)["GA-SAM"][LONG].startswith(interval(moved(-2), moved(-1, 0.02)))


@pytest.mark.parametrize("valid", [190.0, 210.0])
def test_of_two_that_cost_as_much_validation_prefers_one(valid):
    spent = {"gradient_evaluations": 2 * record("ptb").gradient_evaluations}
    one, other = (
        record("ptb", test=test, valid=each, settings={"epochs": 99, "halve_after": halve}, **spent)
        for test, each, halve in ((201.0, 200.0, 1), (202.0, valid, 2))
    )
    [found] = Comparison.of([record("ptb"), one, other, record("ptb", "ga-sam")])
    assert found.rows[-1].equal_cost.records == [other if valid < 200 else one]


def test_configurations_of_a_method_are_rows_with_what_sets_them_apart():
    runs = records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)})
    runs += records_of("imdb", {"ga-sam": moved(2)}, walk={"steps": 2})
    runs += records_of("imdb", {"ga-sam": moved(3)}, settings={"dropout": 0.45})
    runs += records_of("imdb", {"ga-sam": moved(4)}, walk={"epsilon": 5e-4}, source="tuned")
    found = list(shown(runs))
    assert len(found) == 5
    for part in ("K = 2", "dropout 0.45", "tuned"):
        assert [part in label for label in found].count(True) == 1
    shared = records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}, settings={"dropout": 0.45})
    assert list(shown(shared)) == ["Baseline", "GA-SAM"], "what all rows share labels none"


def test_other_data_is_another_comparison():
    mine = {"hash": "mine", "encoding": 1, "files": ["mine.csv"]}
    runs = [record("imdb"), record("imdb", "ga-sam"), record("imdb", "ga-sam", data=mine)]
    assert [each.title for each in Comparison.of(runs)] == ["imdb, size small", "imdb, size small, mine.csv"]


@pytest.mark.parametrize(
    ("task", "plain", "score", "error", "marked"),
    [
        ("imdb", 80.0, 76.5, 0.1, True),
        ("imdb", 80.0, 77.5, 0.1, False),
        ("imdb", 80.0, 76.5, 2.0, False),
        ("ptb", 100.0, 120.0, 0.5, True),
        ("ptb", 100.0, 90.0, 0.5, False),
    ],
)
def test_a_collapse_is_a_tenth_of_what_was_learnt_and_beyond_the_noise(task, plain, score, error, marked):
    worthless = 50.0 if task == "imdb" else 600.0
    [found] = Comparison.of(
        records_of(task, {"baseline": [plain], "ga-sam": [score]}, worthless=worthless, test_error=error)
    )
    assert ("collapsed" in found.rows[-1].score) == marked
    assert ("GA-SAM collapsed." in found.notes()) == marked


def test_models_that_guess_and_methods_that_never_walked_are_named():
    waits = record("imdb", "ga-sam", 60.0, walk={"walk_progress": 0.2}, **NOISE)
    waits.gradient_evaluations = waits.updates
    one_pass = record("imdb", "momentum-sam", 60.0, walk={"walk_progress": 0.2}, **NOISE)
    one_pass.gradient_evaluations = one_pass.updates
    [found] = Comparison.of([record("imdb", test=50.4, **NOISE), waits, one_pass])
    assert [row["passes"] for row in found.table().rows] == ["", "1.00x", "1.00x"]
    assert found.rows[-1].equal_cost is found.rows[0]
    notes = " ".join(found.notes())
    assert "Baseline is no better than guessing (50.00%)" in notes
    assert "GA-SAM never walked" in notes
    assert "Momentum-SAM never walked" not in notes


def test_charts_hold_every_seed_and_only_what_was_measured():
    scores = {"baseline": BASELINE[:3], "sam": [None] * 3, "ga-sam": moved(1)[:3]}
    [found] = Comparison.of(records_of("imdb", scores))
    curves, differences = found.charts()
    assert [row["kind"] for row in differences.values if row["label"] == "GA-SAM"] == ["mean", "seed", "seed", "seed"]
    assert not [row for row in differences.values if row["label"] == "SAM"]
    last = [row for row in curves.values if row["label"] == "Baseline"][-1]
    assert last["x"] == STEPS * EPOCHS
    assert last["low"] < last["y"] < last["high"]
    assert found.walks() == []


def test_the_list_of_runs_has_texts_for_people_and_values_for_programs():
    table = run_list([record("imdb", "ga-sam", 80.5), record("imdb", "sam", None)], "Runs")
    assert [row["test"] for row in table.rows] == ["80.50%", "diverged"]
    assert [row["test"] for row in table.values] == [80.5, None]
    assert table.csv().startswith("name,task,size,method,seed,")


def test_the_page_of_results_is_what_the_records_give():
    made = results.page(results.ROOT)
    assert (results.ROOT / results.PAGE).read_text(encoding="utf-8") == made, "run `make results`"


def test_finished_runs_are_added_once_and_without_their_details(tmp_path):
    runs = tmp_path / "runs"
    for each in records_of("imdb", {"baseline": [80.0, 81.0]}):
        records.write(runs / f"{each.name}.json", each)
    for _ in range(2):
        results.add(runs, tmp_path)
    found = results.read(tmp_path / results.RUNS)
    assert [line["test"] for line in sorted(found, key=lambda line: line["seed"])] == [80.0, 81.0]
    assert all(point.keys() == {"epoch", "valid"} for point in found[0]["curve"])
