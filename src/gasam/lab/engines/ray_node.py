"""What runs on the nodes of a Ray cluster: the process of a job, and the depot through which it asks the driver."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import platform
import signal
import tempfile
import uuid
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import ray
import torch

import gasam
from gasam.lab import record as records
from gasam.lab.engines.engine import Files, message_of, names_of_files, read_files, write_files
from gasam.lab.errors import InputError
from gasam.lab.families.family import Encoded
from gasam.lab.tasks.own_model import load_text

Message = tuple[int, int, str, str, Any]
"""Its number, the number of its job, the name of its process, and "start" with the versions of the node, or "update"
with the update and the reference to a snapshot in a list."""


class Depot:
    """An actor that passes the messages of all jobs to the driver, and its answers back."""

    def __init__(self) -> None:
        self.posted: asyncio.Queue[Message] = asyncio.Queue()
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self.numbers = itertools.count()

    async def post(self, job: int, process: str, kind: str, value: Any) -> Any:
        """Post a message, and wait for the driver's answer."""
        number = next(self.numbers)
        answer = self.answers[number] = asyncio.get_running_loop().create_future()
        self.posted.put_nowait((number, job, process, kind, value))
        return await answer

    async def take(self) -> Message:
        return await self.posted.get()

    async def answer(self, number: int, value: Any) -> None:
        self.answers.pop(number).set_result(value)


def execute(number: int, task: bytes, folder: str, depot: Any) -> tuple[str, Any, Files | None]:
    """Do a job in a temporary folder; the main function of its process. Gives the last event, and the job's files.

    A first start and a start after the death of a node are the same: the driver sends the files that it has. `task` is
    the pickled job, the function to call, the number of threads, and the text of the task file or None; `folder` is
    that of all jobs on the driver's machine, which error messages name.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `ray.cancel` raises KeyboardInterrupt
    process, reporter = uuid.uuid4().hex, None
    with tempfile.TemporaryDirectory(prefix="gasam-") as place:
        try:
            answer = fetched(depot.post.remote(number, process, "start", node_versions()))
            if isinstance(answer, InputError):
                raise answer
            files, data = map(fetched, answer)
            write_files(Path(place), "*", files, files)
            reporter = Reporter(depot, number, process, Path(place))
            job, work, threads, text = pickle.loads(task)
            if text is not None:
                load_text(job.plan.task, text)
            if data:
                job.data = Encoded.load(BytesIO(data))
            torch.set_num_threads(threads)
            kind, value = "done", work(job, Path(place), reporter.update)
        except (Exception, KeyboardInterrupt) as error:
            kind, value = "failed", message_of(error).replace(place, folder)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on nothing can be interrupted any more
        return kind, value, None if reporter is None else read_files(Path(place), "*")


def fetched(reference: Any) -> Any:
    """The value of a reference. While the main thread itself waits, Ray gives the CPU of its job to another one."""
    future = reference.future()
    while True:
        with suppress(TimeoutError):  # an interrupt is noticed between two waits
            return future.result(timeout=0.5)


class Reporter:
    """Sends updates of a job with the files that have changed. At most one is on its way; others are left out.

    Updates come from the thread that trains, so no file is being written at that time.
    """

    def __init__(self, depot: Any, job: int, process: str, folder: Path) -> None:
        self.depot, self.job, self.process, self.folder = depot, job, process, folder
        self.sent = self._stamps()
        self.delivery: Any = None
        self.snapshot: Any = None

    def update(self, update: Any) -> None:
        if self.delivery is None or self.delivery.done():
            self.snapshot = ray.put(self.changes())  # kept until it was delivered
            message = self.job, self.process, "update", (update, [self.snapshot])
            self.delivery = self.depot.post.remote(*message).future()

    def changes(self) -> tuple[Files, frozenset[str]]:
        """The files that changed since the last call, in the order of writing, and the names of all files."""
        now, before = self._stamps(), self.sent
        self.sent = now
        changed = [name for name, stamp in now.items() if before.get(name) != stamp]
        # The order of writing matters: whoever is killed between two files must not have a state that is newer than
        # the weights that it refers to. For files of the same instant the names happen to be in that order.
        changed.sort(key=lambda name: (now[name], "/" not in name, name))
        return {name: (self.folder / name).read_bytes() for name in changed}, frozenset(now)

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """The time of the last change of each file, and its inode, which is new when a file is replaced."""
        stats = {name: (self.folder / name).stat() for name in names_of_files(self.folder, "*")}
        return {name: (stat.st_mtime_ns, stat.st_ino) for name, stat in stats.items()}


def node_versions() -> dict[str, str | None]:
    """The versions that must be the same on all nodes; the commit is None if it is not known."""
    python = ".".join(platform.python_version_tuple()[:2])
    torch_version = torch.__version__.partition("+")[0]  # a CPU build and a GPU build may work together
    return {"Python": python, "torch": torch_version, "gasam": gasam.__version__, "commit": records.code()["commit"]}
