"""Runs on a real Ray cluster of three nodes: equal to local ones, also when a node, the driver or a run is killed."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import ray_nodes
import torch

from gasam.lab.engines import Place
from gasam.lab.engines.engine import do_all, prepare, read_files, train, write_files
from gasam.lab.errors import InputError
from gasam.lab.methods import TABLE1
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

pytest.importorskip("ray")
ON_CPU = partial(train, cpu=True)


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A cluster of the test's own, with a server for clients at `nodes.port`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cluster = ray_nodes.Cluster(tmp_path / "ray.json", port)
    try:
        cluster.wait()
        monkeypatch.setenv("RAY_TMPDIR", cluster.folder)
        found = ray_nodes.read(cluster.info)
        found.port = port
        yield found
    finally:
        cluster.stop()


def gasam(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "gasam", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def comparison(where, out, methods, task="digits", *options):
    named = {"methods": methods, "on": where, "out": out} | ({} if task.endswith(".py") else {"size": "tiny"})
    return gasam("compare", task, "--cpu", *(f"--{name}={value}" for name, value in named.items()), *options)


def ended(process, code=0):
    """What a process printed to its two outputs."""
    out, err = process.communicate()
    assert process.returncode == code, err
    return out, err


def result(record):
    """What must not depend on where a run is executed."""
    curve = [{name: value for name, value in row.items() if name != "seconds"} for row in record["curve"]]
    return record["valid"], record["test"], record["gradient_evaluations"], curve


def results(folder):
    return {file.name: result(json.loads(file.read_text())) for file in folder.glob("*.json")}


def progress(folder, job):
    return torch.load(folder / job.name / "last.pt", weights_only=True)["progress"]


def wait_for(condition):
    while not condition():
        time.sleep(0.05)


class Watch:
    """Notes the events of jobs. Calls `then` once, when all runs have sent an update and the driver has checkpoints."""

    def __init__(self, folder, runs, then):
        self.folder, self.runs, self.then, self.kinds = folder, runs, then, {}

    def __call__(self, job, event):
        self.kinds.setdefault(job.name, []).append(event[0])
        if self.then and all(map(self.seen, self.runs)):
            then, self.then = self.then, None
            then()

    def seen(self, job):
        return "update" in self.kinds.get(job.name, ()) and (self.folder / job.name / "last.pt").exists()


def interrupt():
    raise KeyboardInterrupt


def test_runs_are_interrupted_and_moved_and_are_those_of_this_machine(nodes, tmp_path, slow):
    """Ctrl-C keeps a checkpoint, a killed node's run continues on another, and a damaged run fails alone.

    The runs' own task file is gone when they start: the nodes use its text.
    """
    out, (task, released) = tmp_path / "ray", slow
    plans = make(task, "baseline"), make(task, "ga-sam"), make("digits", "sam", "tiny")
    long, other, damaged = prepare(plans, out)
    Path(task).unlink()
    bad = out / damaged.name / "last.pt"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"garbage")

    with Place(nodes.address).engine(cpu=True) as engine:
        with pytest.raises(KeyboardInterrupt):
            do_all([long], out, engine, Watch(out, [long], interrupt), ON_CPU)
        assert 0 < progress(out, long)["epoch"] < 60

        def kill():
            nodes.kill_a_busy_one()
            released.touch()

        watch = Watch(out, [long, other], kill)
        do_all([long, other, damaged], out, engine, watch, ON_CPU)
    assert sum(kinds.count("moved") for kinds in watch.kinds.values()) == 1
    assert [kinds.count("start") for kinds in watch.kinds.values()] == [1, 1, 1]
    assert damaged.error == f"{bad} is not a checkpoint of this program: delete {bad.parent} to start again"

    for job in (long, other):
        run(job.plan, tmp_path / "local", cpu=True)
    assert results(out) == results(tmp_path / "local")
    sent, kept = (read_files(folder, long.name) for folder in (out, tmp_path / "local"))
    assert sent.keys() == kept.keys()
    assert all(sent[name] == kept[name] for name in sent if not name.endswith(".json"))  # these hold times


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--on", "ray"), "no Ray cluster runs on this machine: start one with `ray start --head`"),
        (("--on", "ray://127.0.0.1:1"), "no Ray cluster answers at ray://127.0.0.1:1: start one with"),
        (("--on", "moon"), "--on must be local, ray, auto, HOST:PORT or ray://HOST:PORT, got 'moon'"),
        (("--cpus-per-run", 2), "--cpus-per-run and --gpus-per-run are for a Ray cluster: add --on ray"),
    ],
)
def test_bad_places_are_told_in_one_sentence(options, sentence, command, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert sentence in command("compare", "digits", "--size", "tiny", "--out", tmp_path, *options).refused()


def test_files_are_sent_whole_in_the_order_of_writing_and_those_that_are_gone_are_deleted(tmp_path):
    from gasam.lab.engines.ray_node import Reporter

    job, driver, node = "task-tiny-1-0123", tmp_path / "driver", tmp_path / "node"
    for name in (".lock", "error.txt", "best.pt", "last.pt", ".last.pt.partial"):
        (driver / job).mkdir(parents=True, exist_ok=True)
        (driver / job / name).write_bytes(b"before")
    (driver / f".{job}.json").write_bytes(b"kept")
    files = read_files(driver, job)
    write_files(node, "*", files, files)
    reporter = Reporter(None, 0, "process", node)
    assert read_files(node, "*").keys() == {f"{job}/best.pt", f"{job}/last.pt", f".{job}.json"}
    assert reporter.changes()[0] == {}
    for name in (f"{job}/zebra.pt", f"{job}/last.pt", f"{job}.json"):
        (node / name).write_bytes(b"after")
    (node / job / "best.pt").unlink()
    changes = reporter.changes()
    assert list(changes[0]) == [f"{job}/zebra.pt", f"{job}/last.pt", f"{job}.json"]
    assert reporter.changes()[0] == {}
    write_files(driver, job, *changes)
    assert read_files(driver, job) == read_files(node, job)
    assert (driver / job / ".lock").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_comparison_continues_after_its_driver_was_killed(nodes, tmp_path):
    methods, count = ",".join(TABLE1), 2 * len(TABLE1)

    def start(where, folder):
        return comparison(where, tmp_path / folder, methods, "docstrings", "--seeds=2", "--epochs=6")

    ended(start("local", "local"))
    assert len(results(tmp_path / "local")) == count
    process = start(nodes.address, "ray")
    wait_for(lambda: len(results(tmp_path / "ray")) >= count // 2)
    process.kill()
    process.communicate()
    assert len(results(tmp_path / "ray")) < count
    told = ended(start(nodes.address, "ray"))[1]
    assert re.search(rf"\d+ of {count} runs are already there", told)
    assert results(tmp_path / "ray") == results(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_searches_analyses_and_clients(nodes, tmp_path, slow):
    """By the running cluster and by its server for clients; Ctrl-C ends with 130 and keeps the last step."""
    client = f"ray://127.0.0.1:{nodes.port}"
    search = ("tune", "digits", "--size", "tiny", "--cpu", "--method", "ga-sam", "--trials", 2, "--json")
    found = [
        ended(gasam(*search, "--out", tmp_path / where, "--on", where, "--jobs", 1))[0] for where in ("local", "ray")
    ]
    here, there = (json.loads(text) | {"file": ""} for text in found)
    assert here == there

    task, released = slow
    [job] = prepare([make(task, "ga-sam")], tmp_path / "client")
    process = comparison(client, tmp_path / "client", "ga-sam", task, "--seeds=1")
    wait_for((tmp_path / "client" / job.name / "last.pt").exists)
    process.send_signal(signal.SIGINT)
    told = ended(process, 130)[1]
    assert told.splitlines()[-1] == "gasam: interrupted; run the same command to continue"
    assert "Traceback" not in told
    assert 0 < progress(tmp_path / "client", job)["epoch"] < 60
    released.touch()
    ended(comparison(client, tmp_path / "client", "ga-sam", task, "--seeds=1"))
    run(job.plan, tmp_path / "whole", cpu=True)
    assert results(tmp_path / "client") == results(tmp_path / "whole")

    record = tmp_path / "client" / f"{job.name}.json"
    for command, *options in (("sharpness",), ("landscape", "--points", 3)):
        measured = []
        for where in ("local", "auto"):
            out = tmp_path / "analysis" / where
            ended(gasam(command, record, "--cpu", "--rows", 32, *options, "--on", where, "--out", out))
            files = sorted(out.glob("*-line-own-ga-sam-*.json"))
            measured.append([json.loads(file.read_text())["found"] for file in files])
        assert measured[0] == measured[1]
        assert len(measured[0]) == 1


@pytest.mark.slow
def test_nodes_that_are_too_small_or_of_another_version_are_named(nodes, monkeypatch):
    def refused(told, **options):
        with pytest.raises(InputError, match=told), Place(nodes.address, **options).engine(cpu=True):
            pass

    refused(r"none of the cluster's \d nodes has 64 CPUs: lower --cpus-per-run", cpus_per_run=64)
    monkeypatch.setattr("gasam.__version__", "9.9")
    refused(r"has gasam [\d.]+ and we have 9\.9: install the same versions on every node")
