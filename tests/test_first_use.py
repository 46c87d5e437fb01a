"""The first-use benchmark: its arithmetic on made-up records, a tiny run that resumes, and the tables in the guide."""

import pytest
from benchmarks.first_use.__main__ import run
from benchmarks.first_use.setups import SETUPS
from benchmarks.first_use.setups.classification import DigitsCNN
from benchmarks.first_use.tables import FINAL_SEEDS, clean_table, frame, pages, rounded_table
from benchmarks.first_use.training import VARIANTS, read


def record(variant, seed, validation, test, setup="digits-cnn"):
    """A run whose scores with rounded weights are 1 and 10 lower."""
    epochs = {"validation": validation, "test": test, "passes": list(range(len(test)))}
    for bits, lost in ((4, 1), (3, 10)):
        epochs |= {f"{name} {bits} bits": [value - lost for value in epochs[name]] for name in ("validation", "test")}
    return {"setup": setup, "variant": variant, "seed": seed, "epochs": epochs, "averaged": epochs}


def cells(table, title):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return dict(zip(lines[0], next(line for line in lines if line[0].startswith(title)), strict=True))


def test_epochs_are_those_best_on_validation():
    """Plain training is best in epoch 1 of its first two, and in its last one of all."""
    rows = [record("plain", seed, [5, 4, 6, 9], [47 + seed, 10, 57, 59 + seed]) for seed in FINAL_SEEDS]
    rows += [record("1 pass", seed, [7, 8], [10, 42 + seed]) for seed in FINAL_SEEDS]
    rows += [record("1.1 passes", seed, [9] * 6 + [1, 2, 1, 1], [0] * 7 + [47.5 + seed, 0, 0]) for seed in FINAL_SEEDS]
    found = cells(clean_table(frame(rows, FINAL_SEEDS)), SETUPS["digits-cnn"].title)
    assert (found["plain"], found["plain, 2 passes"]) == ("69.00 ± 1.00", "+12.00 ± 0.00 better")
    assert (found["1 pass"], found["1.1 passes"]) == ("-5.00 ± 0.00 worse", "+0.50 ± 0.00")
    rounded = cells(rounded_table(frame(rows, FINAL_SEEDS)), SETUPS["digits-cnn"].title)
    assert (rounded["plain"], rounded["lost by rounding"]) == ("59.00 ± 1.00", "-10.00 ± 0.00")


def test_lower_may_be_better():
    rows = [record("plain", seed, [9, 8, 7, 6], [9, 8 + seed / 100, 7, 6], "pydoc-lstm") for seed in (4, 5, 6)]
    rows += [record("1 pass", seed, [9, 9.5], [9, 1], "pydoc-lstm") for seed in (4, 5, 6)]
    assert cells(clean_table(frame(rows, (4, 5, 6))), "LSTM")["1 pass"] == "+0.95 ± 0.01 worse"
    assert cells(clean_table(frame(rows, (4, 5))), "LSTM")["1 pass"] == "+0.96, +0.95", "two seeds decide nothing"


@pytest.mark.filterwarnings("ignore:the walk")
def test_tiny_run_is_recorded_once(tmp_path, capsys):
    class Tiny(DigitsCNN):
        epochs, rows = 1, 64

    path = tmp_path / "results.jsonl"
    for _ in range(2):
        run([Tiny()], list(VARIANTS), [1], path)
    found = read(path)
    assert [each["variant"] for each in found] == list(VARIANTS)
    assert found[0]["epochs"]["passes"] == [4, 8], "plain training runs for twice the epochs"
    assert capsys.readouterr().out.count("digits-cnn, ") == len(VARIANTS)


def test_tables_in_the_pages_are_made_from_the_records():
    for page, made in pages(read()).items():
        assert page.read_text(encoding="utf-8") == made, page


def test_nearly_every_set_up_is_in_the_tables():
    assert len({each["setup"] for each in read() if each["seed"] in FINAL_SEEDS}) >= 9
