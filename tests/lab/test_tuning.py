"""`gasam tune` in earnest: real tries in processes, killed half-way, and never with an eye on the test split."""

import inspect
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import get_args

import pytest
from filelock import FileLock
from synthetic import finding_of, response

from gasam.lab.cli import tuning
from gasam.lab.engines.engine import prepare
from gasam.lab.families.encoded import WithheldError
from gasam.lab.families.images import ImageClassification
from gasam.lab.paper import studies
from gasam.lab.record import Metric
from gasam.lab.search.finding import Finding
from gasam.lab.search.outcome import Outcome
from gasam.lab.search.question import Question
from gasam.lab.search.trial import run_trial
from gasam.lab.search.tuned_walk import with_tuned_walk
from gasam.lab.search.worth import BehindBaseline, Worth
from gasam.lab.storage import write_json
from gasam.lab.tasks import TASKS, Origin
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

ACCURACY, PERPLEXITY = Metric("accuracy", higher_is_better=True), Metric("perplexity", higher_is_better=False)
EPSILON = ("tune", "digits", "--size", "tiny", "--quantity", "epsilon")
ARGUMENTS = (*EPSILON, "--norms", "inf", "--exponents", "-4,0", "--jobs", "1", "--cpu")


@pytest.mark.slow
def test_search_finds_a_radius_and_compare_uses_it(command, tmp_path):
    ended = command(*ARGUMENTS, "--trials", "2", "--out", tmp_path)
    assert ended.code == 0, ended.err
    [file] = (tmp_path / "tuning").glob("*.json")
    found = Finding.read(file)
    best = found.chosen()
    assert len(found.tries) == 2
    assert f"--norm inf --epsilon {best.value:g}: accuracy" in ended.out
    assert found.one(best).valid == max(one.valid for one in found.tries if one.valid is not None)
    assert file.with_suffix(".png").stat().st_size > 5000
    assert "; more --trials would try more)" in ended.out
    assert not list((tmp_path / "tuning" / "tries").glob("*/*.pt"))
    again = command(*ARGUMENTS, "--trials", "2", "--out", tmp_path, "--json")
    assert json.loads(again.out)["tries"] == [one.as_json() for one in found.tries]
    assert "gradient evaluations" not in again.err, "nothing was run a second time"
    file.unlink()  # as if it had been killed in its first round
    after_kill = command(*ARGUMENTS, "--trials", "2", "--out", tmp_path, "--json")
    assert json.loads(after_kill.out) == json.loads(again.out)
    assert "gradient evaluations" not in after_kill.err

    other = command(*ARGUMENTS, "--method", "sam", "--trials", "1", "--out", tmp_path)
    assert "baseline seed" not in other.err  # whose run serves every method
    assert "1 try with" in other.out

    compared = command("compare", "digits", "--size", "tiny", "--methods", "baseline,ga-sam", "--tuned",
                       "--jobs", "1", "--cpu", "--out", tmp_path, "--json")  # fmt: skip
    assert compared.code == 0, compared.err
    [record] = [json.loads(each.read_text()) for each in tmp_path.glob("digits-tiny-ga-sam-1-*.json")]
    assert record["walk"]["epsilon"] == best.value
    assert record["walk"]["source"] == "tuned"


@pytest.mark.slow
def test_two_hopeless_tries_at_once_are_given_up_unless_the_tolerance_is_larger(command, tmp_path):
    asked = (*EPSILON, "--epochs", "6", "--exponents=-4,4", "--norms", "inf,2")
    ended = command(*asked, "--trials", "2", "--jobs", "2", "--cpu", "--out", tmp_path)
    assert ended.code == 0, ended.err
    assert "every epsilon that was tried collapsed: give smaller --exponents (2 tries with" in ended.out
    [file] = (tmp_path / "tuning").glob("*.json")
    found = Finding.read(file)
    assert [(one.norm, one.exponent, one.valid) for one in found.tries] == [(math.inf, 0, None), (2.0, 0, None)]
    for one in found.tries:
        assert 3 <= len(one.curve) < 6, "it waits for half of the epochs, and not for all"
        assert one.gradient_evaluations == 8 * len(one.curve)
    patient = command(*asked, "--tolerance", "0.9", "--trials", "2", "--jobs", "2", "--cpu", "--out", tmp_path)
    assert patient.code == 0, patient.err
    assert "baseline" not in patient.err
    assert [len(one.curve) for one in Finding.read(file).tries] == [6, 6], "what was given up is run to its end"


