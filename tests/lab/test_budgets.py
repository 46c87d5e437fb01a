"""Two budgets and shared masks: which baseline a method is compared with, and no interval from two seeds."""

import pytest
from scipy import stats
from synthetic import STEPS, record, records_of

from gasam.lab.report.comparison import comparison
from gasam.lab.report.frame import group_runs
from gasam.lab.report.notes import conclusion

BASELINE = [84.4, 84.5, 84.2, 84.6]
EPOCHS = record("imdb").settings["epochs"]
HALVE = record("ptb").settings["halve_after"]
SHORT = "vs baseline, points [95% interval]"
LONG = "vs baseline, equal gradient evaluations"
TIME = "vs baseline, equal time"
FRESH = "vs fresh masks"


def moved(shift, noise=0.05):
    return [score + shift + noise * (-1) ** number for number, score in enumerate(BASELINE)]


def longer(task, scores, times=2, **settings):
    epochs = record(task).settings["epochs"]
    return records_of(task, {"baseline": scores}, settings={"epochs": times * epochs, **settings})


def shown(runs, task="imdb", step_times=None):
    """What people read, by label."""
    table = comparison(runs, task, "small", step_times=step_times)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return dict(zip([row["label"] for row in table.values], rows, strict=True))


def interval(ours, theirs):
    """As a table shows it, from scipy."""
    found = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    mean = sum(ours) / len(ours) - sum(theirs) / len(theirs)
    return f"{mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def test_without_a_longer_baseline_there_is_one_budget():
    found = shown(records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}))
    assert LONG not in found["GA-SAM"]


def test_each_method_stands_beside_both_baselines():
    scores = {"baseline": BASELINE, "sam": moved(0.2), "ga-sam": moved(1)}
    long = moved(0.5, 0.02)
    found = shown([*records_of("imdb", scores), *longer("imdb", long)])
    for label, method in (("SAM", "sam"), ("GA-SAM", "ga-sam")):
        assert found[label][SHORT] == interval(scores[method], BASELINE)
        assert found[label][LONG] == f"{interval(scores[method], long)}, epochs {2 * EPOCHS}"
    plain = found[f"Baseline (epochs {2 * EPOCHS})"]
    assert plain[LONG] == ""
    assert plain[SHORT] == interval(long, BASELINE)
    assert plain["gradient evaluations"].startswith(f"{2 * STEPS * EPOCHS:,} ")


def test_a_longer_baseline_with_the_same_weights_is_no_second_opponent():
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}), *longer("imdb", BASELINE)]
    found = shown(runs)
    assert found["GA-SAM"][LONG] == "same weights"
    assert found[f"Baseline (epochs {2 * EPOCHS})"][SHORT] == "same weights"
    other = [*runs[:-1], *longer("imdb", [*BASELINE[:-1], 84.7])[-1:]]
    assert shown(other)["GA-SAM"][LONG].startswith(interval(moved(1), [*BASELINE[:-1], 84.7]))


def test_the_longer_schedule_counts_as_the_same_baseline():
    long = moved(-1, 0)
    runs = records_of("ptb", {"baseline": BASELINE, "ga-sam": moved(-2)})
    runs += longer("ptb", long, halve_after=2 * HALVE)
    opponent = f"epochs {2 * record('ptb').settings['epochs']}, halve after {2 * HALVE}"
    assert shown(runs, "ptb")["GA-SAM"][LONG] == f"{interval(moved(-2), long)}, {opponent}"


def test_a_baseline_that_spent_too_little_or_was_another_does_not_count():
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}), *longer("imdb", moved(0), times=3)]
    assert group_runs(runs)[-1].longer is None
    other = [*records_of("imdb", {"ga-sam": moved(1)}), *longer("imdb", moved(0), dropout=0.4)]
    assert group_runs(other)[-1].longer is None
    near = record("imdb", gradient_evaluations=int(2 * STEPS * EPOCHS * 0.91), settings={"epochs": 2 * EPOCHS})
    far = record("imdb", gradient_evaluations=int(2 * STEPS * EPOCHS * 0.89), settings={"epochs": 2 * EPOCHS})
    for plain, counts in ((near, True), (far, False)):
        groups = group_runs([plain, record("imdb", "ga-sam")])
        assert (groups[1].longer is groups[0]) is counts


