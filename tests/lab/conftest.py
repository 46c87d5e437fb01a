"""One cache of encoded data for all tests of the experiments, in all processes; the local layout in small."""

import shutil
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock
from own_tasks import LINE, SLOWLY

import local_layout
from gasam.lab.cli import main
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import make
from gasam.lab.training.run import run


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that the processes of one test session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    for write in local_layout.WRITERS.values():
        write(directory)
    return directory


@pytest.fixture(autouse=True)
def _places(shared, data_dir, monkeypatch):
    monkeypatch.setenv("GASAM_CACHE", str(shared / "cache"))
    monkeypatch.setenv("GASAM_DATA", str(data_dir))


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    def done(self):
        """Itself, if the command did what was asked."""
        assert self.code == 0, self.err
        return self

    def refused(self):
        """The one sentence that it said, if it took its input for bad and printed nothing else."""
        assert (self.code, self.out, self.err[:7], self.err.count("\n")) == (2, "", "gasam: ", 1), self.err
        return self.err[7:]


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


@pytest.fixture(scope="session")
def trained(shared, data_dir):
    """Records of tiny runs of all families by "TASK METHOD", trained once for all processes of the session."""
    wanted = [("digits", "baseline"), ("digits", "ga-sam"), ("imdb", "baseline"), ("ptb", "baseline"),
              ("ptb", "ga-sam"), ("en-vi", "baseline"), ("mnist", "baseline")]  # fmt: skip
    files = {}
    with pytest.MonkeyPatch.context() as patch, FileLock(shared / "trained.lock"):
        patch.setenv("GASAM_CACHE", str(shared / "cache"))
        for task, method in wanted:
            plan = make(task, method, "tiny", origin=Origin(data_dir))
            run(plan, shared / "trained", cpu=True)
            files[f"{task} {method}"] = shared / "trained" / f"{plan.name(plan.data().hash)}.json"
        plan = make("en-vi", "baseline", "tiny", origin=Origin(data_dir))
        run(plan, shared / "trained" / "gradient-norms", cpu=True, gradient_norms=True)
    return files


@pytest.fixture
def line(tmp_path):
    """A task file of a straight line; `line(more)` adds text to it."""

    def write(more=""):
        file = tmp_path / "line.py"
        file.write_text(LINE + more)
        return str(file)

    return write


@pytest.fixture
def slow(line, tmp_path):
    """A task file and a second file: until that exists, a run takes half a minute or more, on a quick machine too."""
    return line(SLOWLY.format(released=str(tmp_path / "released"))), tmp_path / "released"


@pytest.fixture
def own_trained(trained, tmp_path):
    """A folder of a test's own with all of these runs."""
    folder = next(iter(trained.values())).parent
    return Path(shutil.copytree(folder, tmp_path / "runs", ignore=shutil.ignore_patterns(".lock")))
