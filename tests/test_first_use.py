"""The first-use benchmark: its arithmetic on made-up records, one tiny run that resumes, and the table in the guide."""

import pytest
from benchmarks.first_use.__main__ import run
from benchmarks.first_use.setups.classification import DigitsCNN
from benchmarks.first_use.tables import FINAL_SEEDS, GUIDE, START, STOP, choose, table
from benchmarks.first_use.training import read


def record(variant, seed, validation, test, setup="digits-cnn", passes=10):
    """A run of two epochs; of plain training four."""
    epochs = {"validation": validation, "test": test, "passes": [passes * (i + 1) for i in range(len(test))]}
    return {"setup": setup, "variant": variant, "seed": seed, "epochs": epochs}


def cells(text):
    return [cell.strip() for cell in text.splitlines()[2].strip("|").split("|")]


def test_best_epochs_equal_epochs_and_equal_cost():
    """Plain training is best in epoch 1 of the first two, and in epoch 3 of the three that cost as much as the walk."""
    rows = [record("plain", seed, [5, 4, 6, 9], [47 + seed, 10, 57 + seed, 99]) for seed in (4, 5, 6)]
    rows += [record("recommended", seed, [7, 8], [10, 52 + seed], passes=15) for seed in (4, 5, 6)]
    found = cells(table(rows))
    title = "CNN with BatchNorm, digits"
    assert found == [title, "accuracy, %", "52.00 ± 1.00", "+5.00 ± 0.00", "-", "-5.00 ± 0.00 **worse**", "1.50"]


def test_lower_may_be_better():
    rows = [record("plain", seed, [9, 8, 7, 6], [9, 8, 7, 6], "pydoc-lstm") for seed in (4, 5)]
    rows += [record("sam", seed, [9, 9.5], [9, 1], "pydoc-lstm") for seed in (4, 5)]
    assert cells(table(rows))[4] == "+1.00, +1.00 **worse**"


def test_choice_counts_set_ups_on_validation():
    rows = [record("plain", seed, [5, 4, 6, 9], [0, 0, 0, 0]) for seed in (11, 12)]
    rows += [record("recommended", seed, [7, 8], [0, 0]) for seed in (11, 12)]
    text = choose(rows)
    assert "| better than plain | set-ups | 0 | 1 |" in text


@pytest.mark.filterwarnings("ignore:the walk")
def test_tiny_run_is_recorded_once(tmp_path, capsys):
    class Tiny(DigitsCNN):
        epochs, rows = 1, 64

    path = tmp_path / "results.jsonl"
    run([Tiny()], ["plain", "recommended"], [1], path)
    run([Tiny()], ["plain", "recommended"], [1], path)
    found = read(path)
    assert [(each["variant"], len(each["epochs"]["test"])) for each in found] == [("plain", 2), ("recommended", 1)]
    assert capsys.readouterr().out.count("digits-cnn, ") == 2
    assert "cap=0.01" in found[1]["walk"]


def test_table_in_the_guide_is_made_from_the_records():
    block = GUIDE.read_text(encoding="utf-8").split(START)[1].split(STOP)[0]
    assert block == f"\n{table(read())}\n"
    assert len({each["setup"] for each in read() if each["seed"] in FINAL_SEEDS}) >= 8
