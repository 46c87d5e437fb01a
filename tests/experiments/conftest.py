"""One cache of encoded data for all tests of the experiments, in all processes; the local layout in small."""

import signal
import sys
from typing import NamedTuple

import pytest

import local_layout
from gasam.cli import main


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that the processes of one test session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    for write in (local_layout.write_imdb, local_layout.write_ptb, local_layout.write_mnist):
        write(directory)
    local_layout.write_en_vi(directory)
    return local_layout.write_de_en(directory)


@pytest.fixture(autouse=True)
def _places(shared, data_dir, monkeypatch):
    monkeypatch.setenv("GASAM_CACHE", str(shared / "cache"))
    monkeypatch.setenv("GASAM_DATA", str(data_dir))


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `gasam ARGUMENTS` in this process; gives its exit code and all it wrote."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gasam", *map(str, arguments)])
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGTERM, before)
        return Ended(ended.value.code or 0, *capsys.readouterr())

    return run
