"""Faults in a training run: the same command must end it with the same bits; bugs planted on purpose are noticed.

A run of three short epochs is executed in processes that are forked from this one, which has imported everything.
"""

import _thread
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest
import torch

from gasam.lab import cli, storage
from gasam.lab.training import loop
from gasam.lab.training import run as runs
from gasam.lab.training.loop import Training

KILLED, CRASHED = 137, 70
VARYING = ("seconds", "evaluation_seconds", "machine")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Disk:
    """Numbers the operations below a folder; number `at` goes wrong. It stays in its process for good.

    A power cut loses what was not synced: half of the written files lose their second half, and half of the renames are
    undone.
    """

    def __init__(self, root, fault=None, at=0):
        self.root, self.fault, self.at, self.count = root, fault, at, 0
        self.dirty, self.renamed = {}, []  # files that were written and not synced by their inode, renames likewise
        self.real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}
        self.real_write = Path.write_bytes

    def install(self):
        Path.write_bytes = lambda path, data: self.write(path, data)
        Path.write_text = lambda path, text, encoding="utf-8": path.write_bytes(text.encode(encoding))
        for name in self.real:
            setattr(os, name, getattr(self, name))

    def strike(self, kind, half=lambda: None):
        self.count += 1
        if self.fault == "ENOSPC" and self.count >= self.at and kind == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.count != self.at or self.fault in (None, "ENOSPC"):
            return
        if self.fault == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.fault in ("torn", "power"):
            half()
        if self.fault == "power":
            self.cut(random.Random(self.at))
        os._exit(KILLED)

    def cut(self, chosen):
        for path, before in reversed(self.renamed):
            if chosen.random() < 0.5 and os.path.exists(path):
                self.real["unlink"](path) if before is None else self.real_write(path, before)
        for path in sorted(self.dirty.values()):
            if chosen.random() < 0.5 and os.path.exists(path):
                os.truncate(path, os.path.getsize(path) // 2)

    def write(self, path, data):
        if self.root in path.parents:
            self.strike("write", lambda: self.real_write(path, data[: len(data) // 2]))
        self.real_write(path, data)
        self.dirty[path.stat().st_ino] = path

    def fsync(self, handle):
        self.strike("sync")
        self.real["fsync"](handle)
        synced = os.fstat(handle).st_ino
        self.dirty.pop(synced, None)
        self.renamed = [entry for entry in self.renamed if entry[0].parent.stat().st_ino != synced]

    def replace(self, source, target):
        if self.root in Path(target).parents:
            self.strike("rename")
            self.renamed.append((target, target.read_bytes() if target.exists() else None))
        self.real["replace"](source, target)
        if target.stat().st_ino in self.dirty:
            self.dirty[target.stat().st_ino] = target

    def unlink(self, path):
        if self.root in Path(path).parents:
            self.strike("delete")
        self.real["unlink"](path)


def forked(act, log):
    """The exit code of a forked process that calls `act`, and what it printed."""
    sys.stdout.flush()
    process = os.fork()
    if not process:
        code = CRASHED
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1), os.dup2(handle, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            act()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), Path(log).read_text(errors="replace")


def digests(folder):
    """The SHA-256 of every file of a run; times and the machine do not count."""
    found = {}
    for file in (path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "error.txt")):
        content = file.read_bytes()
        with suppress(ValueError):  # no JSON, or torn
            content = json.dumps(without_times(json.loads(content)), sort_keys=True).encode()
        found[file.relative_to(folder).as_posix()] = hashlib.sha256(content).hexdigest()
    return found


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if name not in VARYING}
    return [without_times(each) for each in value] if isinstance(value, list) else value


class Run:
    """One command, what an undisturbed run of it leaves, and how many disk operations and training steps it has."""

    words = (
        "train", "digits", "--size", "tiny", "--cpu", "--set", "rows=80", "--set", "learning_rate=0.01",
        "--epochs", "3", "--method", "ga-sam", "--epsilon", "0.01", "--walk-start", "1", "--walk-warmup", "4",
    )  # fmt: skip

    def __init__(self, folder):
        self.out, self.log, counts = folder / "out", folder / "log.txt", folder / "counts.json"
        self.plant = lambda: None
        self.command()  # in this process: it imports everything and fills the cache
        shutil.rmtree(self.out)

        def counted():
            disk, steps = Disk(self.out), signalled_at(0)
            disk.install()
            self.command()
            counts.write_text(json.dumps([disk.count, len(steps)]))

        code, text = forked(counted, self.log)
        assert code == 0, text
        self.expected = digests(self.out)
        self.operations, self.steps = json.loads(counts.read_text())

    def command(self, fault=lambda: None):
        self.plant()
        fault()
        sys.argv = ["gasam", *self.words, "--out", str(self.out)]
        try:
            cli.main()
        except SystemExit as ended:
            if ended.code:
                raise

    def after(self, fault):
        """Start in an empty folder with a fault, then run the same command without. Say what is wrong."""
        shutil.rmtree(self.out, ignore_errors=True)
        code, text = forked(lambda: self.command(fault), self.log)
        if code not in (0, 1, 2, 130, KILLED) or "Traceback" in text:
            return f"the disturbed command ended with code {code}: {text[-500:]}"
        code, text = forked(self.command, self.log)
        if code:
            return f"the same command ended with code {code}: {text[-500:]}"
        found = digests(self.out)
        return None if found == self.expected else f"other files than {sorted(found)}"

    def disk(self, kind, at):
        return lambda: Disk(self.out, kind, at).install()


def signalled_at(number, which=signal.SIGTERM):
    """Send a signal to this process in the given training step; give the list to which each step is added."""
    real, steps = Training.train_step, []

    def train_step(self, chosen):
        steps.append(1)
        if len(steps) == number:
            os.kill(os.getpid(), which)
        return real(self, chosen)

    Training.train_step = train_step
    return steps


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, shared, data_dir):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GASAM_CACHE", str(shared / "cache"))
        known = loop.code()  # read once, because that takes a third of the time
        patch.setattr(loop, "code", lambda: dict(known))
        patch.setattr(sys, "argv", sys.argv)
        before = signal.getsignal(signal.SIGTERM)
        yield Run(tmp_path_factory.mktemp("faults"))
        signal.signal(signal.SIGTERM, before)