def test_killed_search_goes_on_and_runs_the_killed_try_again(command, tmp_path):
    longer = (*ARGUMENTS, "--trials", "2", "--epochs", "6", "--out", str(tmp_path))
    started = [sys.executable, "-m", "gasam", *longer]
    process = subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_checkpoint_of_a_try(tmp_path, process)
    kill_with_children(process)
    assert not list((tmp_path / "tuning" / "tries").glob("digits-tiny-ga-sam-*/outcome.json"))  # it was not its end
    [file] = (tmp_path / "tuning").glob("*.json")
    left = file.with_name(f".{file.name}.abcdefgh")  # as if it had been killed while it wrote this file
    left.write_text("{")
    ended = command(*longer)
    assert ended.code == 0, ended.err
    assert "baseline" not in ended.err  # whose run is not lost
    assert not left.exists()
    found = Finding.read(file)
    assert len(found.tries) == 2
    for one in found.tries:
        walk = {"norm": one.norm, "epsilon": one.candidate.value}
        plan = make("digits", "ga-sam", "tiny", found.seed, settings={"epochs": 6}, walk=walk)
        record = run(plan, tmp_path / "whole", cpu=True)  # never stopped
        assert list(one.curve) == [row["valid"] for row in record.curve][: len(one.curve)]
        assert one.valid == (record.valid if len(one.curve) == 6 else None)  # else it was given up


def wait_for_checkpoint_of_a_try(folder, process):
    for _ in range(12000):
        if list((folder / "tuning" / "tries").glob("digits-tiny-ga-sam-*/last.pt")):
            return
        assert process.poll() is None, "the search ended before it could be killed"
        time.sleep(0.01)
    raise AssertionError("no try wrote a checkpoint")


def kill_with_children(process):
    import psutil

    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in family:
        os.kill(each.pid, signal.SIGKILL)
    psutil.wait_procs(family, timeout=20)
    process.wait()


@pytest.mark.parametrize("task", ["digits", "docstrings", "pydoc", "numerals"])
def test_test_split_raises_when_touched(task):
    plan = make(task, "baseline", "tiny")
    data = plan.data()
    family = plan.family(data.without_test())
    model = family.model().eval()
    assert math.isfinite(family.score(model, "valid"))
    for touch in (lambda: family.score(model, "test"), lambda: family.examples("test", 4)):
        with pytest.raises(LookupError, match="test"):
            touch()
    assert math.isfinite(plan.family(data).score(model, "test"))


def test_tries_are_made_with_the_test_split_withheld(tmp_path, monkeypatch):
    """In the process that trains: a family that looks at the test split fails the try."""
    [job] = prepare([make("digits", "baseline", "tiny")], tmp_path)
    honest = run_trial(job, tmp_path, lambda update: None, cpu=True)
    assert honest.valid is not None
    monkeypatch.setattr(ImageClassification, "validate", lambda self, model: self.score(model, "test"))
    with pytest.raises(WithheldError):
        run_trial(job, tmp_path, lambda update: None, cpu=True)


def test_worth_is_the_same_for_every_metric():
    assert Worth(ACCURACY, 50.0).gain(85.0, 80.0) == pytest.approx(5 / 30)
    assert Worth(ACCURACY, 50.0).gain(50.0, 80.0) == -1
    assert Worth(PERPLEXITY, 0.0).gain(90.0, 100.0) == pytest.approx(0.1)
    assert Worth(PERPLEXITY, 0.0).gain(200.0, 100.0) == -1


@pytest.mark.parametrize(
    ("curve", "hopeless"),
    [
        ([50.0, 50.0], False),
        ([70.0, 75.0, 78.5], False),
        ([65.0, 70.0, 70.0], True),
        ([79.0, 50.0, 50.0], False),
        ([50.0, 50.0, 50.0], True),
        ([50.0, 60.0, 70.0], False),
        ([50.0, 60.0, 70.0, 70.0], True),
        ([None, 50.0, 50.0], True),
    ],
)
def test_pruner_waits_for_half_and_looks_at_the_best_so_far(curve, hopeless):
    """Of six epochs three are waited for; behind by 6% of what the baseline has above guessing is hopeless, unless the
    gap is closing."""
    pruner = BehindBaseline(Worth(ACCURACY, 50.0), [70.0, 80.0, 80.0, 80.0, 80.0, 80.0], 0.02)
    assert pruner.hopeless(curve, epochs=6) is hopeless


