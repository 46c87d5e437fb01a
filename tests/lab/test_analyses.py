"""Analyses of finished runs: the library's own numbers, measured once, kept while they are, shown side by side."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file
from typer.testing import CliRunner

from gasam.analysis.attack import attack
from gasam.analysis.landscape import line, plane
from gasam.analysis.robustness import robustness
from gasam.analysis.sharpness import sharpness
from gasam.analysis.spectrum import top_eigenvalues
from gasam.lab import analyses
from gasam.lab import record as records
from gasam.lab.analyses import KINDS, definition
from gasam.lab.analyses.comparing import Plotted, baselines, example_count
from gasam.lab.analyses.definition import Analysis, option
from gasam.lab.analyses.line import LossLine
from gasam.lab.analyses.loading import load
from gasam.lab.analyses.plane import LossPlane
from gasam.lab.analyses.robustness import Robustness, loss_of_half
from gasam.lab.analyses.sharpness import Rises
from gasam.lab.analyses.spectrum import Spectrum
from gasam.lab.cli import analysis as cli_analysis
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord, Summary
from gasam.lab.report.labels import run_labels
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import make
from gasam.lab.training.run import run as train
from gasam.perturbation import Perturbation
from local_layout import sentence, write_lines
from tolerances import EXACT, error


@pytest.fixture
def two(trained):
    return [trained["digits baseline"], trained["digits ga-sam"]]


@pytest.fixture
def subject(two):
    return load(two[0], Origin(), cpu=True)


def by_attack(subject):
    curve = robustness(
        subject.model,
        subject.objective,
        subject.examples("train", 32),
        lambda model: subject.score(model, "test", 50),
        (0.1, 0.5),
        higher_is_better=True,
        floor=subject.family.worthless("test", 50),
        steps=2,
        draws=1,
        restarts=0,
    )
    return curve.as_json()


def by_sharpness(subject):
    ball = Perturbation(epsilon=0.05, norm=2.0, steps=2, scale="one", granularity="model")
    found = sharpness(subject.model, subject.objective, subject.examples("train", 32), ball, draws=2)
    return {"balls": [{"epsilon": 0.05} | found.as_json()]}


def by_spectrum(subject):
    found = top_eigenvalues(subject.model, subject.objective, subject.examples("train", 32), k=4)
    return {"eigenvalues": found.values.tolist()}


def by_plane(subject):
    return plane(subject.model, subject.objective, subject.examples("train", 32), points=3).as_json()


COMMANDS = {
    "attack": (["--radii", "0.1,0.5", "--steps", 2, "--restarts", 0, "--judged", 50], by_attack, Robustness),
    "sharpness": (["--epsilon", 0.05, "--steps", 2, "--draws", 2], by_sharpness, Rises),
    "spectrum": (["--k", 4], by_spectrum, Spectrum),
    "landscape": (["--points", 3], by_plane, LossPlane),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_measures_what_the_library_does_and_only_once(name, command, two, subject, tmp_path, monkeypatch):
    options, library, kind = COMMANDS[name]
    arguments = (name, *two, *options, "--rows", 32, "--out", tmp_path, "--cpu")
    ended = command(*arguments, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    expected = library(subject)
    assert {key: found["rows"][0][key] for key in expected} == expected
    assert [row["run"] for row in found["rows"]] == [file.stem for file in two]
    saved, text, png, svg = map(Path, found["files"])
    assert json.loads(saved.read_text()) == {key: found[key] for key in ("title", "rows", "notes", "sentence")}
    assert text.read_text().startswith("| ")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "</svg>" in svg.read_text()
    assert re.search(r"\d", found["sentence"])

    def never(*given):
        raise AssertionError("measured again")

    monkeypatch.setattr(kind, "measure", never)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob(f"*{two[0].stem}*.json")}
    shown = command(*arguments)
    assert shown.code == 0, shown.err
    assert "Baseline" in shown.out
    assert "GA-SAM" in shown.out
    assert found["sentence"] in shown.out
    assert len(before) == 1
    assert {file: file.stat().st_mtime_ns for file in before} == before


OPTIONS = {
    "attack": {"norm", "radii", "steps", "restarts", "draws", "judged"},
    "sharpness": {"epsilon", "norm", "steps", "scale", "granularity", "draws"},
    "spectrum": {"matrix", "k"},
    "landscape": {"to", "radius", "points", "start", "stop"},
}
SHARED = {
    "delimiter",
    "drop-empty",
    "split",
    "rows",
    "seed",
    "train",
    "valid",
    "test",
    "text-column",
    "label-column",
    "data-dir",
    "out",
    "cpu",
    "on",
    "cpus-per-run",
    "gpus-per-run",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_command_has_all_options_of_its_analyses(name, command):
    ended = command(name, "--help")
    assert ended.code == 0
    listed = set(re.findall(r"│ +--([a-z-]+)", ended.out))
    assert listed == {"help", "json"} | OPTIONS[name] | SHARED


def test_a_class_is_all_that_a_new_command_needs(two, tmp_path, monkeypatch):
    monkeypatch.setattr(definition, "KINDS", dict(KINDS))
    monkeypatch.setattr(cli_analysis, "KINDS", definition.KINDS)

    @dataclass(frozen=True, kw_only=True)
    class Losses(Analysis):
        """The loss of the first examples.

        `gasam losses runs/A.json`
        """

        factors: tuple[float, ...] = option((1.0,), help="Numbers with commas.", flag="times", text="1")
        rounds: int = option(2, help="How often.", panel="The rounds")

        kind = command = "losses"
        title = "Losses"

        @classmethod
        def from_command(cls, **given):
            return cls(**given | {"factors": tuple(map(float, given["factors"].split(",")))})

        def measure(self, run, measurement):
            model, objective, [batch] = run.on(self.split, self.rows)
            loss = objective(model, batch).mean().item()
            return {"losses": [factor * loss for factor in self.factors] * self.rounds}

        def cells(self, record, label):
            return [{"run": label, "loss": f"{loss:.3f}"} for loss in record.found["losses"]]

        def plotted(self, record):
            losses = record.found["losses"]
            return Plotted("loss", "number", "loss", range(len(losses)), losses)

        def clause(self, record, label):
            return f"{label} has {record.found['losses'][0]:.3f}"

    app = typer.Typer()
    app.command()(cli_analysis.generated("losses"))
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert "The loss of the first examples." in shown.output
    for words in ("--times", "Numbers with commas.", "The rounds", "How often.", "[default: 2]", "--data-dir"):
        assert words in shown.output
    arguments = [*map(str, two), "--times", "1,10", "--rows", "8", "--out", str(tmp_path), "--cpu", "--json"]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    first, second = json.loads(ended.stdout)["rows"]
    assert (first["run"], second["run"]) == (two[0].stem, two[1].stem)
    loss, tenfold = first["losses"][:2]
    assert first["losses"] == [loss, 10 * loss, loss, tenfold]
    assert json.loads(ended.stdout)["sentence"].startswith(f"Baseline has {loss:.3f}; GA-SAM has ")


def test_a_record_of_an_unknown_kind_is_refused(trained):
    record = analysed(trained, "digits", "baseline").model_copy(update={"kind": "guess"})
    with pytest.raises(InputError, match=r"kind of an analysis must be one of line, mixtures, plane, .*got 'guess'"):
        analyses.restored(record)


def test_a_line_between_two_runs_holds_both_and_its_barrier_is_theirs(command, two, subject, tmp_path):
    ended = command(
        "landscape", two[0], "--to", two[1], "--points", 4, "--rows", 32, "--out", tmp_path, "--cpu", "--json"
    )
    assert ended.code == 0, ended.err
    [file] = tmp_path.glob(f"line-{two[0].stem}-*.json")
    found = json.loads(file.read_text())["found"]
    assert found["alphas"] == pytest.approx([-0.5, 0.0, 1 / 6, 5 / 6, 1.0, 1.5], abs=1e-8)
    weights = load_file(two[1].with_suffix("") / "model.safetensors")
    for split in ("train", "test"):
        there = line(
            subject.model, subject.objective, subject.examples(split, 32), found["alphas"], other=weights
        ).losses
        assert error(found["losses"][split], there) < EXACT
    inside = found["losses"]["train"][1:5]
    highest, ends = max(inside), max(inside[0], inside[-1])
    words = json.loads(ended.out)["sentence"]
    assert f"the highest train loss is {highest:.3g}, {highest - ends:.3g} above the higher end" in words
    assert two[1].stem in words


RESUMED = """
import os, signal, sys
from gasam.lab.cli import main
from gasam.lab.analyses import definition

