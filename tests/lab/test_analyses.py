"""Analyses of finished runs: the library's own numbers, measured once, kept while they are, shown side by side."""

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import Field
from refusals import refusal

from gasam.analysis.attack import attack
from gasam.analysis.landscape import plane
from gasam.analysis.objective import plain_value
from gasam.analysis.robustness import robustness
from gasam.analysis.sharpness import sharpness
from gasam.analysis.spectrum import top_eigenvalues
from gasam.lab import record
from gasam.lab.analyses import Analysis, analysis, measure_all, restored
from gasam.lab.analyses.attack import Attack
from gasam.lab.analyses.landscape import Landscape
from gasam.lab.analyses.sharpness import Sharpness
from gasam.lab.analyses.spectrum import Spectrum
from gasam.lab.cli import measuring, options
from gasam.lab.engines.local import LocalEngine
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord, Summary
from gasam.lab.tasks import Origin
from gasam.lab.training.finished import load
from gasam.perturbation import Perturbation
from local_layout import sentence, write_lines


@pytest.fixture
def two(trained):
    return [trained["digits baseline"], trained["digits ga-sam"]]


@pytest.fixture
def subject(two):
    return load(two[0], Origin(), cpu=True)


def measured(which, run, folder) -> AnalysisRecord:
    [found] = measure_all(which, [run], folder, Origin(), LocalEngine(1), cpu=True)
    return found


def by_attack(subject):
    score, options = lambda model: subject.score(model, "test", 50), {"steps": 2, "draws": 1, "restarts": 0}
    options |= {"higher_is_better": True, "floor": subject.family.worthless("test", 50)}
    return plain_value(robustness(*subject.on("train", 32), score, (0.1, 0.5), **options))