def test_pruner_follows_what_falls():
    pruner = BehindBaseline(Worth(PERPLEXITY, 0.0), [300.0, 200.0, 150.0], 0.02)
    assert not pruner.hopeless([330.0], epochs=3)
    assert pruner.hopeless([330.0, 225.0], epochs=3)
    assert not pruner.hopeless([330.0, 205.0], epochs=3)


def test_defaults_of_the_command_are_those_of_a_question():
    options = {name: parameter.default for name, parameter in inspect.signature(tuning.tune).parameters.items()}
    names = ("seed", "trials", "seeds", "full_grid")
    question = Question("digits", "ga-sam", "tiny")
    assert {name: options[name] for name in names} == {name: getattr(question, name) for name in names}
    for told, value in ((tuning.Cap, question.cap), (tuning.Tolerance, question.tolerance)):
        assert get_args(told)[1].help.endswith(f"Default: {value:g}.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "baseline", "--quantity", "budget"), "the baseline does not walk: name a method to tune"),
        (("--norms", "two"), "--norms must be 2, inf or both, got 'two'"),
        (("--norms", "3"), "norms must be 2, inf or both, got 3"),
        (("--norms", "inf,inf"), "norms must be 2, inf or both, got inf, inf"),
        (("--exponents", "2"), "--exponents must be two whole numbers such as -6,0, got '2'"),
        (("--exponents", "0,-3"), "exponents must be two whole numbers, the smaller first, from -30 to 30, got 0,-3"),
        (("--tolerance", "1.5"), "tolerance must be a number between 0 and 1, got 1.5"),
        (("--quantity", "radius"), "quantity must be budget, epsilon, settings or joint, got 'radius'"),
        (("--seeds", "0"), "--seeds must be a whole number >= 1, got 0"),
        (("--trials", "0"), "--trials must be a whole number >= 1, got 0"),
    ],
)
def test_bad_input_is_one_sentence(command, tmp_path, arguments, message):
    ended = command("tune", "digits", "--size", "tiny", "--out", tmp_path, *arguments)
    assert ended.code == 2
    assert ended.err.strip() == f"gasam: {message}"


def test_comparison_without_a_search_names_the_cure(command, tmp_path):
    ended = command("compare", "digits", "--size", "tiny", "--methods", "sam", "--tuned", "--out", tmp_path)
    assert ended.code == 2
    assert f"run `gasam tune digits --method sam --size tiny --out {tmp_path}` first" in ended.err


def test_damaged_finding_is_named(tmp_path):
    file = tmp_path / "a.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match=r"a\.json is not what a search found"):
        Finding.read(file)


def test_damaged_outcome_of_a_trial_is_named(command, tmp_path):
    assert command(*ARGUMENTS, "--trials", "1", "--out", tmp_path).code == 0
    [file] = (tmp_path / "tuning" / "tries").glob("digits-tiny-baseline-*/outcome.json")
    file.write_text("{}")
    ended = command(*ARGUMENTS, "--trials", "1", "--out", tmp_path)
    assert ended.code == 2
    assert "outcome.json is not the outcome of a trial: it lacks valid" in " ".join(ended.err.split())


@pytest.mark.parametrize(
    ("curve", "diverged", "tolerance", "final"),
    [
        ([80.0] * 6, False, 0.02, True),
        ([60.0] * 6, False, None, True),
        ([60.0] * 3, False, 0.02, True),
        ([60.0] * 3, False, 0.5, False),
        ([60.0] * 3, False, None, False),
        ([60.0, None], True, None, True),
    ],
)
def test_only_what_would_not_be_given_up_now_is_run_again(curve, diverged, tolerance, final):
    """A trial that ran to its end, diverged, or would be given up with the present tolerance is not."""
    outcome = Outcome(valid=None, worthless=50.0, diverged=diverged, curve=curve, gradient_evaluations=1, seconds=1.0)
    pruner = None if tolerance is None else BehindBaseline(Worth(ACCURACY, 50.0), [80.0] * 6, tolerance)
    assert outcome.is_final(TASKS["imdb"].settings("small", epochs=6), pruner) is final


def test_radius_of_a_search_that_goes_on_is_not_used(tmp_path):
    searched(tmp_path, "ga-sam", "inf", -3, 5)
    plan = make("imdb", "ga-sam", "small")
    with (
        FileLock(tmp_path / "tuning" / "ga-sam-inf.lock"),
        pytest.raises(ValueError, match=r"^ga-sam-inf is still being tuned: .* --walk ga-sam\.epsilon=VALUE"),
    ):
        with_tuned_walk(plan, tmp_path)
    assert with_tuned_walk(plan, tmp_path).walk.epsilon == 5e-3


