"""Step times beside the records: measured for every configuration, and shown on the task's page."""

import json
from pathlib import Path

import pytest
from benchmarks.step_times import measure, plan_of
from synthetic import records_of

from gasam.lab import records
from gasam.lab.engines.step_time import STEPS, step_times
from gasam.lab.errors import InputError
from gasam.lab.report.contents import Contents, read
from gasam.lab.report.frame import groups_of
from gasam.lab.report.sections import task_sections
from gasam.lab.tasks import TASKS, Origin
from gasam.lab.training.loop import Training
from gasam.lab.training.plan import make

RESULTS = Path(__file__).parents[2] / "results"


def test_every_recorded_configuration_can_be_planned_again():
    runs = list(records.read_all(RESULTS))
    groups = [group for task in TASKS for size in TASKS[task].sizes for group in groups_of(runs, task, size)]
    assert len(groups) > 100
    assert [group.configuration for group in groups] == [plan_of(group, Origin()).key for group in groups]


def test_step_times_are_measured_beside_the_records_and_read_from_there(command, tmp_path):
    ended = command("compare", "digits", "--size", "tiny", "--methods", "baseline,ga-sam", "--jobs", "1", "--cpu",
                    "--out", tmp_path)  # fmt: skip
    assert ended.code == 0, ended.err
    file = measure("digits", "tiny", Origin(), tmp_path, effort=1)
    written = json.loads(file.read_text())
    assert file == tmp_path / "step-times" / "digits-tiny.json"
    assert written.keys() == {"task", "size", "commit", "dirty", "machine", "times"}
    times = read(tmp_path).step_times["digits", "tiny"]
    runs = {run.method: run.configuration for run in records.read_all(tmp_path)}
    assert times.keys() == set(runs.values())
    assert times[runs["baseline"]] == 1
    assert times[runs["ga-sam"]] != 1
    with pytest.raises(InputError, match="no methods to compare on digits in size 'none'"):
        measure("digits", "none", Origin(), tmp_path)
    file.write_text("{}")
    with pytest.raises(InputError, match="has no step times"):
        read(tmp_path)


def test_more_effort_is_more_rounds(monkeypatch):
    monkeypatch.setattr("gasam.lab.engines.step_time.ROUNDS", 2)
    monkeypatch.setattr("gasam.lab.engines.step_time.SECONDS", 1000.0)
    steps = []
    train_step = Training.train_step
    monkeypatch.setattr(Training, "train_step", lambda self, chosen: (steps.append(self), train_step(self, chosen)))
    plans = [make("digits", method, "tiny") for method in ("baseline", "ga-sam")]
    for effort in (1, 3):
        steps.clear()
        step_times(plans, cpu=True, effort=effort)
        assert len(steps) == 2 * STEPS * (1 + 2 * effort), "two methods, and a round to warm up"


def test_recorded_step_times_are_those_of_recorded_runs():
    found = read(RESULTS)
    for (task, size), times in found.step_times.items():
        assert times.keys() <= {group.configuration for group in groups_of(found.records, task, size)}, (task, size)


def test_the_page_of_a_task_shows_them_and_the_difference_at_equal_time():
    scores = {"baseline": [84.0, 84.2, 84.4], "ga-sam": [85.0, 85.3, 85.4]}
    runs = records_of("imdb", scores)
    longer = records_of("imdb", {"baseline": [84.5, 84.6, 84.7]}, settings={"epochs": 24})
    keys = {run.method: run.configuration for run in runs}
    times = {("imdb", "small"): {keys["baseline"]: 1.0, keys["ga-sam"]: 2.9}}
    [section] = task_sections(Contents([*runs, *longer], step_times=times), "imdb")
    [row] = [line for line in section.parts[1].splitlines() if line.startswith("| GA-SAM")]
    assert "| 2.90x |" in row
    assert "+0.63 [" in row, "the longer baseline was not measured itself, but it has the steps of the short one"