how, write = getattr(signal, sys.argv.pop(1)), definition.write_json

def killing(file, value):
    write(file, value)
    if file.name.startswith(".attack"):
        os.kill(os.getpid(), how)

definition.write_json = killing
main()
"""


@pytest.mark.parametrize(("how", "code"), [("SIGKILL", -signal.SIGKILL), ("SIGTERM", 130)])
def test_a_killed_attack_goes_on_and_ends_as_one_never_stopped(how, code, command, two, tmp_path, monkeypatch):
    options = ["--radii", "0.1,0.2,0.5", "--steps", "2", "--rows", "32", "--judged", "50", "--cpu", "--out"]
    assert command("attack", two[0], *options, tmp_path / "whole").code == 0
    words = [sys.executable, "-c", RESUMED, how, "attack", str(two[0]), *options, str(tmp_path / "killed")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ.copy())
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    [kept] = (tmp_path / "killed").iterdir()
    assert kept.name.startswith(".attack")
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


def test_a_sharpness_interrupted_between_two_balls_goes_on(two, tmp_path, monkeypatch):
    analysis = Rises(epsilons=(0.01, 0.1), steps=1, draws=1, rows=32)
    whole = analyses.run(analysis, two[0], tmp_path / "whole", Origin(), cpu=True)
    write = definition.write_json

    def stopping(file, value):
        write(file, value)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(definition, "write_json", stopping)
        with pytest.raises(KeyboardInterrupt):
            analyses.run(analysis, two[0], tmp_path / "stopped", Origin(), cpu=True)
    balls = []
    monkeypatch.setattr(
        "gasam.lab.analyses.sharpness.sharpness",
        lambda *given, **options: balls.append(given[3].epsilon) or sharpness(*given, **options),
    )
    again = analyses.run(analysis, two[0], tmp_path / "stopped", Origin(), cpu=True)
    assert balls == [0.1]
    assert again.found == whole.found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attack", "--norm", "one"], "--norm must be a number > 1 or inf, got 'one'"),
        (["attack", "--norm", "1"], "norm must be a number > 1"),
        (["attack", "--norm", "nan"], "norm must be a number > 1"),
        (["attack", "--radii", "wide"], "--radii must be collapse, table4 or numbers separated by commas, got 'wide'"),
        (["attack", "--radii", ","], "--radii must be collapse, table4 or numbers separated by commas, got ','"),
        (["attack", "--radii", "0.1,-1"], "a radius of radii must be a finite number > 0, got -1.0"),
        (["attack", "--radii", "table4", "--norm", "3"], "--radii table4 needs --norm 2 or inf, got 3"),
        (["attack", "--steps", "0"], "steps must be a whole number >= 1"),
        (["attack", "--restarts", "-1"], "restarts must be a whole number >= 0"),
        (["attack", "--judged", "0"], "judged must be a whole number >= 1, got 0"),
        (["attack", "--judged", "-1"], "judged must be a whole number >= 1, got -1"),
        (["attack", "--rows", "0"], "rows must be a whole number >= 1, got 0"),
        (["attack", "--split", "dev"], "split must be one of train, valid, test, got 'dev'"),
        (["attack", "--seed", str(2**70)], "seed must be a whole number from 0 to 2147483647"),
        (["attack", "--train", "a.csv"], "digits has its own data"),
        (["sharpness", "--epsilon", "x"], "--epsilon must be numbers separated by commas, got 'x'"),
        (["sharpness", "--epsilon", ""], "--epsilon must be numbers separated by commas, got ''"),
        (["sharpness", "--epsilon", "-1"], "epsilon must be a finite number >= 0"),
        (["sharpness", "--scale", "magic"], "scale must be one of"),
        (["sharpness", "--granularity", "word"], "granularity must be one of"),
        (["sharpness", "--draws", "-1"], "draws must be a whole number >= 0"),
        (["spectrum", "--matrix", "identity"], "matrix must be one of"),
        (["spectrum", "--k", "0"], "k must be a whole number >= 1, got 0"),
        (["spectrum", "--k", "1999", "--set-hidden"], "No such option"),
        (["spectrum", "--k", "100000", "--rows", "4"], "k"),
        (["landscape", "--points", "4"], "points must be odd"),
        (["landscape", "--radius", "0"], "radius must be a finite number > 0"),
        (
            ["landscape", "--to", "nowhere.json"],
            "--to must name another run of the same model: nowhere.json does not exist",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_option_is_one_sentence(words, message, command, two, tmp_path):
    name, *options = words
    ended = command(name, two[0], "--out", tmp_path, "--cpu", *options)
    assert ended.code == 2
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert not list(tmp_path.glob("*.json"))
    if message != "No such option":
        assert ended.err.startswith("gasam: ")
        assert ended.err.count("\n") == 1


def test_a_line_that_is_none_is_refused(command, two, trained, tmp_path):
    common = ("landscape", two[0], "--out", tmp_path, "--cpu", "--to")
    other = command(*common, trained["ptb baseline"])
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "other" in other.err
    back = command(*common, two[1], "--start", 1, "--stop", 0)
    assert (back.code, back.err.count("\n")) == (2, 1)
    assert "a line must have points >= 2 and start < stop" in back.err


def test_runs_that_cannot_be_analysed_end_with_code_2(command, own_trained, tmp_path):
    [file] = own_trained.glob("digits-tiny-baseline-*.json")
    (file.with_suffix("") / "model.safetensors").unlink()
    damaged = write_lines(tmp_path / "damaged.json", ["{"])
    plan = make("digits", "baseline", "tiny", settings={"learning_rate": 1e30})
    train(plan, tmp_path / "diverged", cpu=True)
    [diverged] = (tmp_path / "diverged").glob("*.json")
    for run, words in (
        (tmp_path / "none.json", "does not exist"),
        (damaged, "is not a record"),
        (file, "model.safetensors does not exist"),
        (diverged, "the run diverged"),
    ):
        ended = command("spectrum", run, "--out", tmp_path / "found", "--cpu")
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
        assert words in ended.err
    assert command("spectrum").code == 2


def test_a_run_on_ones_own_table_is_analysed_with_it(command, tmp_path):
    rows = [f"{sentence(i)} {'good' if i % 2 else 'bad'},{i % 2}" for i in range(40)]
    table = write_lines(tmp_path / "mine.csv", ["review,stars", *rows])
    own = ("--train", table, "--text-column", "review", "--label-column", "stars")
    made = command("train", "classify", *own, "--size", "tiny", "--cpu", "--out", tmp_path / "runs")
    assert made.code == 0
    [file] = (tmp_path / "runs").glob("*.json")
    common = ("spectrum", file, "--k", 2, "--rows", 100, "--out", tmp_path / "found", "--cpu")
    ended = command(*common, *own, "--json")
    assert ended.code == 0, ended.err
    record = json.loads(next((tmp_path / "found").glob(f"spectrum-{file.stem}-*.json")).read_text())
    assert record["examples"] < 40
    assert f"on {record['examples']} examples of the train split" in json.loads(ended.out)["notes"][0]
    alone = command(*common, "--seed", 1)
    assert alone.code == 0, alone.err
    moved = table.rename(tmp_path / "moved.csv")
    without = command(*common, "--seed", 2)
    assert without.code == 2
    assert without.err.endswith(
        f"{table}, the train file of {file.stem}, does not exist: give the file that it was trained with by --train\n"
    )
    assert command(*common, "--seed", 2, "--train", moved).code == 0


def test_a_record_says_where_it_comes_from(two, tmp_path):
    analysis = Spectrum(k=2, rows=16)
    record = analyses.run(analysis, two[0], tmp_path, Origin(), cpu=True)
    [file] = tmp_path.glob("*.json")
    assert json.loads(file.read_text()).keys() == {
        "schema", "kind", "options", "run", "examples", "found", "seconds", "commit", "dirty", "machine", "versions",
    }  # fmt: skip
    assert record == records.read_analysis(file)
    run = records.read(two[0])
    assert record.options == {"split": "train", "rows": 16, "seed": 0, "matrix": "empirical_fisher", "k": 2}
    assert record.run.name == two[0].stem
    assert record.run == Summary(**run.model_dump(include=set(Summary.model_fields)))
    assert record.versions["torch"] == torch.__version__
    assert record.machine["device"] == "cpu"


def test_other_options_have_another_name_and_the_same_ones_the_same(two):
    run = records.read(two[0])
    others = [
        Spectrum(), Spectrum(k=49), Spectrum(matrix="hessian"), Spectrum(rows=511), Spectrum(seed=1),
        Spectrum(split="test"), Robustness(), Robustness(norm=float("inf")), Robustness(radii=(0.1,)),
        Robustness(judged=10), Rises(), Rises(epsilons=(0.1,)), LossPlane(), LossPlane(radius=2.0),
        LossLine(other=Path("a.json")), LossLine(other=Path("b.json")),
    ]  # fmt: skip
    names = [analyses.name(each, "run", run) for each in others]
    assert len(set(names)) == len(names)
    assert names == [analyses.name(copy.deepcopy(each), "run", run) for each in others]
    assert analyses.name(LossLine(other=Path("x/a.json")), "run", run) == names[-2]
    assert analyses.name(Spectrum(), "run", run.model_copy(update={"seed": 77})) != names[0]


def test_a_damaged_record_of_an_analysis_is_refused(two, tmp_path):
    analysis = Spectrum(k=2, rows=16)
    analyses.run(analysis, two[0], tmp_path, Origin(), cpu=True)
    [file] = tmp_path.glob("*.json")
    lacking = json.dumps({"schema": 2, "kind": "spectrum"})
    for text, words in (("{", ""), ("[]", ""), ("3", ""), (lacking, "it lacks options, run, found")):
        file.write_text(text)
        with pytest.raises(InputError, match=rf"is not the record of an analysis: .*{words}") as raised:
            analyses.run(analysis, two[0], tmp_path, Origin(), cpu=True)
        assert "\n" not in str(raised.value)


def analysed(trained, task, method, **changes):
    """As the record of an analysis holds a run."""
    record = json.loads(trained[f"{task} {method}"].read_text())
    run = {key: record[key] for key in Summary.model_fields} | {"name": f"{task} {method}"}
    for key, value in changes.items():
        if key == "epochs":
            run["settings"]["epochs"] = value
        elif key == "hash":
            run["data"]["hash"] = value
        else:
            run[key] = value
    return AnalysisRecord(schema=2, kind="spectrum", options={"rows": 512}, run=Summary.model_validate(run), found={})


def test_baselines_have_as_many_epochs_and_nearest_to_as_many_gradients_on_the_same_data(trained):
    found = [
        analysed(trained, "digits", "baseline", name="short", gradient_evaluations=10, epochs=1),
        analysed(trained, "digits", "baseline", name="equal", gradient_evaluations=100),
        analysed(trained, "digits", "baseline", name="as dear", gradient_evaluations=150, epochs=3),
        analysed(trained, "digits", "baseline", name="long", gradient_evaluations=1000, epochs=4),
        analysed(trained, "digits", "baseline", name="other", gradient_evaluations=200, hash="else"),
        analysed(trained, "digits", "ga-sam", gradient_evaluations=200),
        analysed(trained, "ptb", "ga-sam"),
    ]
    assert baselines(found[5], found) == [1, 2]
    assert baselines(found[5], [*found[:1], found[5]]) == [0]
    assert baselines(found[6], found) == []
    seeded = [analysed(trained, "digits", "baseline", name="seed 3", seed=3), *found]
    assert baselines(analysed(trained, "digits", "ga-sam", seed=3), seeded) == [0]


def test_every_run_has_a_label_of_its_own(trained):
    found = [
        analysed(trained, "digits", "baseline"),
        analysed(trained, "digits", "baseline", name="two", seed=2),
        analysed(trained, "digits", "baseline", name="more", epochs=9),
        analysed(trained, "digits", "baseline", name="small", size="small"),
        analysed(trained, "digits", "baseline", name="other", hash="0123456789"),
        analysed(trained, "digits", "baseline", name="copy"),
        analysed(trained, "digits", "ga-sam"),
        analysed(trained, "ptb", "ga-sam"),
    ]
    labels = run_labels(found)
    assert len(set(labels)) == len(labels)
    assert run_labels([found[0]]) == ["Baseline"]
    assert run_labels([found[0], found[6]]) == ["Baseline", "GA-SAM"]
    assert run_labels([found[6], found[7]]) == ["digits: GA-SAM", "ptb: GA-SAM"]


def test_an_accuracy_and_a_perplexity_have_panels_and_words_of_their_own(trained, tmp_path):
    """Half of an accuracy is above chance, and a perplexity has no half: it doubles."""
    analysis = Robustness(radii=(0.1, 0.5), steps=1, restarts=0, judged=20, rows=16)
    files = [trained[f"{task} {method}"] for task in ("digits", "ptb") for method in ("baseline", "ga-sam")]
    found = [analyses.run(analysis, file, tmp_path, Origin(), cpu=True) for file in files]
    labels = run_labels(found)
    assert labels == ["digits: Baseline", "digits: GA-SAM", "ptb: Baseline", "ptb: GA-SAM"]
    [figure] = analysis.draw(found, labels)
    left, right = figure.axes
    for axes, record in ((left, found[0]), (right, found[2])):
        clean = axes.lines[0].get_xydata()[0]
        assert list(clean) == [0.0, float(record.found["clean_metric"])], "a curve begins at the clean score"
        assert axes.get_xticks()[0] == 0.0
    chance = [text.get_text() for text in left.texts]
    assert chance == [f"chance: {found[0].found['floor']:.2f}"]
    assert left.lines[-1].get_linestyle() == ":"
    assert set(left.lines[-1].get_ydata()) == {found[0].found["floor"]}
    assert not right.texts
    assert (left.get_ylabel(), left.get_yscale()) == ("accuracy, %", "linear")
    assert right.get_ylabel() == "perplexity"
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["Baseline", "GA-SAM"]
    floor = found[0].found["floor"]
    assert loss_of_half(found[0]) == f"half of the accuracy above the {floor:.2f} of a model that knows nothing is lost"
    assert loss_of_half(found[2]) == "perplexity is doubled"
    table = analysis.table(found, labels)
    assert ("a model that knows nothing", f"{floor:.2f}", f"{floor:.2f}", "", "") in table.rows
    assert "accuracy, % and perplexity is of the first 20 test examples" in table.notes[0]
    assert example_count(found[:2]) == "16 examples"
    assert example_count(found) == "8 to 16 examples"  # the text has no more
