"""Two budgets, shared masks and cost: which baseline stands beside a method, and no answer beyond its interval."""

import re

import pytest
from synthetic import STEPS, record, records_of

from gasam.lab.paper import studies
from gasam.lab.paper.studies import relative_cost
from gasam.lab.report.budgets import answer, as_dear, budget_table
from gasam.lab.report.costs import hours, hours_table, pilot_table
from gasam.lab.report.groups import grouped
from gasam.lab.report.noise import shared_masks
from gasam.lab.report.pages import page

BASELINE = [84.4, 84.5, 84.2, 84.6]
EPOCHS = record("imdb")["config"]["settings"]["epochs"]
HALVE = record("ptb")["config"]["settings"]["halve_after"]


def moved(shift, noise=0.05):
    return [score + shift + noise * (-1) ** number for number, score in enumerate(BASELINE)]


def longer(task, scores, times=2, **settings):
    epochs = record(task)["config"]["settings"]["epochs"]
    return records_of(task, {"baseline": scores}, settings={"epochs": times * epochs, **settings})


def shown(table):
    return {row[0]: row for row in table.rows}


def test_without_a_longer_baseline_there_is_one_budget():
    assert budget_table(records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}), "imdb", "small") is None
    assert budget_table(records_of("imdb", {"ga-sam": moved(1)}), "imdb", "small") is None
    assert budget_table([], "imdb", "small") is None


def test_each_method_stands_beside_both_baselines():
    runs = [
        *records_of("imdb", {"baseline": BASELINE, "sam": moved(0.2), "ga-sam": moved(1)}),
        *longer("imdb", moved(0.5)),
    ]
    table = budget_table(runs, "imdb", "small")
    assert list(shown(table)) == ["SAM", "GA-SAM"]
    _, result, epochs, evaluations, spent, dear = shown(table)["GA-SAM"]
    assert result.endswith("(4 seeds)")
    assert epochs.startswith("+1.00 [")
    assert evaluations.startswith("+0.50 [")
    assert spent == dear == f"{2 * STEPS * EPOCHS:,}"
    assert table.notes[1].startswith(f"Baseline (epochs {2 * EPOCHS}) has 84.92 ± ")


@pytest.mark.parametrize(
    ("ours", "long", "expected"),
    [
        (moved(1), moved(0.5, 0), "Yes: "),
        (moved(1), moved(2, 0), "No: "),
        (moved(-1), moved(-2, 0), "No: "),
        (moved(1), moved(1, 0), "Undecided: "),
        (moved(0), moved(-2, 0), "Undecided: "),
        (moved(1)[:1], moved(0.5, 0), "Undecided: "),
        ([None, *moved(1)[1:]], moved(0.5, 0), "Undecided: "),
        (moved(1), [None, *moved(0.5, 0)[1:]], "Undecided: "),
    ],
)
def test_the_answer_claims_no_more_than_both_intervals_carry(ours, long, expected):
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": ours}), *longer("imdb", long)]
    note = budget_table(runs, "imdb", "small").notes[0]
    assert note.startswith(f"Does GA-SAM still win when the baseline may spend as much? {expected}")


def test_lower_perplexity_wins_and_the_longer_schedule_counts_as_the_same_baseline():
    runs = records_of("ptb", {"baseline": BASELINE, "ga-sam": moved(-2)})
    runs += longer("ptb", moved(-1, 0), halve_after=2 * HALVE)
    assert "Yes: " in budget_table(runs, "ptb", "small").notes[0]


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        ("better", "better", "yes"),
        ("better", "worse", "no"),
        ("worse", "better", "no"),
        ("better", "no difference", "undecided"),
        ("no difference", "better", "undecided"),
        ("better", None, "undecided"),
        (None, "worse", "no"),
    ],
)
def test_to_win_means_to_beat_the_short_and_the_long_baseline(short, long, expected):
    assert answer(short, long) == expected


def test_a_baseline_that_spent_too_little_or_was_another_does_not_count():
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}), *longer("imdb", moved(0), times=3)]
    table = budget_table(runs, "imdb", "small")
    assert shown(table)["GA-SAM"][3] == "not run"
    assert f"Not run: no baseline spent about {2 * STEPS * EPOCHS:,} gradient evaluations." in table.notes[0]
    other = [*records_of("imdb", {"ga-sam": moved(1)}), *longer("imdb", moved(0), dropout=0.4)]
    groups = grouped(other)
    assert as_dear(groups[-1], groups) is None
    near = record("imdb", gradient_evaluations=2 * STEPS * EPOCHS * 0.91, settings={"epochs": 2 * EPOCHS})
    far = record("imdb", gradient_evaluations=2 * STEPS * EPOCHS * 0.89, settings={"epochs": 2 * EPOCHS})
    for plain, found in ((near, True), (far, False)):
        groups = grouped([plain, record("imdb", "ga-sam")])
        assert (as_dear(groups[1], groups) is groups[0]) is found


