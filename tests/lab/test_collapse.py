"""Tables say which methods collapsed, how to cure it, and what to conclude."""

import json

import pytest
from synthetic import records_of

from gasam.lab.report.comparison import comparison

NOISE = {"test_error": 0.5, "worthless": 50.0}


def table(scores, task="imdb", flags="", **fields):
    runs = records_of(task, scores, **NOISE | fields)
    return comparison(runs, task, "small", flags)


def test_a_method_clearly_below_the_baseline_is_marked_with_the_command_that_helps():
    found = table({"baseline": [80.0], "sam": [79.0], "ga-sam": [55.0]}, flags=" --train 'my texts.csv' --out runs")
    cells = {row[0]: row[1] for row in found.rows}
    assert "collapsed" in cells["GA-SAM"]
    assert "collapsed" not in cells["SAM"] + cells["Baseline"]
    command = "`gasam tune imdb --method ga-sam --size small --train 'my texts.csv' --out runs`"
    [warning] = [note for note in found.notes if "collapsed" in note]
    assert warning.startswith("GA-SAM collapsed")
    assert command in warning


@pytest.mark.parametrize(("score", "error", "marked"), [(76.5, 0.1, True), (77.5, 0.1, False), (76.5, 2.0, False)])
def test_a_collapse_is_a_tenth_of_what_was_learned_and_beyond_the_noise(score, error, marked):
    found = table({"baseline": [80.0], "ga-sam": [score]}, test_error=error)
    assert ("collapsed" in found.rows[1][1]) == marked


def test_a_perplexity_collapses_upwards():
    found = table({"baseline": [100.0], "sam": [90.0], "ga-sam": [120.0]}, "ptb", worthless=600.0)
    cells = {row[0]: row[1] for row in found.rows}
    assert "collapsed" in cells["GA-SAM"]
    assert "collapsed" not in cells["SAM"]


def test_a_method_that_diverged_has_collapsed():
    assert any("GA-SAM collapsed" in note for note in table({"baseline": [80.0], "ga-sam": [None]}).notes)


def test_guessing_level_is_reported():
    assert any("guessing (accuracy 50.00%)" in note for note in table({"baseline": [50.4]}).notes)
    assert not any("guessing" in note for note in table({"baseline": [54.0]}).notes)


def test_older_records_are_not_judged():
    found = comparison(records_of("imdb", {"baseline": [80.0], "ga-sam": [50.0]}), "imdb", "small")
    assert not any("collapsed" in note or "guessing" in note for note in found.notes)


def test_one_sentence_says_what_to_conclude():
    one, better, unclear = (
        table(scores).notes[0]
        for scores in (
            {"baseline": [80.0], "ga-sam": [85.0]},
            {"baseline": [80.0, 80.1, 80.2], "ga-sam": [82.0, 82.2, 82.1]},
            {"baseline": [80.0, 81.0, 82.0], "ga-sam": [82.0, 80.0, 82.5]},
        )
    )
    assert "--seeds" in one
    assert "+5.00" not in one
    assert "better" in better
    assert "+2.00 [" in better
    assert "no clear difference" in unclear
    assert "+0.50 [" in unclear


def test_comparison_of_own_data_names_its_files(command, tmp_path):
    """A walk of a hundred times the weights must collapse, and the message must hold the file and the settings."""
    file = tmp_path / "my texts.csv"
    rows = [f"{'good fine nice' if number % 2 else 'bad poor awful'} thing,{number % 2}" for number in range(300)]
    file.write_text("\n".join(["text,label", *rows]) + "\n")
    ended = command("compare", "classify", "--size", "tiny", "--train", file, "--epochs", "8", "--methods",
                    "baseline,ga-sam", "--walk", "ga-sam.epsilon=100", "--jobs", "1", "--cpu",
                    "--out", tmp_path / "runs", "--json")  # fmt: skip
    assert ended.code == 0, ended.err
    [note] = [note for note in json.loads(ended.out)["notes"] if "collapsed" in note]
    assert f"gasam tune classify --method ga-sam --size tiny --train '{file}' --set epochs=8 --out" in note


def test_a_method_that_never_walked_is_named():
    runs = records_of("imdb", {"baseline": [80.0], "ga-sam": [80.0]}, size="small")
    runs[1].gradient_evaluations = runs[1].updates
    notes = comparison(runs, "imdb", "small").notes
    assert any(note.startswith("GA-SAM never walked") for note in notes)


def test_without_the_flags_of_a_command_none_is_suggested():
    notes = table({"baseline": [80.0], "ga-sam": [55.0]}, flags=None).notes
    assert "GA-SAM collapsed." in notes
