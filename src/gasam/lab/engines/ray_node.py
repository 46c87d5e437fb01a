"""What runs on the nodes of a Ray cluster: the process of a job, and the depot through which it reports."""

from __future__ import annotations

import asyncio
import pickle
import platform
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch

import gasam
from gasam.lab import record as records
from gasam.lab.engines.engine import Files, files_below, message_of
from gasam.lab.errors import InputError
from gasam.lab.families.family import Encoded
from gasam.lab.tasks.own_model import give_text
from gasam.lab.training.plan import give_data

Versions = Mapping[str, str | None]


Snapshot = tuple[Files, frozenset[str]]
"""What changed in a job's folder since the last snapshot, in the order of writing, and the names of all files."""


class Message(NamedTuple):
    """A message of a job: "start", "update" with an update, or "files" with the reference to a snapshot in a list.

    `attempt` counts the starts of the job: it starts again where its node dies. A message may overtake another;
    `order` numbers them.
    """

    job: int
    attempt: int
    order: int
    kind: str
    value: Any = None


class Depot:
    """An actor that passes the messages of all jobs to the driver, and the files of a job to its process."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.arrived = asyncio.Event()
        self.starts: dict[int, int] = {}
        self.files: dict[int, asyncio.Future[list[Any]]] = {}
        self.posted: list[asyncio.Event] = []
        self.taken: list[asyncio.Event] = []

    async def start(self, job: int) -> tuple[int, list[Any]]:
        """The number of starts of a job so far, and the reference to the files that the driver gives to it."""
        attempt = self.starts[job] = self.starts.get(job, 0) + 1
        self.files[job] = asyncio.get_running_loop().create_future()
        await self.post(Message(job, attempt, 0, "start"))
        return attempt, await self.files[job]

    async def give(self, job: int, files: list[Any]) -> None:
        self.files[job].set_result(files)

    async def post(self, message: Message) -> None:
        """Post a message, and wait until the driver has handled it."""
        handled = asyncio.Event()
        self.messages.append(message)
        self.posted.append(handled)
        self.arrived.set()
        await handled.wait()

    async def take(self) -> list[Message]:
        """Wait for messages, and hand them over in order. All that was taken before has then been handled."""
        for handled in self.taken:
            handled.set()
        await self.arrived.wait()
        self.arrived.clear()
        messages, self.messages = sorted(self.messages, key=lambda message: message[:3]), []
        self.taken, self.posted = self.posted, []
        return messages


def execute(
    number: int, task: bytes, data: list[Any], folder: str, versions: Versions, depot: Any
) -> tuple[str, Any, Snapshot | None]:
    """Do a job in a temporary folder; the main function of its process.

    A first start and a start after the death of a node are the same: the driver sends the files that it has.

    Args:
        number: The number of the job.
        task: The pickled job, the function to call, the number of threads, and the text of the task file or None.
        data: The reference to the encoded data, if it is sent; in a list it is not fetched before the job starts.
        folder: The folder of all jobs on the driver's machine, which error messages name.
        versions: The versions that this node must have.
        depot: The driver's `Depot`.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `ray.cancel` raises KeyboardInterrupt
    with tempfile.TemporaryDirectory(prefix="gasam-") as place:
        reporter = None
        try:
            if difference := version_difference(versions, node_versions()):
                raise InputError(f"node {platform.node()} {difference}")
            attempt, [files] = fetched(depot.start.remote(number))
            reporter = Reporter(depot, number, attempt, SentFiles(Path(place), fetched(files)))
            job, work, threads, text = pickle.loads(task)
            if text is not None:
                give_text(job.plan.task, text)
            for reference in data:
                give_data(job.plan, Encoded.load(BytesIO(fetched(reference))))
            torch.set_num_threads(threads)
            kind, value = "done", work(job, Path(place), reporter.update)
        except (Exception, KeyboardInterrupt) as error:
            kind, value = "failed", message_of(error).replace(place, folder)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on nothing can be interrupted any more
        return kind, value, None if reporter is None else reporter.files.changes()


def fetched(reference: Any) -> Any:
    """The value of a reference. While the main thread itself waits, Ray gives the CPU of its job to another one."""
    future = reference.future()
    while True:
        with suppress(TimeoutError):  # an interrupt is noticed between two waits
            return future.result(timeout=0.5)


class Reporter:
    """Sends the updates of a job to the driver, and its checkpoints; at most one snapshot is on its way.

    Updates come from the thread that trains, so no file is being written at that time.
    """

    def __init__(self, depot: Any, job: int, attempt: int, files: SentFiles) -> None:
        self.depot, self.job, self.attempt, self.files = depot, job, attempt, files
        self.order = 0
        self.delivery: Any = None
        self.snapshot: Any = None

    def update(self, update: Any) -> None:
        self._post("update", update)
        if self.delivery is None or self.delivery.done():
            changed = self.files.changes()
            if changed is not None:
                self.snapshot = ray.put(changed)  # kept until it was delivered
                self.delivery = self._post("files", [self.snapshot]).future()

    def _post(self, kind: str, value: Any) -> Any:
        self.order += 1
        return self.depot.post.remote(Message(self.job, self.attempt, self.order, kind, value))


class SentFiles:
    """The files of a job's folder on a node, and which of them the driver has."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        self.sent = self._stamps()

    def changes(self) -> Snapshot | None:
        """What changed since the last call; None if nothing did."""
        now, before = self._stamps(), self.sent
        self.sent = now
        changed = [name for name, stamp in now.items() if before.get(name) != stamp]
        # The order of writing matters: whoever is killed between two files must not have a state that is newer than
        # the weights that it refers to. For files of the same instant the names happen to be in that order.
        changed.sort(key=lambda name: (now[name], "/" not in name, name))
        files = {name: (self.folder / name).read_bytes() for name in changed}
        return None if now == before else (files, frozenset(now))

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """The time of the last change of each file, and its inode, which is new when a file is replaced."""
        stats = {name: (self.folder / name).stat() for name in files_below(self.folder, "**/*")}
        return {name: (stat.st_mtime_ns, stat.st_ino) for name, stat in stats.items()}


def node_versions() -> Versions:
    """The versions that must be the same on all nodes; the commit is None if it is not known."""
    python = ".".join(platform.python_version_tuple()[:2])
    torch_version = torch.__version__.partition("+")[0]  # a CPU build and a GPU build may work together
    commit = records.code()["commit"]
    return {"Python": python, "torch": torch_version, "gasam": gasam.__version__, "commit": commit}


def version_difference(ours: Versions, theirs: Versions) -> str:
    """What a node has that we do not, in words; empty if they agree."""
    for name, version in ours.items():
        other = theirs.get(name)
        if version is not None and other is not None and version != other:
            what = f"gasam's commit {other[:8]} and we have {version[:8]}" if name == "commit" else ""
            return f"has {what or f'{name} {other} and we have {version}'}: install the same versions on every node"
    return ""
