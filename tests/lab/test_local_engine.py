"""Many runs in processes of this machine: finished ones are skipped, failures stay apart, and Ctrl-C loses nothing."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import pytest
import torch

from gasam.lab.engines.engine import do_all, prepare, train
from gasam.lab.engines.local import LocalEngine
from gasam.lab.errors import InputError
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

COMPARE = ("compare", "digits", "--size", "tiny", "--cpu", "--seeds", "1")
LONG = 100_000
"""Epochs of a run that is ended before it ends, however slow the machine is."""
ON_CPU = partial(train, cpu=True)


def test_failures_are_reported_with_their_logs_and_the_other_runs_are_kept(tmp_path, command):
    """One finished before, one with a damaged checkpoint, one that cannot write its model, and one without trouble."""
    methods = ("baseline", "sam", "asam", "ga-sam")
    plans = {method: make("digits", method, "tiny") for method in methods}
    names = {method: job.name for method, job in zip(methods, prepare(plans.values(), tmp_path), strict=True)}
    run(plans["baseline"], tmp_path, cpu=True)
    finished = (tmp_path / f"{names['baseline']}.json").stat().st_mtime_ns
    damaged = tmp_path / names["sam"] / "last.pt"
    damaged.parent.mkdir()
    damaged.write_bytes(b"garbage")
    (tmp_path / names["asam"] / "model.safetensors").mkdir(parents=True)

    ended = command(*COMPARE, "--methods", ",".join(plans), "--jobs", 2, "--out", tmp_path, "--json")

    assert ended.code == 1
    failed = {entry["run"]: entry for entry in json.loads(ended.out)["failed"]}
    assert failed.keys() == {names["sam"], names["asam"]}
    told = f"{damaged} is not a checkpoint of this program: delete {damaged.parent} to start again"
    log = damaged.parent / "error.txt"
    assert failed[names["sam"]] == {"run": names["sam"], "error": told, "log": str(log)}
    assert log.read_text() == f"{told}\n"
    assert failed[names["asam"]]["error"].startswith("IsADirectoryError: ")
    assert "Traceback (most recent call last)" in (tmp_path / names["asam"] / "error.txt").read_text()
    assert f"failed: {told} (full message: {log})" in ended.err
    assert "1 of 4 runs are already there, not run again" in ended.err
    assert (tmp_path / f"{names['baseline']}.json").stat().st_mtime_ns == finished
    assert (tmp_path / f"{names['ga-sam']}.json").exists()


@pytest.fixture
def long(tmp_path):
    """The job of a run that lasts long enough to be interrupted."""
    [job] = prepare([make("digits", "ga-sam", "tiny", settings={"epochs": LONG})], tmp_path)
    return job


def test_a_run_is_done_by_one_process_and_one_that_is_killed_is_reported(tmp_path, long):
    """While a process runs it, this one may not; then the process is killed."""
    kinds, told = [], f"{long.name} is being run by another process: wait for it, or choose another --out"

    def interfere(job, event):
        kinds.append(event[0])
        if kinds[-1] == "update" and kinds.count("update") == 1:
            with pytest.raises(InputError, match=told):
                run(job.plan, tmp_path, cpu=True)
            [process] = [child for child in multiprocessing.active_children() if child.name == job.name]
            process.kill()

    do_all([long], tmp_path, LocalEngine(), interfere, ON_CPU)
    assert (kinds[0], kinds[-1]) == ("start", "failed")
    assert long.record is None
    assert long.error == "the process ended with code -9"
    assert long.log.read_text() == "the process ended with code -9\n"


def progress(folder, job):
    return torch.load(folder / job.name / "last.pt", weights_only=True)["progress"]


def test_a_watcher_that_fails_leaves_no_process_and_loses_no_work(tmp_path, long):
    def fail(job, event):
        if event[0] == "update":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        do_all([long], tmp_path, LocalEngine(), fail, ON_CPU)
    assert not multiprocessing.active_children()
    assert progress(tmp_path, long)["updates"] > 0
    assert progress(tmp_path, long)["epoch"] < LONG


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(tmp_path, command, slow):
    task, released = slow
    [job] = prepare([make(task, "ga-sam")], tmp_path / "runs")
    arguments = ["compare", task, "--cpu", "--seeds=1", "--methods=ga-sam", "--jobs=2", f"--out={tmp_path / 'runs'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gasam", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background ignores SIGINT, and a process inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in process.stderr:
        if "epoch 2/" in line:
            process.send_signal(signal.SIGINT)
            break
    told = process.stderr.read()
    assert process.wait() == 130
    process.stderr.close()
    assert told.splitlines()[-1] == "gasam: interrupted; run the same command to continue"
    assert "Traceback" not in told
    assert not list((tmp_path / "runs").glob("*.json"))
    before = progress(tmp_path / "runs", job)
    assert 2 <= before["epoch"] < 60

    released.touch()
    ended = command(*arguments).done()
    assert re.findall(r"epoch (\d+)/60", ended.err)[0] == str(before["epoch"] + 1)
    [again] = prepare([job.plan], tmp_path / "runs")
    whole = run(job.plan, tmp_path / "whole", cpu=True)
    assert [row["loss"] for row in again.record.curve] == [row["loss"] for row in whole.curve]
    assert (again.record.valid, again.record.test) == (whole.valid, whole.test)


def sent_and_killed(job, folder, on_update):
    """A result that is larger than a pipe holds: the process is killed while it is sent."""
    if job.plan.seed == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return b"x" * 2**24
    return job.name


def test_a_worker_killed_while_it_sends_its_result_is_reported_and_the_others_go_on(tmp_path):
    """The watcher is slow, so that the message waits in the pipe, half of it sent."""
    jobs = prepare([make("digits", "baseline", "tiny", seed) for seed in (1, 2)], tmp_path)
    sending, other = jobs

    def slow(job, event):
        if event[0] == "start" and job is sending:
            [process] = [child for child in multiprocessing.active_children() if child.name == job.name]
            while psutil.pid_exists(process.pid):  # until it has been killed
                time.sleep(0.01)

    do_all(jobs, tmp_path, LocalEngine(1), slow, sent_and_killed)
    assert "ended with code -9" in sending.error
    assert sending.record is None
    assert other.record == other.name
