"""Trackers: what TensorBoard reads back equals the record, each epoch once, and no failure of a tracker stops a run."""

import json
import signal
import time

import pytest
from accelerate.tracking import get_available_trackers
from killed_processes import exit_code, killed_while_tracked
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from gasam.lab import records
from gasam.lab.tracking.services import SERVICES
from gasam.lab.training.plan import make
from gasam.lab.training.run import run


def events(folder):
    """All scalars in a folder of event files, as TensorBoard shows them: pairs of step and value by tag."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def hparams(folder):
    """The hyperparameters, and the names of the metrics beside them, that the page HPARAMS shows."""
    found = EventAccumulator(str(folder)).Reload()

    def content(tag):
        [data] = [found.SummaryMetadata(tag).plugin_data.content]
        return HParamsPluginData.FromString(data)

    values = content("_hparams_/session_start_info").session_start_info.hparams
    shown = {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}
    return shown, [each.name.tag for each in content("_hparams_/experiment").experiment.metric_infos]


def single(number):
    """TensorBoard stores single precision."""
    return pytest.approx(number, rel=1e-6)


def assert_equal(found, expected):
    """The scalars are those of the record, and no others."""
    names = {name for row in expected.curve for name, value in row.items() if not isinstance(value, dict)} - {"epoch"}
    wanted = {
        name: [(row["epoch"], single(row[name])) for row in expected.curve if row[name] is not None] for name in names
    }
    for row in expected.curve:
        for group, inner in row.items():
            for name, value in inner.items() if isinstance(inner, dict) else ():
                wanted.setdefault(f"{group}/{name}", []).append((row["epoch"], single(value)))
    for name in ("valid", "test"):
        score = getattr(expected, name)
        wanted[f"final/{name}"] = [] if score is None else [(len(expected.curve), single(score))]
    assert found == {name: rows for name, rows in wanted.items() if rows}


def test_a_killed_run_that_is_resumed_has_each_epoch_once(tmp_path):
    """Killed when the second epoch is in the event file, but not yet counted."""
    plan = make("digits", "ga-sam", "tiny", settings={"epochs": 3})
    assert exit_code(killed_while_tracked, tmp_path) == -signal.SIGKILL
    folder = tmp_path / "tensorboard" / plan.name(plan.data().hash)
    assert [step for step, _ in events(folder)["loss"]] == [1, 2]
    time.sleep(1)  # TensorBoard reads its files in the order of the seconds in their names
    found = run(plan, tmp_path, cpu=True, track="tensorboard")
    assert_equal(events(folder), found)


def test_a_run_that_is_trained_again_replaces_the_earlier_one(tmp_path):
    plan = make("digits", "baseline", "tiny")
    run(plan, tmp_path, cpu=True, track="tensorboard")
    [file] = tmp_path.glob("*.json")
    file.unlink()
    found = run(plan, tmp_path, cpu=True, track="tensorboard")
    assert_equal(events(tmp_path / "tensorboard" / file.stem), found)


def test_compare_follows_new_runs_and_sends_finished_ones(command, tmp_path):
    common = ("digits", "--size", "tiny", "--cpu", "--out", tmp_path)
    assert command("train", *common).code == 0
    ended = command("compare", *common, "--methods", "baseline,sam", "--jobs", 1, "--track", "tensorboard")
    assert ended.code == 0
    files = list(tmp_path.glob("*.json"))
    assert len(files) == 2
    for file in files:
        assert_equal(events(tmp_path / "tensorboard" / file.stem), records.read(file))


def test_a_tracker_that_fails_gives_one_note_and_training_continues(command, tmp_path):
    """The tracker cannot write: a file is where its folder should be."""
    (tmp_path / "tensorboard").write_text("")
    common = ("digits", "--size", "tiny", "--cpu", "--out", tmp_path, "--json", "--track", "tensorboard")
    trained = command("train", *common)
    assert json.loads(trained.out)["method"] == "baseline"
    compared = command("compare", *common, "--methods", "sam", "--jobs", 1)
    assert len(json.loads(compared.out)["rows"]) == 1
    for ended in (trained, compared):
        assert ended.code == 0
        [note] = [line for line in ended.err.splitlines() if "tensorboard" in line]
        assert note == (
            f"- tensorboard failed (Not a directory, {tmp_path}/tensorboard): training continues; "
            "the same command sends the rest later"
        )
    (tmp_path / "tensorboard").unlink()
    assert command("compare", *common, "--methods", "sam", "--jobs", 1).code == 0
    [file] = [file for file in tmp_path.glob("*.json") if "-sam-" in file.name]
    assert_equal(events(tmp_path / "tensorboard" / file.stem), records.read(file))


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - set(map(str, get_available_trackers()))))
def test_a_tracker_that_is_not_installed_is_refused_in_one_sentence(command, tmp_path, name):
    told = f"gasam: {name} is not installed: run `pip install {name.replace('_', '-')}`\n"
    for arguments in (("train", "digits"), ("compare", "digits")):
        ended = command(*arguments, "--out", tmp_path / "runs", "--track", name)
        assert (ended.code, ended.out, ended.err) == (2, "", told)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_refused_in_one_sentence(command, tmp_path):
    ended = command("train", "digits", "--track", "paper", "--out", tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("gasam: --track must be one of aim, clearml, comet_ml, dvclive, mlflow,")
    assert not list(tmp_path.iterdir())
