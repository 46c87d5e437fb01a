"""The sentence about each walk, on records whose answer is known."""

import pytest
from synthetic import record, records_of, tuned_and_untuned

from gasam.lab.report.contents import Contents
from gasam.lab.report.does_it_help import effects, ga_sam_minus
from gasam.lab.report.frame import groups_of
from gasam.lab.report.sections import every

SMALL = "small@3"
PLAIN = [84.0, 84.4, 84.2]


def found(scores, *more):
    """The sentences by the method, on imdb."""
    runs = [*records_of("imdb", {"baseline": PLAIN} | scores, size=SMALL), *more]
    groups = groups_of(runs, "imdb", SMALL)
    told = {key: str(effect) for key, effect in effects(groups).items()}
    return {group.method: told[group.key] for group in groups if group.key in told}


def test_words_follow_the_interval():
    told = found({"sam": [86.0, 86.4, 86.2], "asam": [84.1, 84.3, 84.3], "ga-sam": [82.0, 82.4, 82.2]})
    assert told == {
        "sam": "Equal epochs: better.",
        "asam": "Equal epochs: no clear difference.",
        "ga-sam": "Equal epochs: worse.",
    }


def test_a_narrow_interval_alone_is_named_as_such():
    """All seeds gain the same little, far less than seeds differ by: the test that pools the variance disagrees."""
    assert found({"sam": [84.01, 84.41, 84.21], "asam": [84.3, 83.9, 84.6]})["sam"] == (
        "Equal epochs: better, but not after the correction."
    )


def test_settings_of_its_own_are_in_no_correction():
    """Such a row has its own baseline, and the test that corrects compares only walks with the usual settings."""
    own = [
        record("imdb", method, score + seed / 10, size=SMALL, seed=seed, settings={"dropout": 0.5})
        for method, score in (("baseline", 80.0), ("layer-sam", 82.0))
        for seed in (1, 2, 3)
    ]
    assert found({"sam": [86.0, 86.4, 86.2]}, *own)["layer-sam"] == "Equal epochs: better, uncorrected."


@pytest.mark.parametrize(
    ("longer", "told"),
    [
        ([84.1, 84.3, 84.3], "Equal epochs and equal cost: better."),
        ([88.0, 88.4, 88.2], "Equal epochs: better; equal cost: worse."),
        (PLAIN, "Equal epochs: better."),  # the same weights as the shorter run
    ],
)
def test_equal_cost_is_longer_plain_training(longer, told):
    epochs = record("imdb", size=SMALL).settings["epochs"]
    twice = [
        record(
            "imdb", "baseline", score, size=SMALL, seed=seed, settings={"epochs": 2 * epochs}, gradient_evaluations=200
        )
        for seed, score in enumerate(longer, 1)
    ]
    walks = [
        record("imdb", "sam", score, size=SMALL, seed=seed, gradient_evaluations=200)
        for seed, score in enumerate([86.0, 86.4, 86.2], 1)
    ]
    assert found({}, *twice, *walks)["sam"] == told


def test_what_can_not_be_judged_says_why():
    assert found({"sam": [86.0, 86.4]})["sam"] == "Undecided: 2 common seeds."
    assert found({"sam": [86.0, 86.4, None]})["sam"] == "Undecided: seeds diverged."
    assert found({"baseline": [84.0, None, 84.2], "sam": [86.0, 86.4, 86.2]})["sam"] == "Undecided: seeds diverged."
    assert found({"baseline": [84.0, 84.4], "sam": [86.0, 86.4, 86.2]})["sam"] == "Undecided: 2 common seeds."
    assert found({"sam": [85.0, 50.0, 85.2]})["sam"] == "Undecided: seeds disagree."
    noisy = [
        record("imdb", "baseline", 84.0, size=SMALL, seed=seed, test_error=0.1, worthless=50.0) for seed in (1, 2, 3)
    ]
    lost = [record("imdb", "sam", 51.0, size=SMALL, seed=seed, test_error=0.1, worthless=50.0) for seed in (1, 2, 3)]
    groups = groups_of([*noisy, *lost], "imdb", SMALL)
    assert list({key: str(effect) for key, effect in effects(groups).items()}.values()) == ["It collapsed."]


def test_tuned_walks_are_compared_with_the_tuned_walk_of_ga_sam():
    groups = groups_of(tuned_and_untuned(SMALL), "imdb", SMALL)
    minus = {group.method: text for group in groups if (text := ga_sam_minus(groups).get(group.key))}
    assert {method: text.partition(" ")[0] for method, text in minus.items()} == {"sam": "-4.00", "asam": "+2.00"}
    assert "; tuned: +5.00 [" in minus["sam"], "its only row has both comparisons"
    assert "; tuned: +11.00 [" in minus["asam"]


def test_the_page_has_both_columns_beside_the_scores():
    runs = records_of("imdb", {"baseline": PLAIN, "sam": [86.0, 86.4, 86.2], "ga-sam": [87.0, 87.4, 87.2]}, size=SMALL)
    [section] = every(Contents(runs))["imdb"]
    [row] = [line for line in section.parts[0].splitlines() if line.startswith("| SAM")]
    assert row.endswith("| +1.00 [+1.00, +1.00] | Equal epochs: better. |")
    assert "| GA-SAM minus it, points | does it help? |" in section.parts[0].splitlines()[0]
    assert not any("minus other methods" in part for part in section.parts)
