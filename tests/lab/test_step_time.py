"""What a step of each method costs, compared with plain training: measured side by side."""

import json
from types import SimpleNamespace

import torch

from gasam.lab.engines.jobs import Job
from gasam.lab.engines.step_time import mean_step_times, step_times
from gasam.lab.training.loop import Training
from gasam.lab.training.plan import make


def plans(*walks, task="docstrings", size="tiny"):
    return [
        make(task, "baseline", size),
        *(make(task, "ga-sam", size, seed, walk=walk) for walk in walks for seed in (1, 2)),
    ]


def test_every_configuration_is_measured_once_against_plain_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    every, rarely = {"steps": 3}, {"steps": 3, "walk_every": 4}
    found = plans(every, rarely)
    threads = torch.get_num_threads()
    times = step_times(found, parallel=2, cpu=True)
    assert times.keys() == {found[0].key, found[1].key, found[3].key}, "seeds of one configuration are measured once"
    assert times[found[0].key] == 1
    assert min(times.values()) > 0
    assert torch.get_num_threads() == threads
    assert not list(tmp_path.iterdir())


def test_the_walk_is_measured_at_full_strength(monkeypatch):
    """Though the schedule would not let it begin within so few steps: no pass is left out."""
    [plain, waiting, *_] = found = plans({"budget": 0.1, "cap": 0.01, "walk_progress": 0.5, "steps": 3})
    passes, original = {}, Training.train_step

    def counted(training, batch):
        original(training, batch)
        passes[training.plan.walk.moved] = len(training.sharp.last.losses)

    monkeypatch.setattr(Training, "train_step", counted)
    assert step_times(found, cpu=True).keys() == {plain.key, waiting.key}
    assert passes == {"nothing": 1, "weights": 4}
    assert step_times([plain], cpu=True) == {}
    assert step_times([waiting], cpu=True) == {}


def test_comparison_shows_passes_and_step_times(command, tmp_path):
    ended = command("compare", "digits", "--size", "tiny", "--methods", "baseline,ga-sam", "--walk",
                    "ga-sam.every=4", "--jobs", "1", "--cpu", "--out", tmp_path, "--json")  # fmt: skip
    assert ended.code == 0, ended.err
    table = json.loads(ended.out)
    plain, walking = table["rows"]
    assert plain["step_time"] == 1.0
    assert walking["gradient_evaluations"]["relative"] == 1.25
    assert walking["step_time"] > 0


def test_a_comparison_survives_a_measurement_that_fails(command, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("gasam.lab.cli.sessions.mean_step_times", fail)
    ended = command("compare", "digits", "--size", "tiny", "--methods", "baseline,ga-sam", "--jobs", "1", "--cpu",
                    "--walk", "ga-sam.every=2", "--out", tmp_path)  # fmt: skip
    assert ended.code == 0, ended.err
    assert "step times were not measured: RuntimeError out of memory" in ended.err
    assert list((tmp_path / "tables").glob("*.md"))


def test_steps_without_a_walk_count_as_plain_ones(monkeypatch):
    """A run that walked in half of its steps."""
    plain, walking = make("docstrings", "baseline", "tiny"), make("docstrings", "ga-sam", "tiny", walk={"steps": 3})
    jobs = [
        Job(plain, "a", record=SimpleNamespace(gradient_evaluations=100, updates=100)),
        Job(walking, "b", record=SimpleNamespace(gradient_evaluations=250, updates=100)),
        Job(walking, "c", record=None),
    ]
    times = {plain.key: 1.0, walking.key: 4.0}
    monkeypatch.setattr("gasam.lab.engines.step_time.step_times", lambda *arguments, **options: times)
    assert mean_step_times(jobs, cpu=True) == {plain.key: 1.0, walking.key: 2.5}
