"""The command `gasam runs`, the names of tables, and output that fits a terminal of 80 columns."""

import csv
import io
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import gasam
from gasam.lab import records
from gasam.lab.cli import display
from gasam.lab.cli.narrow import in_blocks, wrapped
from gasam.lab.tables import Table
from gasam.lab.tasks import TASKS, Origin
from gasam.lab.training.plan import make
from gasam.lab.training.run import run
from local_layout import sentence, write_lines

RESULTS = Path(__file__).parents[2] / "results"
COLUMNS = ["task", "size", "data", "data_hash", "method", "walk", "epochs", "seed", "metric", "valid", "test",
           "gradient_evaluations", "seconds", "path"]  # fmt: skip


def write_csv(file, rows):
    return write_lines(file, ["text,label", *(f"{sentence(i)},{i % 2}" for i in range(rows))])


@pytest.fixture(scope="module")
def own_runs(tmp_path_factory):
    """Two runs of one task on different files, made by the command's own code."""
    folder = tmp_path_factory.mktemp("own")
    for name, rows in (("a.csv", 40), ("b.csv", 50)):
        origin = Origin(train=str(write_csv(folder / name, rows)))
        run(make("classify", "sam", "tiny", origin=origin, walk={"epsilon": 0.01}), folder / "runs", cpu=True)
    return folder / "runs"


def listed(command, *options):
    ended = command("runs", *options, "--csv")
    assert ended.code == 0
    return list(csv.DictReader(io.StringIO(ended.out)))


def test_every_committed_run_is_listed_with_its_numbers(command):
    rows = listed(command, RESULTS)
    every = sorted([*RESULTS.glob("*.json"), *RESULTS.glob("gradient-norms/*.json")])
    assert sorted(row["path"] for row in rows) == sorted(str(file) for file in every)
    for row in rows[::20]:
        record = records.read(Path(row["path"]))
        assert list(row) == COLUMNS
        assert (row["task"], row["method"], int(row["seed"])) == (record.task, record.method, record.seed)
        assert (float(row["valid"]), float(row["test"])) == (record.valid, record.test)
        assert (float(row["gradient_evaluations"]), float(row["seconds"])) == (
            record.gradient_evaluations,
            record.seconds,
        )
        assert int(row["epochs"]) == record.settings["epochs"]


def test_json_has_the_same_rows(command):
    found = json.loads(command("runs", RESULTS, "--task", "en-vi", "--json").out)
    rows = listed(command, RESULTS, "--task", "en-vi")
    assert [each["path"] for each in found] == [row["path"] for row in rows]
    assert list(found[0]) == COLUMNS


def test_runs_are_filtered(command):
    rows = listed(command, RESULTS, "--task", "imdb,ptb", "--method", "ga-sam,baseline", "--seed", "1,2")
    assert {row["task"] for row in rows} == {"imdb", "ptb"}
    assert {row["method"] for row in rows} == {"ga-sam", "baseline"}
    assert {row["seed"] for row in rows} == {"1", "2"}
    assert "none of the " in command("runs", RESULTS, "--seed", 99).out


def test_the_best_run_of_each_kind_is_found_in_either_direction(command):
    rows = listed(command, RESULTS, "--task", "ptb")
    bests = listed(command, RESULTS, "--task", "ptb", "--best")
    assert sorted(best["size"] for best in bests) == sorted({row["size"] for row in rows})
    assert len(bests) > 1
    for best in bests:
        assert float(best["valid"]) == min(float(row["valid"]) for row in rows if row["size"] == best["size"])
    best = {row["size"]: row for row in listed(command, RESULTS, "--task", "imdb", "--best")}
    rows = [row for row in listed(command, RESULTS, "--task", "imdb") if row["size"] == "small"]
    same_data = [row for row in rows if row["data_hash"] == best["small"]["data_hash"]]
    assert float(best["small"]["valid"]) == max(float(row["valid"]) for row in same_data)


def test_runs_are_sorted(command):
    tests = [float(row["test"]) for row in listed(command, RESULTS, "--task", "imdb", "--sort", "test")]
    assert tests == sorted(tests, reverse=True)
    lower = [float(row["test"]) for row in listed(command, RESULTS, "--task", "ptb", "--sort", "test")]
    assert lower == sorted(lower)
    seconds = [float(row["seconds"]) for row in listed(command, RESULTS, "--sort", "seconds")]
    assert seconds == sorted(seconds)


