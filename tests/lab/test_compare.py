"""Many runs at once, in real processes: finished ones are skipped, failures stay apart, and Ctrl-C loses nothing."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest
import torch

from gasam.lab.engines.execution import do_all, run_all
from gasam.lab.engines.jobs import prepare
from gasam.lab.engines.local import LocalEngine, cores
from gasam.lab.errors import InputError
from gasam.lab.record import read
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

COMPARE = ("compare", "digits", "--size", "tiny", "--cpu")
# As many jobs as cores: every process has one thread, as this one has, so that numbers are the same to the bit.
LONG = 600
"""Epochs of a run that is ended before it ends."""


def name_of(plan):
    return plan.name(plan.data().hash)


class Events(list):
    """What a watcher is told; `then` is called with every update's job."""

    def __init__(self, then=lambda job: None):
        super().__init__()
        self.then = then

    def __call__(self, job, event):
        self.append((job.plan.walk.method, event[0]))
        if event[0] == "update":
            self.then(job)


def test_failures_are_reported_with_their_logs_and_the_other_runs_are_kept(tmp_path, command):
    """One finished before, one with a damaged checkpoint, one that cannot write its model, and one without trouble."""
    plans = {method: make("digits", method, "tiny") for method in ("baseline", "sam", "asam", "ga-sam")}
    run(plans["baseline"], tmp_path, cpu=True)
    finished = (tmp_path / f"{name_of(plans['baseline'])}.json").stat().st_mtime_ns
    damaged = tmp_path / name_of(plans["sam"]) / "last.pt"
    damaged.parent.mkdir()
    damaged.write_bytes(b"garbage")
    (tmp_path / name_of(plans["asam"]) / "model.safetensors").mkdir(parents=True)

    methods = ",".join(plans)
    ended = command(*COMPARE, "--methods", methods, "--jobs", 2, "--out", tmp_path, "--json")

    assert ended.code == 1
    table = json.loads(ended.out)
    assert [row["method"] for row in table["rows"]] == ["baseline", "ga-sam"]
    failed = {entry["run"]: entry for entry in table["failed"]}
    assert failed.keys() == {name_of(plans["sam"]), name_of(plans["asam"])}
    told = f"{damaged} is not a checkpoint of this program: delete {damaged.parent} to start again"
    assert failed[name_of(plans["sam"])] == {
        "run": name_of(plans["sam"]), "error": told, "log": str(damaged.parent / "error.txt")
    }  # fmt: skip
    assert (damaged.parent / "error.txt").read_text() == f"{told}\n"
    crashed = failed[name_of(plans["asam"])]
    assert crashed["error"].startswith("IsADirectoryError: ")
    log = tmp_path / name_of(plans["asam"]) / "error.txt"
    assert crashed["log"] == str(log)
    assert "Traceback (most recent call last)" in log.read_text()
    assert f"failed: {told} (full message: {damaged.parent / 'error.txt'})" in ended.err
    assert "1 of 4 runs are already there, not run again" in ended.err
    assert (tmp_path / f"{name_of(plans['baseline'])}.json").stat().st_mtime_ns == finished


def test_finished_runs_start_no_process(tmp_path):
    plans = [make("digits", method, "tiny") for method in ("baseline", "ga-sam")]
    records = [run(plan, tmp_path, cpu=True) for plan in plans]
    jobs, events = prepare([*plans, plans[0]], tmp_path), Events()
    run_all(jobs, tmp_path, LocalEngine(2), events, cpu=True)
    assert [job.record for job in jobs] == records
    assert not events


@pytest.fixture
def long():
    return make("digits", "ga-sam", "tiny", settings={"epochs": LONG})


def test_a_run_is_done_by_one_process_and_one_that_is_killed_is_reported(tmp_path, long):
    """While a process runs it, this one may not; then the process is killed."""
    told = []

    def interfere(job):
        if not told:
            with pytest.raises(InputError) as caught:
                run(long, tmp_path, cpu=True)
            told.append(str(caught.value))
        [process] = [child for child in multiprocessing.active_children() if child.name == job.name]
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)

    events = Events(interfere)
    [job] = jobs = prepare([long], tmp_path)
    run_all(jobs, tmp_path, LocalEngine(cores()), events, cpu=True)
    assert told == [f"{job.name} is being run by another process: wait for it, or choose another --out"]
    assert events[0] == ("ga-sam", "start")
    assert events[-1] == ("ga-sam", "failed")
    assert job.record is None
    assert job.error == "the process ended with code -9"
    assert job.log.read_text() == "the process ended with code -9\n"