@pytest.mark.parametrize("valid", [190.0, 210.0])
def test_of_two_baselines_that_spent_as_much_validation_prefers_one(valid):
    """Of perplexities the lower; one that diverged is no baseline to beat."""
    spent = {"gradient_evaluations": 2 * record("ptb")["gradient_evaluations"]}
    soon, late, lost = (
        record("ptb", **spent, valid=each, test=test, settings={"epochs": 99, "halve_after": HALVE + more})
        for more, (each, test) in enumerate([(200.0, 201.0), (valid, 202.0), (None, None)])
    )
    groups = grouped([record("ptb"), soon, late, lost, record("ptb", "ga-sam")])
    assert as_dear(groups[-1], groups).runs == (late if valid < 200 else soon,)


def test_the_tuned_radius_answers_for_its_method():
    tuned = [
        record("imdb", "ga-sam", test, seed=seed, walk={"epsilon": 5e-4}, epsilon_source="tuned on validation, 6 tries")
        for seed, test in enumerate(moved(1), 1)
    ]
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(0)}), *tuned, *longer("imdb", moved(0.5, 0))]
    table = budget_table(runs, "imdb", "small")
    assert list(shown(table)) == ["GA-SAM (tuned: L-inf 0.0005)"]
    assert "Does GA-SAM (tuned: L-inf 0.0005) still win when the baseline may spend as much? Yes" in page(runs)


def test_a_longer_baseline_that_chose_the_same_epochs_is_called_the_same_model():
    runs = records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)})
    twin = [run | {"best_epoch": EPOCHS} for run in longer("imdb", BASELINE)]
    _, note = budget_table([*runs, *twin], "imdb", "small").notes
    assert note.startswith(f"Baseline (epochs {2 * EPOCHS}) took the same epochs as Baseline with every seed")
    twin[0]["best_epoch"] += 1
    _, note = budget_table([*runs, *twin], "imdb", "small").notes
    assert note.startswith(f"Baseline (epochs {2 * EPOCHS}) has 84.42")


def test_a_method_that_was_trained_longer_itself_stands_beside_the_baseline_with_as_many_epochs():
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}), *longer("imdb", moved(0.5, 0))]
    runs += records_of("imdb", {"ga-sam": moved(2)}, settings={"epochs": 2 * EPOCHS})
    table = budget_table(runs, "imdb", "small")
    [note] = [note for note in table.notes if note.startswith("GA-SAM")]
    long = f"(epochs {2 * EPOCHS})"
    assert re.fullmatch(
        rf"GA-SAM {re.escape(long)} has 86\.42 ± .*, \+1\.50 \[.*\] \(better\) to Baseline {re.escape(long)}\.", note
    )
    assert list(shown(table)) == ["GA-SAM"]


def test_shared_masks_are_compared_with_fresh_ones_of_the_same_walk():
    fresh = records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)})
    shared = records_of("imdb", {"ga-sam": moved(2, 0.1)}, walk={"same_noise": True})
    [sentence] = shared_masks(grouped([*fresh, *shared]))
    assert sentence.startswith("imdb, size small, GA-SAM: 86.42 ± ")
    assert ", +1.00 [" in sentence
    assert "]: better. By seed 86.50, 86.40, 86.30, 86.50 with shared masks, 85.45, 85.45," in sentence
    unsure = records_of("imdb", {"ga-sam": moved(1, 5)}, walk={"same_noise": True})
    [sentence] = shared_masks(grouped([*fresh, *unsure]))
    assert "]: undecided, for the interval holds zero. By seed" in sentence
    assert "## Shared dropout masks" in page([*fresh, *shared])
    another = records_of("imdb", {"ga-sam": moved(2)}, walk={"same_noise": True, "steps": 2})
    assert list(shared_masks(grouped([*fresh, *another]))) == []
    assert "## Shared dropout masks" not in page(fresh)


def test_seconds_a_run_are_medians_of_the_sizes_own_runs():
    runs = [record("imdb", seed=seed, seconds=seconds) for seed, seconds in enumerate((100, 110, 500), 1)]
    runs += [record("imdb", "ga-sam", seconds=220), record("imdb", "ga-sam", seconds=9999, walk={"steps": 3})]
    runs += [record("imdb", seconds=9999, settings={"epochs": 99}), record("imdb", test=None, seed=4, seconds=1)]
    [imdb, ptb] = pilot_table(runs, ["imdb", "ptb"], "small").rows
    assert imdb == ("imdb", "110 (3 runs)", "220 (1 run)", "2.00x")
    assert ptb == ("ptb", "not run", "not run", "")


def test_hours_are_those_of_every_run_that_a_table_needs():
    two = studies.load("table2")
    plans = two.plans("small", ["imdb"])
    assert hours(two, "small", {"imdb": 360.0}) == pytest.approx(0.1 * sum(map(relative_cost, plans)))
    assert hours(two, "small", {"imdb": 360.0}) == pytest.approx(0.1 * 4 * (1 + 10 * 2)), "ten walks with K = 1"
    [row] = hours_table([two], [record("imdb", seconds=360.0)], "small").rows
    assert row == ("Table 2", "88", "168", "8.4 without ptb")
    assert hours_table([two], [], "small").rows[0][-1] == "not known"
