"""Commands in forked processes: a warm process has all imports done, so that a fault costs tenths of a second."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults import kept

CRASHED, INTERRUPTED = 70, 130
LONGEST = 120.0
"""Seconds after which a process hangs."""
VARYING = ("seconds", "evaluation_seconds", "machine")
"""Keys of JSON files that may differ between two runs."""


class Ended(NamedTuple):
    """The exit code of a process, or minus the number of the signal that ended it, and what it printed."""

    code: int
    text: str


def command(*arguments: object) -> Callable[[], None]:
    """The function that runs `gasam ARGUMENTS`."""

    def act() -> None:
        from gasam.lab.cli import main

        sys.argv = ["gasam", *map(str, arguments)]
        main()

    return act


def started(act: Callable[[], None], log: Path) -> int:
    """Start a process that calls `act` and prints to `log`; give its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    both = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, both)  # a signal waits until the new process is ready for it
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        return process
    code = INTERRUPTED  # by a signal that comes before or after the command
    try:
        for number in both:  # as in a new process
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(handle, stream)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        act()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not isinstance(error, KeyboardInterrupt) or any(frame.name == "main" for frame in frames):
            code = CRASHED
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def finished(process: int, log: Path) -> Ended:
    """Wait for the end of a process. One that hangs is killed, and counts as crashed."""
    until = time.monotonic() + LONGEST
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return Ended(code, log.read_text(errors="replace") if log.exists() else "")
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return Ended(CRASHED, "Traceback: the process hangs")
        time.sleep(0.003)


def forked(act: Callable[[], None], log: Path) -> Ended:
    return finished(started(act, log), log)


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder by its name; times and the machine do not count."""
    found = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.name.endswith(".lock") or file.name == "error.txt":
            continue
        content = file.read_bytes()
        if file.suffix == ".json":
            content = json.dumps(_without(json.loads(content), VARYING), sort_keys=True).encode()
        found[file.relative_to(folder).as_posix()] = hashlib.sha256(content).hexdigest()
    return found


def _without(value: Any, keys: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(each, keys) for name, each in value.items() if name not in keys}
    return [_without(each, keys) for each in value] if isinstance(value, list) else value


def quiet(act: Callable[[], None]) -> None:
    """Run a command in this process, without output; raise if it fails."""
    before = sys.stdout, sys.stderr
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            act()
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{sys.argv} ended with code {ended.code}") from None
        finally:
            sys.stdout, sys.stderr = before
            for number, handler in handlers.items():
                signal.signal(number, handler)


def in_parallel(parts: Mapping[str, Callable[[], Any]], folder: Path, jobs: int) -> dict[str, Any]:
    """Call each function in a forked process, `jobs` at a time, unless the folder has its result.

    Args:
        parts: The functions by name; their results must be JSON.
        folder: Where the results are kept.
        jobs: The number of functions that run at a time.
    """
    files = {name: folder / f"{name}.json" for name in parts}

    def work(name: str) -> None:
        kept.write(files[name], parts[name]())

    waiting, running = [name for name in parts if not files[name].exists()], list[Any]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(multiprocessing.get_context("fork").Process(target=work, args=(waiting.pop(0),)))
            running[-1].start()
        time.sleep(0.1)
        running = [process for process in running if process.is_alive()]
    return {name: json.loads(file.read_text()) for name, file in files.items()}