def test_a_watcher_that_fails_leaves_no_process_and_loses_no_work(tmp_path, long):
    def fail(job):
        raise ZeroDivisionError

    jobs = prepare([long], tmp_path)
    with pytest.raises(ZeroDivisionError):
        run_all(jobs, tmp_path, LocalEngine(cores()), Events(fail), cpu=True)
    assert not multiprocessing.active_children()
    saved = torch.load(tmp_path / jobs[0].name / "last.pt", weights_only=True)
    assert saved["progress"]["updates"] > 0
    assert saved["progress"]["epoch"] < LONG


@pytest.mark.parametrize("parallel", [0, -1])
def test_less_than_one_job_is_told(parallel):
    with pytest.raises(InputError, match=f"jobs must be a whole number >= 1, got {parallel}"):
        LocalEngine(parallel)


def test_a_run_for_each_core():
    assert 1 <= cores() <= os.cpu_count()


def heed_ctrl_c():
    """Whoever runs the tests in the background has it ignored, and a process inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(tmp_path, command):
    epochs = 50
    plan = make("digits", "ga-sam", "tiny", settings={"epochs": epochs})
    options = {"methods": "ga-sam", "epochs": epochs, "jobs": cores(), "out": tmp_path / "runs"}
    arguments = [*COMPARE, *(f"--{name}={value}" for name, value in options.items())]
    process = subprocess.Popen(
        [sys.executable, "-m", "gasam", *arguments], stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    )
    for line in process.stderr:
        if "epoch 2/" in line:
            process.send_signal(signal.SIGINT)
            break
    told = process.stderr.read()
    assert process.wait(timeout=60) == 130
    process.stderr.close()
    assert told.splitlines()[-1] == "gasam: interrupted; run the same command to continue"
    assert "Traceback" not in told
    assert not list((tmp_path / "runs").glob("*.json"))
    before = torch.load(tmp_path / "runs" / name_of(plan) / "last.pt", weights_only=True)["progress"]
    assert 2 <= before["epoch"] < epochs

    ended = command(*arguments)
    assert ended.code == 0
    shown = [int(number) for number in re.findall(rf"epoch (\d+)/{epochs}", ended.err)]
    assert shown == list(range(before["epoch"] + 1, epochs + 1))
    assert f"epoch {before['epoch'] - 1}/{epochs}" not in ended.err
    record = read(tmp_path / "runs" / f"{name_of(plan)}.json")
    whole = run(plan, tmp_path / "whole", cpu=True)
    assert [row["loss"] for row in record.curve] == [row["loss"] for row in whole.curve]
    assert (record.valid, record.test) == (whole.valid, whole.test)


def sent_and_killed(job, folder, on_update):
    """A result that is larger than a pipe holds: the process is killed while it is sent."""
    if job.plan.walk.method == "sam":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return b"x" * 2**24
    return job.name


def test_a_worker_killed_while_it_sends_its_result_is_reported_and_the_others_go_on(tmp_path):
    """The watcher is slow, so that the message waits in the pipe, half of it sent."""
    jobs = prepare([make("digits", method, "tiny") for method in ("sam", "baseline")], tmp_path)
    sending, other = jobs
    seen = []

    def slow(job, event):
        seen.append((job.name, event[0]))
        if event[0] == "start" and job is sending:
            [process] = [child for child in multiprocessing.active_children() if child.name == job.name]
            while psutil.pid_exists(process.pid):  # until it has been killed
                time.sleep(0.01)

    do_all(jobs, tmp_path, LocalEngine(), slow, sent_and_killed)
    assert (sending.name, "failed") in seen
    assert "ended with code -9" in sending.error
    assert sending.record is None
    assert other.record == other.name
