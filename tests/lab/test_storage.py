"""Files that survive a kill, the cache of encoded data, and files that are never run as code."""

import os
import pickle
import signal
import subprocess
import sys

import pytest
import torch
from killed_processes import exit_code, writes_and_is_killed

from gasam.lab import storage
from gasam.lab.data.corpus import Corpus, Source
from gasam.lab.errors import InputError
from gasam.lab.families.family import Encoded, encoded
from gasam.lab.families.language import LanguageModel
from gasam.lab.storage import Checkpoints
from gasam.lab.tasks import TASKS
from local_layout import sentence

SETTINGS = TASKS["lm"].sizes["tiny"]


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{sentence(i)}\n" for i in range(30)))
    return file


class Prepared:
    """Encodes the data of one file, and counts how often it is read."""

    def __init__(self, file, cache):
        self.file, self.cache, self.reads = file, cache, 0

    def __call__(self, **changes):
        source = Source("counted", self.read, files=(self.file,))
        return encoded(LanguageModel, source, SETTINGS.changed(**changes), self.cache)

    def read(self):
        self.reads += 1
        lines = self.file.read_text().splitlines()
        return Corpus(lines[:20], lines[20:25], lines[25:], notes=("from a test",))


def same(first, second):
    assert all(torch.equal(first[split], second[split]) for split in ("train", "valid", "test"))
    return (first.shared, first.hash, first.notes) == (second.shared, second.hash, second.notes)


def test_encoded_data_is_made_once_and_again_for_other_content(tmp_path, text):
    prepared = Prepared(text, tmp_path / "cache")
    first = prepared()
    assert same(first, prepared(dropout=0.3, epochs=9))
    assert prepared.reads == 1
    assert first.hash == prepared.read().digest()
    assert prepared(rows=7).notes == ("from a test", "7 of the 20 training examples are used in this size")
    text.write_text(text.read_text() + "one more line\n")
    assert prepared().hash != first.hash
    assert len(list(prepared.cache.iterdir())) == 3


def test_a_damaged_file_is_made_again(tmp_path, text):
    prepared = Prepared(text, tmp_path / "cache")
    first = prepared()
    [file] = prepared.cache.iterdir()
    whole = file.read_bytes()
    for number, broken in enumerate((b"", whole[:-1], whole[: len(whole) // 2], os.urandom(len(whole))), start=2):
        file.write_bytes(broken)
        assert same(first, prepared())
        assert prepared.reads == number
    assert same(first, Encoded.load(file))


TWO_AT_ONCE = """
import sys, time
from pathlib import Path
from gasam.lab.families.language import LanguageModel
from gasam.lab.families.family import encoded
from gasam.lab.tasks import TASKS, Origin

text, cache, ready = map(Path, sys.argv[1:])
source = TASKS["lm"].source(Origin(train=str(text)))
source.key
ready.touch()
while len(list(ready.parent.iterdir())) < 2:
    time.sleep(0.001)
for _ in range(5):
    print(encoded(LanguageModel, source, TASKS["lm"].sizes["tiny"], cache).hash)
    for file in cache.glob("lm-*"):
        file.unlink(missing_ok=True)
encoded(LanguageModel, source, TASKS["lm"].sizes["tiny"], cache)
"""


def test_two_processes_may_prepare_the_same_at_once(tmp_path, text):
    """Both write, and both delete what the other wrote: neither ever sees half a file."""
    (tmp_path / "ready").mkdir()
    both = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_AT_ONCE, text, tmp_path / "cache", tmp_path / "ready" / name],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    hashes = [line for process in both for line in process.communicate()[0].split()]
    assert [process.returncode for process in both] == [0, 0]
    assert len(hashes) == 10
    assert len(set(hashes)) == 1
    assert not list((tmp_path / "cache").glob(".*"))


@pytest.mark.parametrize("moment", ["half-way", "sync", "rename"])
def test_a_file_is_whole_whenever_its_writer_is_killed(tmp_path, moment):
    file = tmp_path / "record.json"
    storage.write_json(file, {"old": 1})
    assert exit_code(writes_and_is_killed, file, moment) == -signal.SIGKILL
    assert storage.read_json(file) == {"old": 1}
    assert list(tmp_path.glob("*.json")) == [file]


def test_a_writer_that_fails_leaves_the_old_file_alone(tmp_path):
    file = tmp_path / "record.json"
    storage.write_json(file, {"old": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        storage.write_json(file, {"new": float("nan")})
    with pytest.raises(KeyboardInterrupt), storage.replaced(file) as partial:  # noqa: PT012
        partial.write_text("half")
        raise KeyboardInterrupt
    assert storage.read_json(file) == {"old": 1}
    assert list(tmp_path.iterdir()) == [file]


class Evil:
    """Makes a folder when it is unpickled by someone who trusts it."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def write_pickle(value, file):
    file.write_bytes(pickle.dumps(value, protocol=2))


@pytest.mark.parametrize("write", [torch.save, write_pickle])
def test_code_in_a_file_is_never_run(tmp_path, text, write):
    touched = tmp_path / "touched"
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.folder.mkdir()
    write({"model": Evil(touched)}, checkpoints.last)
    with pytest.raises(InputError, match=r"last\.pt is not a checkpoint of this program: delete .*run to start again"):
        checkpoints.load(checkpoints.last)

    prepared = Prepared(text, tmp_path / "cache")
    first = prepared()
    [file] = prepared.cache.iterdir()
    write({"words": Evil(touched)}, file)
    assert same(first, prepared())
    assert not touched.exists()
