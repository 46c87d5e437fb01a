"""The command `gasam`: what it prints and writes, on the user's own files too, and its exit codes."""

import json
import re
import shlex
import shutil
from pathlib import Path

from gasam.lab.methods import METHODS
from gasam.lab.paper import tables
from gasam.lab.tasks import TASKS
from gasam.lab.training.run import run
from local_layout import sentence, write_lines

REQUIRED = {"task", "size", "method", "seed", "metric", "valid", "test", "gradient_evaluations", "seconds", "commit",
            "settings", "walk", "curve"}  # fmt: skip


def write_csv(file, rows=30):
    return write_lines(
        file, ["text,label", *(f"{sentence(i)} {'good' if i % 2 else 'bad'},{i % 2}" for i in range(rows))]
    )


def test_tasks_are_listed(command):
    found = json.loads(command("tasks", "--json").out)
    assert found.keys() == TASKS.keys()
    assert found["imdb"].keys() == {"about", "data", "metric", "sizes"}
    assert set(found["imdb"]["sizes"]) == {"paper", "small", "tiny"}
    assert found["imdb"]["sizes"]["paper"]["vocabulary"] == 30_000
    shown = command("tasks").done()
    assert all(name in shown.out for name in TASKS)


def test_methods_are_listed_with_their_walks_and_where_these_come_from(command):
    found = json.loads(command("methods", "--task", "ptb", "--size", "paper", "--json").out)
    assert found.keys() == METHODS.keys()
    assert found["sam"]["epsilon"] == 5e-3
    assert found["ga-sam"] | {"norm": "inf", "epsilon": 8e-6, "steps": 1, "source": "paper"} == found["ga-sam"]
    shown = command("methods", "--task", "en-vi", "--size", "paper").done()
    assert "epsilon 0.000219727, L-inf, K = 2, start epoch 30" in shown.out
    digits = json.loads(command("methods", "--task", "digits", "--json").out)
    assert digits["freelb"]["source"].startswith("freelb moves word embeddings, but the model of digits has")


def test_data_is_listed_with_what_was_found_where(command, data_dir, tmp_path):
    found = json.loads(command("data", "--json").out)
    assert found["directory"] == str(data_dir)
    assert found["tasks"].keys() == {name for name, task in TASKS.items() if task.published}
    [train] = [file for file in found["tasks"]["imdb"] if file["name"].endswith("imdb/train.jsonl.gz")]
    assert train["size"] == (data_dir / "imdb/train.jsonl.gz").stat().st_size
    assert Path(train["path"]).is_file()
    shown = command("data", "--data-dir", tmp_path).done()
    assert f"searched in {tmp_path}" in shown.out
    assert "missing" in shown.out


def test_one_run_is_printed_and_recorded_and_results_show_it(command, tmp_path):
    arguments = ("train", "digits", "--method", "ga-sam", "--size", "tiny", "--seed", 3, "--cpu", "--out", tmp_path)
    shown = command(
        *arguments, "--steps", 2, "--norm", 2, "--epsilon", 0.01, "--set", "hidden=[9]", "--set", "rows=null"
    ).done()
    [file] = tmp_path.glob("*.json")
    record = json.loads(file.read_text())
    assert record.keys() >= REQUIRED
    assert (record["task"], record["size"], record["method"], record["seed"]) == ("digits", "tiny", "ga-sam", 3)
    assert record["settings"]["hidden"] == [9]
    assert record["settings"]["rows"] is None
    assert record["walk"] | {"norm": 2.0, "epsilon": 0.01, "steps": 2} == record["walk"]
    assert record["walk"]["source"] == "given"
    assert f"accuracy valid {record['valid']:.2f}%, test {record['test']:.2f}%" in shown.out
    assert f"record: {file}\nmodel: {file.with_suffix('')}\n" in shown.out
    again = command(
        *arguments, "--steps=2", "--norm=2.0", "--epsilon=1e-2", "--set=hidden=[9]", "--set=rows=null", "--json"
    )
    assert json.loads(again.out) == record
    shutil.rmtree(file.with_suffix(""))
    without = command(*arguments, "--steps=2", "--norm=2.0", "--epsilon=1e-2", "--set=hidden=[9]", "--set=rows=null")
    assert f"model: {file.with_suffix('')} is missing: use another --out to train it again" in without.out

    listed = json.loads(command("report", tmp_path, "--json").out)
    assert [(run["task"], run["method"], run["test"]) for run in listed["runs"]] == [
        ("digits", "ga-sam", record["test"])
    ]
    assert f"{record['test']:.2f}" in command("report", tmp_path).out
    assert command("report", tmp_path, "--csv").out.startswith("name,task,size,method,seed,")


