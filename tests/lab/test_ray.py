"""Runs on a real Ray cluster of three nodes: equal to local ones, also when a node, the driver or a run is killed."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import ray_nodes
import torch
from filelock import FileLock

from gasam import __version__ as gasam_version
from gasam.lab.engines.choice import engine
from gasam.lab.engines.execution import run_all
from gasam.lab.engines.jobs import prepare
from gasam.lab.errors import InputError
from gasam.lab.methods import TABLE1
from gasam.lab.record import read, read_analysis
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

pytest.importorskip("ray")
EPOCHS = 100
"""Epochs of a run that lasts long enough to be interrupted."""
MINE = []
"""The cluster that this process has started."""


@pytest.fixture(scope="session")
def started(shared):
    """Starts the one cluster of all processes of the session at its first use, and stops it at the end."""

    def start():
        info = shared / "ray.json"
        if not info.exists():
            MINE.append(ray_nodes.Cluster(info))
            MINE[-1].wait()
        return ray_nodes.read(info)

    yield start
    with FileLock(shared / "ray.lock"):  # another process may use it
        for cluster in MINE:
            cluster.stop()


@pytest.fixture
def nodes(started, shared, monkeypatch):
    """The cluster, for one test at a time."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with FileLock(shared / "ray.lock"):
        found = started()
        monkeypatch.setenv("RAY_TMPDIR", found.folder)
        yield found


def plans_of(*methods, **settings):
    return [make("digits", method, "tiny", settings=settings) for method in methods]