def test_tuned_radius_is_for_its_data_and_not_beside_a_given_one(tmp_path):
    searched(tmp_path, "ga-sam", "inf", -3, 5)
    plan = make("imdb", "ga-sam", "small")
    assert with_tuned_walk(plan, tmp_path).walk.epsilon == 5e-3
    borrowed = with_tuned_walk(make("imdb", "ga-sam", "small", walk={"steps": 5}), tmp_path).walk
    assert (borrowed.epsilon, borrowed.steps, borrowed.source) == (5e-3, 5, "tuned")
    given = make("imdb", "ga-sam", "small", walk={"epsilon": 0.1})
    with pytest.raises(ValueError, match="has a given radius and --tuned"):
        with_tuned_walk(given, tmp_path)
    [file] = (tmp_path / "tuning").glob("*.json")
    raw = json.loads(file.read_text())
    for changed in (
        {"data": "other"},
        {"seed": 1},
        {"settings": raw["settings"] | {"epochs": 3}},
        {"name": "ga-sam-grid"},
    ):
        write_json(file, raw | changed)
        with pytest.raises(ValueError, match=r"has no search for the budget or epsilon of ga-sam on imdb"):
            with_tuned_walk(plan, tmp_path)


def searched(folder, method, norm, exponent, mantissa):
    """A finding as a search leaves it, with the baseline and one try."""
    plan = make("imdb", "baseline", "small")
    outcome = {
        "valid": 80.0,
        "worthless": 50.0,
        "diverged": False,
        "curve": [80.0],
        "gradient_evaluations": 9,
        "seconds": 1,
    }
    tried = {"norm": norm, "exponent": exponent, "mantissa": mantissa, **outcome, "valid": 81.0}
    settings, data = plan.config()["settings"], plan.data().hash
    found = Finding(1, method, "imdb", "small", method, 0, settings, data, (-6, 0), 0.02, outcome, (tried,))
    write_json(folder / "tuning" / f"{method}-{norm}.json", found.as_json())


def test_ladder_of_a_study_is_built_on_the_tuned_radius(tmp_path):
    """Table 3: steps at the tuned radius, and ladders with it in the place of the best radius of the paper's."""
    searched(tmp_path, "ga-sam", "inf", -3, 5)
    searched(tmp_path, "ga-sam", "2", -1, 2)
    rows = studies.load("table3").rows_on("imdb")
    chosen = {row.label: row.plan("small", 1, tuned=tmp_path).walk for row in rows}
    assert {label: choice.epsilon for label, choice in chosen.items() if label.startswith("L")} == pytest.approx(
        {f"L2, {x} x": 0.2 * float(x) / 10 for x in ("0.1", "0.5", "1", "5", "10", "50")}
        | {f"L-inf, {x} x": 5e-3 * float(x) for x in ("0.2", "0.5", "0.8", "1", "2", "5")}
    )
    assert chosen["L2, 0.5 x"].norm == 2
    assert chosen["L2, 0.5 x"].source == "tuned"
    assert chosen["Baseline"].epsilon is None
    assert [chosen[f"K = {k}"].steps for k in range(1, 6)] == [1, 2, 3, 4, 5]
    assert len({choice.epsilon for label, choice in chosen.items() if label.startswith("K")}) == 1


def test_search_of_a_study_is_for_the_data_that_it_is_given(tmp_path):
    searched(tmp_path, "ga-sam", "inf", -3, 5)
    elsewhere = Origin(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"imdb needs .* in .*elsewhere"):
        studies.load("table3").plans("small", ["imdb"], [1], origin=elsewhere, tuned=tmp_path)


def test_a_search_is_finished_when_nothing_more_would_be_tried():
    tries = [response(80.0, exponent=-3), response(None, exponent=-2, end=3)]
    cut = finding_of("imdb", "sam", tries, exponents=(-3, -2))
    grid = [response(79.0, exponent=-3, mantissa=mantissa) for mantissa in (2, 5, 8)]
    assert not cut.finished
    assert replace(cut, tries=(*cut.tries, *grid)).finished


def test_ladder_without_a_search_in_its_norm_names_the_cure(tmp_path):
    searched(tmp_path, "ga-sam", "inf", -3, 5)
    command = "gasam tune imdb --method ga-sam --size small --quantity epsilon --norms 2 --out"
    with pytest.raises(ValueError, match=f"run `{command} .*` first"):
        studies.load("table3").plans("small", ["imdb"], [1], tuned=tmp_path)