def test_a_run_ends_with_the_same_bits_after_any_fault_of_the_disk_and_after_signals(undisturbed):
    chosen = random.Random(7)
    for kind, _ in zip(cycle(["kill", "torn", "power", "EIO", "ENOSPC"]), range(12), strict=False):
        at = chosen.randrange(undisturbed.operations) + 1
        assert undisturbed.after(undisturbed.disk(kind, at)) is None, (kind, at)
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        step = chosen.randrange(undisturbed.steps) + 1
        assert undisturbed.after(lambda step=step, which=which: signalled_at(step, which)) is None, (which, step)


def record_before_the_model():
    write, clean, waiting = runs.write_folder, storage.Checkpoints.clean, []

    def late(self):
        for given in waiting:
            write(*given)
        waiting.clear()
        clean(self)

    runs.write_folder = lambda *given: waiting.append(given)
    storage.Checkpoints.clean = late


@contextmanager
def in_place(file):
    yield file


@contextmanager
def not_synced(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.abcdefgh")
    yield partial
    partial.replace(file)


BUGS = {
    "record before the model": (record_before_the_model, "kill"),
    "checkpoint not atomic": (lambda: setattr(storage, "replaced", in_place), "torn"),
    "file not synced": (lambda: setattr(storage, "replaced", not_synced), "power"),
    "folder not synced": (lambda: setattr(storage, "sync_folder", lambda folder: None), "power"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(undisturbed, name):
    plant, kind = BUGS[name]
    undisturbed.plant = plant
    try:
        for at in random.Random(4).sample(range(1, undisturbed.operations + 1), undisturbed.operations):
            if undisturbed.after(undisturbed.disk(kind, at)) is not None:
                return
    finally:
        undisturbed.plant = lambda: None
    raise AssertionError(f"{name} was not noticed")


class Interrupting:
    """Has a signal arrive while it is saved, as the thread does that interrupts a job in a cluster."""

    def __reduce__(self):
        _thread.interrupt_main(signal.SIGTERM)
        return int, ()


def test_an_interrupt_while_a_checkpoint_is_written_keeps_the_earlier_one(tmp_path):
    checkpoints = storage.Checkpoints(tmp_path)
    checkpoints.save(checkpoints.last, {"epoch": 1})
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(checkpoints.last, {"first": Interrupting(), "second": torch.ones(3)})
    finally:
        signal.signal(signal.SIGTERM, before)
    assert checkpoints.load(checkpoints.last) == {"epoch": 1}
    assert list(tmp_path.iterdir()) == [checkpoints.last]


def test_a_signal_while_the_command_starts_is_told_in_one_sentence(command, monkeypatch):
    monkeypatch.setattr(cli, "_run", lambda: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(cli, "SIGNALS", (signal.SIGTERM,))  # which `command` sets back
    assert command() == (130, "", "gasam: interrupted; run the same command to continue\n")