@pytest.mark.parametrize("valid", [190.0, 210.0])
def test_of_two_baselines_that_spent_as_much_validation_prefers_one(valid):
    """Of perplexities the lower; one that diverged is no baseline to beat."""
    spent = {"gradient_evaluations": 2 * record("ptb").gradient_evaluations}
    soon, late, lost = (
        record("ptb", **spent, valid=each, test=test, settings={"epochs": 99, "halve_after": HALVE + more})
        for more, (each, test) in enumerate([(200.0, 201.0), (valid, 202.0), (None, None)])
    )
    groups = group_runs([record("ptb"), soon, late, lost, record("ptb", "ga-sam")])
    assert groups[-1].longer.records == [late if valid < 200 else soon]


def test_a_method_that_was_trained_longer_itself_stands_beside_the_baseline_with_as_many_epochs():
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}), *longer("imdb", moved(0.5, 0.02))]
    runs += records_of("imdb", {"ga-sam": moved(2)}, settings={"epochs": 2 * EPOCHS})
    found = shown(runs)[f"GA-SAM (epochs {2 * EPOCHS})"][SHORT]
    assert found == f"{interval(moved(2), moved(0.5, 0.02))}, epochs {2 * EPOCHS}"


def test_shared_masks_are_compared_with_fresh_ones_of_the_same_walk():
    fresh = records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)})
    shared = records_of("imdb", {"ga-sam": moved(2, 0.1)}, walk={"same_noise": True})
    found = shown([*fresh, *shared])
    assert found["GA-SAM (same noise)"][FRESH] == interval(moved(2, 0.1), moved(1))
    assert found["GA-SAM"][FRESH] == ""
    another = records_of("imdb", {"ga-sam": moved(2)}, walk={"same_noise": True, "steps": 2})
    assert FRESH not in shown([*fresh, *another])["GA-SAM"]


def test_scores_are_shown_seed_by_seed_where_some_learn_and_others_do_not_and_for_few_seeds():
    scores = {"baseline": BASELINE, "sam": [86.0, 50.0, 86.1], "asam": [84.0, 85.2], "ga-sam": moved(1)}
    runs = [*records_of("imdb", scores), record("imdb", "freelb", 85.0)]
    found = {label: row["accuracy, % (higher is better)"] for label, row in shown(runs).items()}
    assert found["SAM"].endswith("(3 seeds: 86.00, 50.00, 86.10)")
    assert found["ASAM"] == "84.00, 85.20 (2 seeds)"
    assert found["FreeLB"] == "85.00 (1 seed)"
    assert found["GA-SAM"].endswith("(4 seeds)")
    assert shown(runs)["ASAM"][SHORT] == "+0.15", "two seeds have no interval"


def test_the_conclusion_has_both_budgets():
    """A method that gains at equal epochs may lose to plain training that costs as much."""
    runs = records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)})
    [alone] = conclusion(group_runs(runs))
    assert alone == f"GA-SAM is better than the baseline: {interval(moved(1), BASELINE)} points over 4 seeds."
    long = moved(3, 0.02)
    [found] = conclusion(group_runs([*runs, *longer("imdb", long)]))
    opponent = f"longer plain training (epochs {2 * EPOCHS})"
    worse = f"At equal cost, compared with {opponent}: worse, {interval(moved(1), long)}."
    assert found == f"{alone} {worse}"


def test_equal_time_needs_step_times_and_a_baseline_that_took_as_long():
    """A walk that takes 2.5 times as long is compared with 2.5 times the epochs, not with twice as many."""
    long, longest = moved(0.5, 0.02), moved(0.75, 0.01)
    runs = [*records_of("imdb", {"baseline": BASELINE, "ga-sam": moved(1)}), *longer("imdb", long)]
    runs += records_of("imdb", {"baseline": longest}, settings={"epochs": EPOCHS * 5 // 2})
    [walk] = {run.key for run in runs if run.method == "ga-sam"}
    times = {run.key: 1.0 for run in runs} | {walk: 2.5}
    assert TIME not in shown(runs)["GA-SAM"]
    found = shown(runs, step_times=times)
    assert found["GA-SAM"][LONG] == f"{interval(moved(1), long)}, epochs {2 * EPOCHS}"
    assert found["GA-SAM"][TIME] == f"{interval(moved(1), longest)}, epochs {EPOCHS * 5 // 2}"
    assert found["GA-SAM"]["step time"] == "2.50x"
    assert found["Baseline"][TIME] == ""
    assert shown(runs, step_times=times | {walk: 2.1})["GA-SAM"][TIME] == "see left"
    assert TIME not in shown(runs, step_times=times | {walk: 4.0})["GA-SAM"], "no baseline took that long"