def test_compare_on_a_table_of_ones_own(command, tmp_path, monkeypatch):
    """The example of the docs; the runs of the first seed are there already, made by `train`."""
    monkeypatch.chdir(tmp_path)
    for name, rows in (("a.csv", 40), ("b.csv", 12), ("c.csv", 14)):
        write_csv(tmp_path / name, rows)
    files = shlex.split("--train a.csv --valid b.csv --test c.csv --text-column text --label-column label")
    for method in ("baseline", "ga-sam"):
        command("train", "classify", *files, "--method", method, "--size", "tiny").done()
    ended = command(
        "compare", "classify", *files, *shlex.split("--methods baseline,ga-sam --seeds 2 --size tiny")
    ).done()
    assert "2 of 4 runs are already there, not run again" in ended.err
    assert "held out" not in ended.err
    assert len(list(Path("runs").glob("classify-tiny-*.json"))) == 4
    for name in ("Baseline", "GA-SAM"):
        assert re.search(rf"{name} +│ +\d+\.\d+,", ended.out)
    [place] = {file.with_suffix("") for file in Path("runs/tables").iterdir()}
    assert {file.suffix for file in Path("runs/tables").iterdir()} == {".html", ".json", ".md", ".png", ".svg"}
    assert f"saved: {place}.html\n" in ended.out
    table = json.loads(place.with_suffix(".json").read_text())
    assert [row["method"] for row in table["rows"]] == ["baseline", "ga-sam"]
    assert all(row["test"]["seeds"].keys() == {"1", "2"} for row in table["rows"])


def test_train_on_pairs_of_ones_own_holds_out_what_to_judge_by(command, tmp_path):
    files = [write_lines(tmp_path / f"a.{name}", [f"{sentence(i)} {name}" for i in range(60)]) for name in ("de", "en")]
    words = ("--train", ",".join(map(str, files)), "--size", "tiny", "--cpu", "--out", tmp_path / "runs", "--json")
    ended = command("train", "translate", *words).done()
    record = json.loads(ended.out)
    [note] = record["data"]["notes"]
    assert note.startswith("valid and test: 6 of the 60 examples of a.de")
    assert f"- {note}\n" in ended.err
    assert record["metric"]["name"] == "BLEU"
    assert "tok:none" in record["remarks"]["bleu_signature"]


def test_reproduce_runs_what_is_missing_of_a_table(command, tmp_path):
    *plans, missing = tables.load("table1").plans("tiny", ["imdb"], [1], walks="recommended")
    for plan in plans:
        run(plan, tmp_path, cpu=True)
    ended = command(
        "reproduce", "table1", "--size", "tiny", "--tasks", "imdb", "--seeds", 1, "--cpu", "--out", tmp_path
    ).done()
    assert "5 of 6 runs are already there, not run again" in ended.err
    assert re.search(r"1 run to do: about 1 core-minute, if they take as long as those", ended.err)
    assert re.search(r"; \d+ gradient evaluations", ended.err)
    assert (tmp_path / f"{missing.name(missing.data().hash)}.json").is_file()
    assert "86.11 ± 0.22" in ended.out
    assert {file.name for file in (tmp_path / "tables").iterdir()} == {
        f"table1-tiny-imdb-recommended.{kind}" for kind in ("json", "md", "png", "svg")
    }
    assert "Layer-SAM" in (tmp_path / "tables/table1-tiny-imdb-recommended.md").read_text()
