"""Runs that kill themselves at a chosen moment, each in a process of its own that is a copy of one with torch."""

import os
import signal
from pathlib import Path

from gasam.lab.engines.local import main_module_hidden, process_context
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


def _killing(function, number, how):
    count = 0

    def killer(*arguments, **options):
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), how)
        return function(*arguments, **options)

    return killer
