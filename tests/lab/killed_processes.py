"""Runs that kill themselves at a chosen moment, each in a process of its own that is a copy of one with torch."""

import os
import signal
from pathlib import Path

from gasam.lab import storage
from gasam.lab.engines.local import main_module_hidden, process_context
from gasam.lab.search import Search, tune
from gasam.lab.training import run as run_module
from gasam.lab.training.loop import Training
from gasam.lab.training.plan import make


def exit_code(function, *arguments):
    """Call a function of this module in a new process; give the code that the process ends with."""
    process = process_context().Process(target=_called, args=(dict(os.environ), function, arguments))
    with main_module_hidden():
        process.start()
    process.join()
    return process.exitcode


def _called(environment, function, arguments):
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)


def killed_at(out, task, method, moment, number, walk=None):
    """Run three epochs until the call of this number at this moment, such as "SIGKILL-step"."""
    name, _, place = moment.partition("-")
    owner, method_name = {
        "step": (Training, "train_step"),
        "write": (os, "fsync"),
        "move": (Path, "replace"),
        "record": (run_module, "write"),
    }[place]
    setattr(owner, method_name, _killing(getattr(owner, method_name), number, getattr(signal, name)))
    run_module.run(make(task, method, "tiny", settings={"epochs": 3}, walk=walk), out, cpu=True, gradient_norms=True)


def writes_and_is_killed(file, moment):
    if moment == "half-way":
        with storage.replaced(file) as partial:
            partial.write_text('{"new": [1,')
            os.kill(os.getpid(), signal.SIGKILL)
    owner, name = {"sync": (os, "fsync"), "rename": (os, "replace")}[moment]
    setattr(owner, name, _killing(None, 1, signal.SIGKILL))
    storage.write_json(file, {"new": [1, 2]})


class InThisProcess:
    """An engine without the start of a process, which takes longer than a tiny trial."""

    parallel = 1

    def __init__(self):
        self.ended = []

    @property
    def running(self):
        return len(self.ended)

    def start(self, job, folder, work):
        self.ended.append((job, ("done", work(job, folder, lambda update: None))))

    def events(self):
        ended, self.ended = self.ended, []
        return ended

    def stop(self):
        self.ended.clear()


def search_killed_at(out, step, asked):
    """Search until this training step of all its trials together."""
    Training.train_step = _killing(Training.train_step, step, signal.SIGKILL)
    tune(Search(**asked), out, InThisProcess(), cpu=True)


def _killing(function, number, how):
    count = 0

    def killer(*arguments, **options):
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), how)
        return function(*arguments, **options)

    return killer
