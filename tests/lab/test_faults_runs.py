"""Faults in runs and files that once lost something."""

import _thread
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gasam.lab import storage
from gasam.lab.engines.engine import do_all, prepare
from gasam.lab.errors import InputError
from gasam.lab.families.translation import Subwords
from gasam.lab.records import read
from gasam.lab.storage import replaced, save_tensors, write_json
from gasam.lab.training.plan import make
from gasam.lab.training.run import run
from local_layout import write_lines

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(os.name == "nt", reason="Windows does not sync folders")
def test_the_folder_is_synced_after_the_rename(tmp_path, monkeypatch):
    done = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(handle):
        done.append(os.readlink(f"/proc/self/fd/{handle}") if os.path.exists("/proc/self/fd") else os.fstat(handle))
        real_sync(handle)

    def replace(source, target):
        done.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_json(tmp_path / "a.json", {})
    assert len(done) == 3
    assert done[1] == "rename"
    assert done[2] in (str(tmp_path), os.stat(tmp_path))


@pytest.mark.parametrize(("number", "raised"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_system_that_cannot_sync_folders_is_no_fault(tmp_path, monkeypatch, number, raised):
    def fail(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(storage.os, "fsync", fail)
    if raised:
        with pytest.raises(OSError, match="Input/output"):
            storage.sync_folder(tmp_path)
    else:
        storage.sync_folder(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_of_the_system_with_the_name_of_the_file(tmp_path):
    with pytest.raises(OSError, match="No space left on device"):
        save_tensors({"weights": torch.ones(100_000)}, Path("/dev/full"))

    def write(file):
        with replaced(file) as partial:
            partial.unlink()
            partial.symlink_to("/dev/full")
            save_tensors({"weights": torch.ones(100_000)}, partial)

    with pytest.raises(OSError, match="No space left on device") as caught:
        write(tmp_path / "a.pt")
    assert caught.value.filename == str(tmp_path / "a.pt")


def test_what_a_run_left_that_was_killed_after_its_record_is_deleted(tmp_path):
    plan = make("digits", "baseline", "tiny")
    run(plan, tmp_path, cpu=True)
    name = plan.name(plan.data().hash)
    left = [tmp_path / name / "last.pt", tmp_path / name / ".best.pt.abcdefgh", tmp_path / f".{name}.json.abcdefgh"]
    other = tmp_path / ".other.json.abcdefgh"
    for file in (*left, other):
        file.write_bytes(b"")
    assert prepare([plan], tmp_path)[0].record is not None
    assert not any(file.exists() for file in left)
    assert other.exists()


def test_a_log_that_cannot_be_written_does_not_stop_the_other_runs(tmp_path):
    class Failing:
        parallel = 1

        def __init__(self):
            self.found = []

        @property
        def running(self):
            return len(self.found)

        def start(self, job, folder, work):
            self.found.append((job, ("failed", "no space")))

        def events(self):
            found, self.found = self.found, []
            return found

        def stop(self):
            pass

    jobs = prepare([make("digits", method, "tiny") for method in ("baseline", "sam")], tmp_path)
    (tmp_path / jobs[0].name).write_text("a file where the folder of the log must be")
    do_all(jobs, tmp_path, Failing(), lambda job, event: None, None)
    assert [job.error for job in jobs] == ["no space", "no space"]
    assert jobs[0].log is None
    assert jobs[1].log.read_text() == "no space\n"


def test_a_table_with_carriage_returns_between_its_lines_is_told(tmp_path, command):
    file = tmp_path / "mac.csv"
    file.write_bytes(b"text,label\ra,x\rb,y\r")
    ended = command("train", "classify", "--train", file, "--out", tmp_path / "out")
    assert ended.code == 2
    assert ended.err == (
        f"gasam: {file}, line 1: a carriage return inside the line: save the file with the line ends of Unix\n"
    )


def test_a_sentence_beyond_the_positions_of_the_model_is_told(tmp_path, command):
    lines = "".join(f"line {i} of a text\n" for i in range(19))
    write_lines(tmp_path / "good", lines.splitlines())
    write_lines(tmp_path / "long", [" ".join(map(str, range(3000))), *lines.splitlines()[1:]])
    files = {split: f"{tmp_path / name},{tmp_path / 'good'}" for split, name in (("train", "good"), ("valid", "long"))}
    given = [word for split, names in files.items() for word in (f"--{split}", names)]
    ended = command("train", "translate", *given, "--size", "tiny", "--cpu", "--out", tmp_path / "out")
    assert ended.code == 2
    assert "gasam: the valid split has a text of " in ended.err
    assert "tokens, but 2,048 is the limit: split it into sentences, or remove it" in ended.err


def test_subwords_are_not_learnt_from_a_word_that_would_take_hours():
    lines = ["a few short words", "and a few more"]
    assert Subwords.learn([*lines, "x" * 300_000], "bpe", 60).saved == Subwords.learn(lines, "bpe", 60).saved


EARLY = """
import os, signal, sys
import gasam.lab.cli as cli
cli.importlib.util.find_spec = lambda name: os.kill(os.getpid(), getattr(signal, sys.argv[1]))
cli.main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_command_starts_is_told_in_one_sentence(name):
    ended = subprocess.run(
        [sys.executable, "-c", EARLY, name],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert ended.returncode == 130
    assert ended.stderr == "gasam: interrupted; run the same command to continue\n"


TWICE = """
import os, signal, sys
import gasam.lab.cli as cli
tell = cli._say_interrupted
def interrupted_again():
    os.kill(os.getpid(), signal.SIGTERM)
    return tell()
cli._say_interrupted = interrupted_again
cli.importlib.util.find_spec = lambda name: os.kill(os.getpid(), signal.SIGINT)
cli.main()
"""


def test_a_second_signal_while_the_first_is_handled_changes_nothing():
    ended = subprocess.run(
        [sys.executable, "-c", TWICE],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert ended.returncode == 130
    assert ended.stderr == "gasam: interrupted; run the same command to continue\n"


class Interrupting:
    """Has a signal arrive while it is saved, as the thread does that interrupts a job in a cluster."""

    def __reduce__(self):
        _thread.interrupt_main(signal.SIGTERM)
        return int, ()


@pytest.fixture(params=["open", "blocked"])
def signals(request):
    """The signals of a usual process, or of one of Ray's, which block them."""
    how = signal.SIG_BLOCK if request.param == "blocked" else signal.SIG_UNBLOCK
    before = signal.pthread_sigmask(how, {signal.SIGTERM})
    yield
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that was left over must not end the tests
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    signal.signal(signal.SIGTERM, handler)


def test_an_interrupt_waits_until_a_checkpoint_is_written(tmp_path, signals):
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            save_tensors({"first": Interrupting(), "second": torch.ones(3)}, tmp_path / "a.pt")
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert torch.load(tmp_path / "a.pt", weights_only=False)["second"].tolist() == [1, 1, 1]


def test_a_record_with_half_of_a_surrogate_pair_is_refused(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"commit": "\\ud800"}')
    with pytest.raises(InputError, match="half of a surrogate pair, which is not valid text; delete it and run again"):
        read(file)


@pytest.mark.parametrize("value", [7, [], {}, {"model": {}}, {"model": torch.ones(2), "optimizer": {}, "progress": {}}])
def test_a_checkpoint_of_something_else_is_refused(tmp_path, command, value):
    plan = make("digits", "baseline", "tiny")
    folder = tmp_path / plan.name(plan.data().hash)
    folder.mkdir()
    torch.save(value, folder / "last.pt")
    ended = command("train", "digits", "--size", "tiny", "--cpu", "--out", tmp_path)
    assert ended.code == 2
    told = f"gasam: {folder}/last.pt is not a checkpoint of this program: delete {folder} to start again"
    assert ended.err.splitlines()[-1] == told


def test_an_output_folder_that_is_a_file_is_told_once(tmp_path, command):
    file = tmp_path / "runs"
    file.write_text("")
    ended = command("compare", "digits", "--methods", "baseline,sam", "--size", "tiny", "--cpu", "--out", file)
    assert ended.code == 2
    told = f"gasam: {file}: File exists: name another folder, or check permissions and space"
    assert ended.err.splitlines()[-1] == told


@pytest.mark.parametrize(("name", "value"), [("classes", True), ("pixels", -1), ("brightest", [{}]), ("pixels", "x")])
def test_a_damaged_encoding_is_told(trained, own_trained, tmp_path, command, name, value):
    record = own_trained / trained["digits baseline"].name
    file = record.with_suffix("") / "encoding.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    inputs = write_lines(tmp_path / "in.txt", [" ".join(["7"] * 64)])
    ended = command("predict", record, inputs, "--cpu")
    assert ended.code == 2
    assert f"gasam: {file} is damaged ({name} must be a " in ended.err