def gasam(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "gasam", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def comparison(nodes, out, methods, task="digits"):
    options = {"size": "tiny", "methods": methods, "on": nodes.address, "out": out}
    return ("compare", task, "--cpu", *(f"--{name}={value}" for name, value in options.items()))


def ended(process, code=0):
    """What a process printed to its two outputs."""
    out, err = process.communicate()
    assert process.returncode == code, err
    return out, err


def result(record):
    """What must not depend on where a run is executed."""
    curve = [{name: value for name, value in row.items() if name != "seconds"} for row in record.curve]
    return record.valid, record.test, record.name, record.gradient_evaluations, curve


def expected(plans, folder):
    return {plan.walk.method: result(run(plan, folder, cpu=True)) for plan in plans}


def found_in(folder, plans):
    names = {plan.walk.method: f"{plan.name(plan.data().hash)}.json" for plan in plans}
    return {method: result(read(folder / name)) for method, name in names.items()}


def wait_for(condition, seconds=240):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def interrupt(job):
    raise KeyboardInterrupt


def once(act, method):
    """Calls `act` once, at the first event of this method."""
    calls = []
    return lambda job: calls.append(act()) if job.plan.walk.method == method and not calls else None


class Watch:
    """Notes the events of jobs, and calls `then` after an update of a job that the driver has a checkpoint of."""

    def __init__(self, folder, then=lambda job: None):
        self.folder, self.then, self.kinds = folder, then, {}

    def __call__(self, job, event):
        self.kinds.setdefault(job.plan.walk.method, []).append(event[0])
        if event[0] == "update" and (self.folder / job.name / "last.pt").exists():
            self.then(job)


def test_a_comparison_in_a_cluster_gives_the_records_of_this_machine(nodes, tmp_path):
    plans = plans_of("baseline", "ga-sam")
    out = tmp_path / "ray"
    table, _ = ended(gasam(*comparison(nodes, out, "baseline,ga-sam"), "--json"))
    assert [row["method"] for row in json.loads(table)["rows"]] == ["baseline", "ga-sam"]
    assert found_in(out, plans) == expected(plans, tmp_path / "local")
    for plan in plans:
        name = plan.name(plan.data().hash)
        record, local = read(out / f"{name}.json"), read(tmp_path / "local" / f"{name}.json")
        assert (record.machine, record.commit) == (local.machine, local.commit)
        sent = {file.name: file.read_bytes() for file in (out / name).iterdir() if file.name != ".lock"}
        kept = {file.name: file.read_bytes() for file in (tmp_path / "local" / name).iterdir() if file.name != ".lock"}
        assert sent.keys() == kept.keys()
        assert all(sent[name] == kept[name] for name in sent if name != "run.json")  # it holds times


def test_runs_continue_after_an_interruption_and_when_their_node_dies(nodes, tmp_path):
    """Two runs are interrupted, and continued on two nodes, one of which is killed. A damaged run fails alone."""
    plans = plans_of("baseline", "ga-sam", epochs=EPOCHS)
    [bad] = plans_of("sam")
    damaged = tmp_path / bad.name(bad.data().hash) / "last.pt"
    damaged.parent.mkdir()
    damaged.write_bytes(b"garbage")
    jobs = prepare([*plans, bad], tmp_path)
    interrupted, killed = Watch(tmp_path, interrupt), Watch(tmp_path, once(nodes.kill_a_busy_one, "ga-sam"))
    with engine(nodes.address, cpu=True) as opened:
        with pytest.raises(KeyboardInterrupt):
            run_all(jobs[:1], tmp_path, opened, interrupted, cpu=True)
        saved = torch.load(tmp_path / jobs[0].name / "last.pt", weights_only=True)["progress"]
        assert 0 < saved["epoch"] < EPOCHS
        run_all(jobs, tmp_path, opened, killed, cpu=True)
    assert sum("moved" in kinds for kinds in killed.kinds.values()) == 1
    assert [kinds.count("start") for kinds in killed.kinds.values()] == [1, 1, 1]
    assert found_in(tmp_path, plans) == expected(plans, tmp_path / "local")
    assert jobs[2].error == f"{damaged} is not a checkpoint of this program: delete {damaged.parent} to start again"
    assert jobs[2].log.read_text() == f"{jobs[2].error}\n"


def test_a_driver_that_was_killed_is_started_again(nodes, tmp_path):
    [plan] = plans = plans_of("ga-sam", epochs=EPOCHS)
    checkpoint = tmp_path / plan.name(plan.data().hash) / "last.pt"
    arguments = (*comparison(nodes, tmp_path, "ga-sam"), f"--epochs={EPOCHS}")
    process = gasam(*arguments)
    wait_for(checkpoint.exists)
    process.kill()
    process.communicate()
    reached = torch.load(checkpoint, weights_only=True)["progress"]["epoch"]
    assert 0 < reached < EPOCHS

    told = ended(gasam(*arguments))[1]
    first = int(re.search(rf"epoch (\d+)/{EPOCHS}", told).group(1))
    assert first > reached  # some epochs may end between two reports
    assert f"epoch {reached - 1}/{EPOCHS}" not in told
    assert found_in(tmp_path, plans) == expected(plans, tmp_path / "local")
    assert {file.name for file in checkpoint.parent.iterdir()} == {
        ".lock",
        "encoding.json",
        "model.safetensors",
        "run.json",
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--on", "ray"), "no Ray cluster runs on this machine: start one with `ray start --head`"),
        (("--on", "127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1: start one with `ray start --head`"),
        (("--on", "ray://127.0.0.1:1"), "no Ray cluster answers at ray://127.0.0.1:1"),
        (("--on", "moon"), "--on must be local, ray, auto, HOST:PORT or ray://HOST:PORT, got 'moon'"),
        (("--cpus-per-run", 2), "--cpus-per-run and --gpus-per-run are for a Ray cluster: add --on ray"),
        (("--on", "ray", "--cpus-per-run", 0), "--cpus-per-run must be a whole number >= 1, got 0"),
        (("--on", "ray", "--gpus-per-run", -1), "--gpus-per-run must be a number >= 0, got -1"),
    ],
)
def test_bad_places_are_told_in_one_sentence(options, sentence, command, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ended = command("compare", "digits", "--size", "tiny", "--out", tmp_path, *options)
    assert ended.code == 2
    assert sentence in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_cluster_without_room_for_a_run_is_told(nodes):
    with pytest.raises(InputError, match=r"none of the cluster's \d nodes has 64 CPUs: lower --cpus-per-run"):
        with engine(nodes.address, cpus=64, cpu=True):
            pass


@pytest.fixture
def own_nodes(tmp_path, monkeypatch):
    """A cluster of the test's own, with a server for clients."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cluster = ray_nodes.Cluster(tmp_path / "ray.json", port)
    try:
        cluster.wait()
        monkeypatch.setenv("RAY_TMPDIR", cluster.folder)
        yield ray_nodes.read(cluster.info), port
    finally:
        cluster.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_six_methods_and_two_seeds_survive_a_dead_node_and_a_dead_driver(own_nodes, tmp_path):
    """The demonstration: alone, with a node that is killed half-way, and with a driver that is killed half-way."""
    nodes, _ = own_nodes
    methods = ",".join(TABLE1)
    count = 2 * len(TABLE1)

    def start(folder, *options):
        return gasam(*comparison(nodes, tmp_path / folder, methods, "docstrings"), "--seeds=2", "--epochs=6", *options)

    def scores(folder):
        return {file.name: result(read(file)) for file in (tmp_path / folder).glob("*.json")}

    def half_way(folder):
        return lambda: len(scores(folder)) >= count // 2

    ended(start("local", "--on=local"))
    assert len(scores("local")) == count
    ended(start("alone"))
    assert scores("alone") == scores("local")

    process = start("driver")
    wait_for(half_way("driver"), 600)
    process.kill()
    process.communicate()
    assert len(scores("driver")) < count
    told = ended(start("driver"))[1]
    assert re.search(rf"\d+ of {count} runs are finished already", told)
    assert scores("driver") == scores("local")

    process = start("node", "--json")
    wait_for(half_way("node"), 600)
    nodes.kill_a_busy_one()
    table, told = ended(process)
    assert "its node died; it continues on another one" in told
    assert scores("node") == scores("local")
    assert len(json.loads(table)["rows"]) == len(TABLE1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_searches_analyses_and_clients(own_nodes, tmp_path):
    """By the running cluster and by its server for clients; Ctrl-C ends with 130 and keeps the last step."""
    _, port = own_nodes
    client = f"ray://127.0.0.1:{port}"
    search = ("tune", "digits", "--size", "tiny", "--cpu", "--method", "ga-sam", "--trials", 2, "--json")
    for folder, *where in (("local", "--jobs", 1), ("ray", "--on", "ray")):
        ended(gasam(*search, "--out", tmp_path / folder, *where))
    found = [json.loads(next((tmp_path / folder / "tuning").glob("*.json")).read_text()) for folder in ("local", "ray")]
    here, there = ([each["valid"] for each in finding["tries"]] for finding in found)
    assert here == there

    [plan] = plans_of("ga-sam", epochs=EPOCHS)
    checkpoint = tmp_path / "client" / plan.name(plan.data().hash) / "last.pt"
    arguments = ("compare", "digits", "--size=tiny", "--cpu", "--methods=ga-sam", f"--epochs={EPOCHS}")
    process = gasam(*arguments, "--on", client, "--out", tmp_path / "client")
    wait_for(checkpoint.exists)
    process.send_signal(signal.SIGINT)
    _, told = ended(process, 130)
    assert told.splitlines()[-1] == "gasam: interrupted; run the same command to continue"
    assert "Traceback" not in told
    assert torch.load(checkpoint, weights_only=True)["progress"]["epoch"] > 0
    ended(gasam(*arguments, "--on", client, "--out", tmp_path / "client"))
    assert found_in(tmp_path / "client", [plan]) == expected([plan], tmp_path / "whole")

    run_file = checkpoint.parent.with_suffix(".json")
    for command, *options in (("sharpness",), ("landscape", "--to", run_file, "--points", 3)):
        measured = []
        for where in ("local", "auto"):
            out = tmp_path / "analysis" / where
            ended(gasam(command, run_file, "--cpu", "--rows", 32, *options, "--on", where, "--out", out))
            measured.append([read_analysis(file).found for file in out.glob("*-digits-tiny-ga-sam-*.json")])
        assert measured[0] == measured[1]
        assert len(measured[0]) == (1 if command == "sharpness" else 2)


@pytest.mark.slow
def test_a_node_with_another_version_is_named(tmp_path, monkeypatch):
    """The nodes have a copy of gasam with another version."""
    source = shutil.copytree(ray_nodes.SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    package = source / "gasam" / "__init__.py"
    package.write_text(re.sub(r'__version__ = ".*"', '__version__ = "9.9"', package.read_text()))
    cluster = ray_nodes.Cluster(tmp_path / "ray.json", source=str(source))
    try:
        cluster.wait()
        process = gasam(*comparison(ray_nodes.read(cluster.info), tmp_path / "out", "baseline"))
        _, told = ended(process, 2)
    finally:
        cluster.stop()
    assert f"has gasam 9.9 and we have {gasam_version}: install the same versions on every node" in told
    assert len(told.splitlines()) == 1