def test_the_table_has_whole_paths_units_and_the_names_of_data(command, own_runs, monkeypatch):
    monkeypatch.chdir(own_runs.parent)
    monkeypatch.setattr(display.console, "_width", 80)
    shown = command("runs", "runs").out
    assert all(f"runs/{file.name}" in shown for file in own_runs.glob("*.json"))
    assert "a.csv" in shown
    assert "b.csv" in shown
    assert re.search(r"^ *\d+\.\d\d%  \d+\.\d\d%  +\d+\.\d s  +\d+  +\d+  sam, L-inf 0.01$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80
    monkeypatch.setattr(display.console, "_width", 250)
    wide = command("runs", "runs").out
    assert all(f"runs/{file.name}" in wide for file in own_runs.glob("*.json"))
    assert re.search(r"│ +\d+\.\d\d% │ +\d+\.\d\d% │ +\d+ │ +\d+\.\d s", wide)


def test_a_narrow_list_keeps_the_order_and_has_a_heading_for_each_task(command, monkeypatch):
    """Numbers are in columns, and every run has the numbers of its record above its path."""
    monkeypatch.setattr(display.console, "_width", 80)
    titles, *lines = command("runs", RESULTS, "--task", "imdb,ptb", "--seed", 1, "--sort", "test").out.splitlines()
    headings = [line for before, line in pairwise(lines) if not before]
    rows = listed(command, RESULTS, "--task", "imdb,ptb", "--seed", 1, "--sort", "test")
    recorded = {(row["task"], row["size"]) for row in rows}
    kinds = [(task, size) for task in ("imdb", "ptb") for size in TASKS[task].sizes if (task, size) in recorded]
    metrics = {"imdb": "accuracy (higher is better)", "ptb": "perplexity (lower is better)"}
    assert headings == [f"{task}, size {size}: {metrics[task]}" for task, size in kinds]
    assert len(headings) > 4
    paths = [line.strip() for line in lines if line.endswith(".json")]
    assert paths == [row["path"] for kind in kinds for row in rows if (row["task"], row["size"]) == kind]
    ends = [titles.index(title) + len(title) for title in ("valid", "test", "seconds", "epochs", "seed")]
    numbers = [
        [line[: ends[0]], *(line[i:j] for i, j in pairwise(ends))] for line in lines if line[ends[0] - 1 :].strip()
    ]
    found = [[cell.strip() for cell in row] for row in numbers if re.search(r"\d s$", row[2])]
    by_path = {row["path"]: row for row in rows}
    for path, (valid, test, seconds, epochs, seed) in zip(paths, found, strict=True):
        row = by_path[path]
        assert valid.rstrip("%") == f"{float(row['valid']):.2f}"
        assert test.rstrip("%") == f"{float(row['test']):.2f}"
        assert (seconds, epochs, seed) == (f"{float(row['seconds']):,.1f} s", row["epochs"], row["seed"])


def test_files_of_the_same_name_are_told_apart(command, own_runs, tmp_path):
    for number, file in enumerate(sorted(own_runs.glob("*.json"))):
        found = json.loads(file.read_text())
        found["data"]["files"] = ["a.csv"]
        write_lines(tmp_path / f"{number}.json", [json.dumps(found)])
    hashes = {row["data_hash"][:8] for row in listed(command, tmp_path)}
    shown = " ".join(command("runs", tmp_path).out.split())
    assert len(hashes) == 2
    assert all(part in shown for part in hashes)


def test_names_of_files_do_not_change_a_run(own_runs):
    """The hash is of the content; records without the field are read as before."""
    for file in own_runs.glob("*.json"):
        record = records.read(file)
        assert record.data.files in (["a.csv"], ["b.csv"])
        raw = json.loads(file.read_text())
        del raw["data"]["files"]
        assert "files" not in records.as_json(records.RunRecord.model_validate(raw))["data"]


def test_a_damaged_record_does_not_hide_the_others(command, own_runs, tmp_path):
    for file in own_runs.glob("*.json"):
        write_lines(tmp_path / file.name, [file.read_text()])
    torn = write_lines(tmp_path / "torn.json", ['{"task": "digits", '])
    for name in ("runs", "results"):
        ended = command(name, tmp_path)
        assert ended.code == 0
        assert "b.csv" in ended.out
        assert [line for line in ended.err.splitlines() if str(torn) in line] == ended.err.splitlines()
        assert len(ended.err.splitlines()) == 1
    assert len(listed(command, tmp_path)) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("runs nowhere", "no records in nowhere: train something first, or name another folder"),
        ("runs . --csv --json", "give either --csv or --json"),
        (f"runs {RESULTS} --sort colour", "--sort must be one of task, size, data,"),
        (f"runs {RESULTS} --seed one", "--seed must be whole numbers separated by commas, got 'one'"),
    ],
)
def test_bad_conditions_are_told(command, given, told):
    ended = command(*shlex.split(given))
    assert ended.code == 2
    assert ended.err.startswith(f"gasam: {told}")


