"""Files and data that go to a machine without access to ours, and come back."""

import pytest
import torch

from gasam.lab.engines.ray_worker import version_difference
from gasam.lab.engines.shipping import SentFiles, data_bytes, read_files, received_data, write_snapshot
from gasam.lab.training.plan import give_data, make

JOB = "task-tiny-method-1-0123"


def contents(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_snapshot_has_what_changed_in_the_order_of_writing_and_removes_what_is_gone(tmp_path):
    driver, node = tmp_path / "driver", tmp_path / "node"
    (driver / JOB).mkdir(parents=True)
    node.mkdir()
    for name in (".lock", "error.txt", "best.pt", "last.pt", ".last.pt.partial"):
        (driver / JOB / name).write_bytes(b"before")
    (driver / f".{JOB}.json").write_bytes(b"kept")
    files = read_files(driver, JOB)
    assert set(files) == {f"{JOB}/best.pt", f"{JOB}/last.pt", f".{JOB}.json"}

    sent = SentFiles(node, files)
    assert contents(node) == files
    assert sent.changes() is None
    (node / JOB / "zebra.pt").write_bytes(b"first")
    (node / JOB / "last.pt").write_bytes(b"second")
    (node / f"{JOB}.json").write_bytes(b"third")
    (node / JOB / "best.pt").unlink()
    (node / f".{JOB}.json").unlink()
    changes = sent.changes()
    assert list(changes.files) == [f"{JOB}/zebra.pt", f"{JOB}/last.pt", f"{JOB}.json"]
    assert sent.changes() == changes, "a snapshot that was not received is sent again"
    sent.received()
    assert sent.changes() is None

    write_snapshot(driver, JOB, changes)
    own = {f"{JOB}/.lock": b"before", f"{JOB}/error.txt": b"before"}
    assert contents(driver) == contents(node) | own


def test_data_is_fetched_once_and_again_if_its_file_is_damaged(tmp_path, monkeypatch):
    data = make("digits", size="tiny").data()
    digest, content = data_bytes(data)
    assert data_bytes(data.without_test())[0] != digest
    monkeypatch.setenv("GASAM_CACHE", str(tmp_path))
    fetched = []

    def fetch():
        fetched.append(digest)
        return content

    for damaged, count in ((False, 1), (False, 1), (True, 2), (False, 2)):
        if damaged:
            (tmp_path / "received" / f"{digest}.pt").write_bytes(b"garbage")
        got = received_data(digest, fetch)
        assert len(fetched) == count
        assert (got.hash, got.notes, got.version) == (data.hash, data.notes, data.version)
        assert all(map(torch.equal, got["test"], data["test"]))


def test_a_process_uses_the_data_that_it_was_given(monkeypatch):
    plan = make("digits", size="tiny")
    given = plan.data().without_test()
    monkeypatch.setattr("gasam.lab.training.plan._GIVEN", {})
    give_data(plan, given)
    assert plan.data() is given
    assert make("digits", "sam", "tiny", seed=7).data() is given
    assert make("digits", size="tiny", settings={"rows": 100}).data() is not given


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ({"torch": "2.0", "gasam": "1", "commit": "a" * 40}, ""),
        ({"torch": "2.0", "gasam": "1", "commit": None}, ""),
        ({"torch": "2.1", "gasam": "1", "commit": None}, "has torch 2.1 and we have 2.0: install the same versions"),
        ({"torch": "2.0", "gasam": "1", "commit": "b" * 40}, "has gasam's commit bbbbbbbb and we have aaaaaaaa: "),
    ],
)
def test_versions_are_compared(theirs, told):
    difference = version_difference({"torch": "2.0", "gasam": "1", "commit": "a" * 40}, theirs)
    assert difference.startswith(told)
    assert bool(difference) == bool(told)
