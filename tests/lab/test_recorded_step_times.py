"""Step times beside the records: measured for every configuration, and shown on the task's page."""

import json
from pathlib import Path

from benchmarks.step_times import measure, plan_of

from gasam.lab import records
from gasam.lab.report.contents import Contents, read
from gasam.lab.report.frame import groups_of
from gasam.lab.report.sections import task_sections
from gasam.lab.tasks import TASKS, Origin

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
    file = measure("digits", "tiny", Origin(), tmp_path, longer=1)
    written = json.loads(file.read_text())
    assert file == tmp_path / "step-times" / "digits-tiny.json"
    assert written.keys() == {"task", "size", "commit", "dirty", "machine", "times"}
    times = read(tmp_path).step_times["digits", "tiny"]
    assert times.keys() == {run.configuration for run in records.read_all(tmp_path)}
    assert min(times.values()) > 0


def test_recorded_step_times_are_those_of_recorded_runs():
    found = read(RESULTS)
    for (task, size), times in found.step_times.items():
        assert times.keys() <= {group.configuration for group in groups_of(found.records, task, size)}, (task, size)


def test_the_page_of_a_task_shows_them():
    runs = [run for run in records.read_all(RESULTS) if run.task == "ptb"]
    times = {("ptb", "small"): {group.configuration: 1.5 for group in groups_of(runs, "ptb", "small")}}
    sections = {section.title: section for section in task_sections(Contents(runs, step_times=times), "ptb")}
    assert "| 1.50x |" in sections["Size small"].parts[1]