BALL = Perturbation(epsilon=0.05, norm=2.0, steps=2, scale="one", granularity="model")
COMMANDS = {
    "attack": (["--radii", "0.1,0.5", "--steps", 2, "--restarts", 0, "--judged", 50], by_attack, Attack),
    "sharpness": (
        ["--epsilon", 0.05, "--steps", 2, "--draws", 2],
        lambda run: {"balls": [{"epsilon": 0.05} | plain_value(sharpness(*run.on("train", 32), BALL, draws=2))]},
        Sharpness,
    ),
    "spectrum": (
        ["--k", 4], lambda run: {"values": top_eigenvalues(*run.on("train", 32), k=4).values.tolist()}, Spectrum,
    ),
    "landscape": (["--points", 3], lambda run: plain_value(plane(*run.on("train", 32), points=3)), Landscape),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_measures_what_the_library_does_and_only_once(name, command, two, subject, tmp_path, monkeypatch):
    options, library, kind = COMMANDS[name]
    arguments = (name, *two, *options, "--rows", 32, "--out", tmp_path, "--cpu")
    found = json.loads(command(*arguments, "--json").done().out)
    expected = library(subject)
    assert {key: found["rows"][0][key] for key in expected} == expected
    assert [row["run"] for row in found["rows"]] == [file.stem for file in two]
    saved, text, *pictures = map(Path, found["files"])
    assert json.loads(saved.read_text()) == {key: found[key] for key in ("title", "rows", "notes")}
    assert text.read_text().startswith("| ")
    assert [file.suffix for file in pictures if file.stat().st_size] == [".png", ".svg"]

    def never(*given):
        raise AssertionError("measured again")

    monkeypatch.setattr(kind, "measure", never)
    [file] = tmp_path.glob(f"{name}-{two[0].stem}-*.json")
    before = file.stat().st_mtime_ns
    shown = command(*arguments).done()
    assert "Baseline" in shown.out
    assert "GA-SAM" in shown.out
    assert file.stat().st_mtime_ns == before
    assert restored(record.read_analysis(file)).name(record.read(two[0])) == file.stem


def test_a_class_is_all_that_a_new_command_needs(command, two, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "KINDS", dict(analysis.KINDS))

    class Losses(Analysis):
        """The loss of the first examples."""

        kind = command = "losses"
        title = "Losses"

        factor: float = Field(1.0, description="A factor.", gt=0, strict=False)

        def measure(self, run, progress):
            model, objective, [batch] = run.on(self.split, self.rows)
            return {"losses": [self.factor * objective(model, batch).mean().item()]}

        def cells(self, record):
            return [{"loss": f"{loss:.3f}"} for loss in record.found["losses"]]

        def curve(self, record):
            return [(1, record.found["losses"][0])]

        def style(self, record):
            return {"title": "loss", "x": "number", "y": "loss"}

    monkeypatch.setattr(options.app, "registered_commands", [*options.app.registered_commands])
    measuring.add(Losses)
    shown = command("losses", "--help")
    for words in ("The loss of the first examples.", "--factor", "A factor.", "--data-dir"):
        assert words in shown.out
    words = ("--factor", 10, "--rows", 8, "--out", tmp_path, "--cpu", "--json")
    found = json.loads(command("losses", *two, *words).done().out)
    first, second = found["rows"]
    assert (first["run"], second["run"]) == (two[0].stem, two[1].stem)
    [text] = tmp_path.glob("losses-*.md")
    assert f"| Baseline | {first['losses'][0]:.3f} |" in text.read_text()


RESUMED = """
import os, signal
from gasam.lab.cli import main
from gasam.lab.analyses import analysis

write = analysis.write_json

def killing(file, value):
    write(file, value)
    if file.name.startswith(".attack"):
        os.kill(os.getpid(), signal.SIGKILL)

analysis.write_json = killing
main()
"""


def test_a_killed_attack_continues_and_ends_as_one_never_stopped(command, two, tmp_path, monkeypatch):
    options = ["--radii", "0.1,0.2,0.5", "--steps", "2", "--rows", "32", "--judged", "50", "--cpu", "--out"]
    assert command("attack", two[0], *options, tmp_path / "whole").code == 0
    words = [sys.executable, "-c", RESUMED, "attack", str(two[0]), *options, str(tmp_path / "killed")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ.copy())
    assert done.returncode == -signal.SIGKILL, done.stderr
    [kept] = (tmp_path / "killed").iterdir()
    assert [point["radius"] for point in json.loads(kept.read_text())["points"]] == [0.1]

    radii = []

    def recorded(model, objective, batches, ball, **options):
        radii.append(ball.epsilon)
        return attack(model, objective, batches, ball, **options)

    monkeypatch.setattr(sys.modules[robustness.__module__], "attack", recorded)
    assert command("attack", two[0], *options, tmp_path / "killed").code == 0
    assert radii == [0.2, 0.5]
    whole, again = (
        json.loads(next((tmp_path / name).glob(f"attack-{two[0].stem}-*.json")).read_text())
        for name in ("whole", "killed")
    )
    assert {key for key in whole if whole[key] != again[key]} <= {"seconds", "commit", "dirty"}
    assert not [file for file in (tmp_path / "killed").iterdir() if file.name.startswith(".")]


def test_a_wrong_option_is_one_sentence(command, two, tmp_path):
    for words, message in {
        "attack --radii wide": "radii must be numbers separated by commas, got 'wide'",
        "attack --radii table4 --norm 3": "--radii table4 needs --norm 2 or inf, got 3",
        "attack --split dev": "split must be one of 'train', 'valid' or 'test', got 'dev'",
        "spectrum --matrix identity": "matrix must be one of",
    }.items():
        name, *options = words.split()
        assert message in command(name, two[0], "--out", tmp_path, "--cpu", *options).refused()
    assert not list(tmp_path.glob("*.json"))


def test_a_run_on_ones_own_table_is_analysed_with_it(command, tmp_path):
    rows = [f"{sentence(i)} {'good' if i % 2 else 'bad'},{i % 2}" for i in range(40)]
    table = write_lines(tmp_path / "mine.csv", ["review,stars", *rows])
    own = ("--train", table, "--text-column", "review", "--label-column", "stars")
    assert command("train", "classify", *own, "--size", "tiny", "--cpu", "--out", tmp_path / "runs").code == 0
    [file] = (tmp_path / "runs").glob("*.json")
    common = ("spectrum", file, "--k", 2, "--rows", 100, "--out", tmp_path / "found", "--cpu")
    ended = command(*common, *own, "--json").done()
    [made] = map(record.read_analysis, (tmp_path / "found").glob(f"spectrum-{file.stem}-*.json"))
    assert made.examples < 40
    assert f"on {made.examples} examples of the train split" in json.loads(ended.out)["notes"][0]
    moved = table.rename(tmp_path / "moved.csv")
    assert command(*common, "--seed", 1, "--train", moved).code == 0


def test_a_record_says_where_it_comes_from_and_a_damaged_one_is_refused(two, tmp_path):
    which = Spectrum(k=2, rows=16)
    made = measured(which, two[0], tmp_path)
    assert made.options == {"split": "train", "rows": 16, "seed": 0, "matrix": "empirical_fisher", "k": 2}
    assert made.run == Summary(**record.read(two[0]).model_dump(include=set(Summary.model_fields)))
    assert made.versions["torch"] == torch.__version__
    assert made.machine["device"] == "cpu"
    [file] = tmp_path.glob("*.json")
    assert record.read_analysis(file) == made
    for text in ("{", "[]", json.dumps({"schema": 2, "kind": "spectrum"})):
        file.write_text(text)
        assert "is not the record of an analysis: " in refusal(measured, which, two[0], tmp_path)
    with pytest.raises(InputError, match=r"kind of an analysis must be one of .*spectrum.*got 'guess'"):
        restored(made.model_copy(update={"kind": "guess"}))


def test_other_options_have_another_name_and_the_same_ones_the_same(two):
    run = record.read(two[0])
    others = [
        Spectrum(), Spectrum(k=49), Spectrum(matrix="hessian"), Spectrum(rows=511), Spectrum(split="test"),
        Attack(), Attack(radii=(0.1,)), Sharpness(), Sharpness(epsilon=(0.1,)), Landscape(), Landscape(radius=2.0),
    ]  # fmt: skip
    names = [each.name(run) for each in others]
    assert len(set(names)) == len(names)
    assert names == [copy.deepcopy(each).name(run) for each in others]
    assert Spectrum().name(run.model_copy(update={"seed": 2})) != names[0]
    assert Sharpness(epsilon="0.1, 0.2").epsilon == (0.1, 0.2)


def test_an_accuracy_and_a_perplexity_have_charts_and_words_of_their_own(trained, tmp_path):
    """Half of an accuracy is above chance, and a perplexity has no half: it doubles."""
    which = Attack(radii=(0.1, 0.5), steps=1, restarts=0, judged=20, rows=16)
    files = [trained[f"{task} {method}"] for task in ("digits", "ptb") for method in ("baseline", "ga-sam")]
    found = [measured(which, file, tmp_path) for file in files]
    labels = {each.run.key: each.run.method for each in found}
    accuracy, perplexity = which.charts(found, labels)
    for chart, each in ((accuracy, found[0]), (perplexity, found[2])):
        assert chart.title.startswith(each.run.task)
        first = chart.spec["data"]["values"][0]
        assert (first["x"], first["y"]) == (0.0, float(each.found["clean_metric"])), "it begins at the clean score"
    table = which.table(found, labels)
    assert table.columns == ["corruption", "digits: baseline", "digits: ga-sam", "ptb: baseline", "ptb: ga-sam"]
    shown = ["L2, 0.1, attack", "L2, 0.5, random", "8-bit weights"]
    assert [row["corruption"] for row in table.rows if row["corruption"] in shown] == shown
    [chance] = [row for row in table.rows if row["corruption"] == "a model that knows nothing"]
    assert chance["digits: baseline"] == f"{found[0].found['floor']:.2f}"
    assert not chance.get("ptb: baseline")
    assert "16 examples" in which.note(found[:2])
    assert "8 to 16 examples" in which.note(found)  # the text has no more