def test_versions(command):
    ended = command("--version")
    assert ended.code == 0
    assert ended.out.startswith(f"gasam {gasam.__version__}, torch {torch.__version__}, Python 3.")


def test_comparisons_of_other_methods_data_or_settings_have_tables_of_their_own(command, tmp_path):
    """The same command rewrites its own table, also with more seeds. The runs are there already."""
    a, b = write_csv(tmp_path / "a.csv", 40), write_csv(tmp_path / "b.csv", 50)
    for train, seed, settings in ((a, 1, {}), (a, 2, {}), (b, 1, {}), (a, 1, {"epochs": 1})):
        plan = make("classify", "baseline", "tiny", seed, origin=Origin(train=str(train)), settings=settings)
        run(plan, tmp_path / "runs", cpu=True)
    common = ("--size", "tiny", "--cpu", "--jobs", 1, "--out", tmp_path / "runs")

    def tables(train, methods, *more):
        ended = command("compare", "classify", "--train", train, "--methods", methods, *common, *more)
        assert ended.code == 0
        return ended, sorted(file.stem for file in (tmp_path / "runs/tables").glob("*.md"))

    _, first = tables(a, "baseline")
    assert len(first) == 1
    ended, same = tables(a, "baseline")
    assert same == first
    assert "1 of 1 runs are already there, not run again" in ended.err
    _, seeds = tables(a, "baseline", "--seeds", 2)
    assert seeds == first
    tables(b, "baseline")
    _, every = tables(a, "baseline", "--epochs", 1)
    assert len(every) == 3
    assert [name.rpartition("-")[0] for name in every] == [
        "classify-tiny-a-baseline",
        "classify-tiny-a-baseline",
        "classify-tiny-b-baseline",
    ]


def test_a_finished_run_is_said_to_be_there(command, own_runs):
    file = next(file for file in own_runs.glob("*.json") if records.read(file).data.files == ["a.csv"])
    train = own_runs.parent / "a.csv"
    before = file.stat().st_mtime_ns
    ended = command(
        *shlex.split(f"train classify --train {train} --method sam --epsilon 0.01 --size tiny --cpu --out {own_runs}")
    )
    assert ended.code == 0
    assert "classify sam seed 1: already there, not run again" in ended.err
    assert file.stat().st_mtime_ns == before


LISTINGS = ["tasks", "methods", "data", "results results", "runs results"]


@pytest.mark.parametrize("given", LISTINGS)
def test_tables_fit_eighty_columns_without_broken_words(command, given, monkeypatch):
    monkeypatch.chdir(RESULTS.parent)
    monkeypatch.setattr(display.console, "_width", 80)
    ended = command(*shlex.split(given))
    assert ended.code == 0
    lines = ended.out.splitlines()
    tables = lines if given.startswith("runs") else [line for line in lines if line.startswith(("┃", "│", "┏", "└"))]
    assert tables
    assert max(map(len, tables)) <= 80
    assert "…" not in ended.out
    if given.startswith("runs"):
        files = [*RESULTS.glob("*.json"), *RESULTS.glob("gradient-norms/*.json")]
        assert all(str(file.relative_to(RESULTS.parent)) in ended.out for file in files)


def test_a_wide_table_is_printed_in_blocks_with_the_columns_that_name_the_rows():
    rows = tuple((name, kind, *(f"{word} {kind}" for word in ("measurement", "evaluation", "observation"))) for name in
                 ("one", "two") for kind in ("a", "b"))  # fmt: skip
    table = Table("title", ("name", "kind", "first quantity", "second quantity", "third quantity"), rows)
    blocks = in_blocks(table, 45)
    assert len(blocks) > 1
    assert all(block.columns[:2] == ("name", "kind") for block in blocks)
    shown = [title for block in blocks for title in block.columns[2:]]
    assert [title.replace("\n", " ") for title in shown] == list(table.columns[2:])
    words = {word for row in rows for text in row for word in text.split()}
    assert {word for block in blocks for row in block.rows for text in row for word in text.split()} == words
    [whole] = in_blocks(table, 200)
    assert whole == table


def test_sentences_end_between_words_and_commands_stay_whole():
    text = "- GA-SAM collapsed: run `gasam tune docstrings --method ga-sam --size small`, then compare with --tuned."
    lines = wrapped(text, 40).splitlines()
    assert " ".join(" ".join(lines).split()) == text
    assert "`gasam tune docstrings --method ga-sam --size small`," in [line.strip() for line in lines]
    assert all(len(line) <= 40 for line in lines if "`" not in line)
