"""What runs on the nodes of a Ray cluster: the process of a job, and the mailbox that it reports to."""

from __future__ import annotations

import _thread
import asyncio
import itertools
import pickle
import platform
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ray
import torch

import gasam
from gasam.lab import record as records
from gasam.lab.engines.execution import message_of
from gasam.lab.engines.jobs import Job, Work
from gasam.lab.engines.shipping import Files, SentFiles, Snapshot, received_data
from gasam.lab.errors import InputError
from gasam.lab.tasks.own_model import give_text
from gasam.lab.training.plan import give_data

ASKING = 0.5
"""Seconds between two questions to the driver whether to stop."""


@dataclass(frozen=True)
class WorkItem:
    """What the process of a job needs besides its files. `work_item` makes it.

    Args:
        task: The pickled job and the function to call.
        folder: The folder of all jobs on the driver's machine, which error messages name.
        data_hash: The hash of the encoded data.
        data: A list with the reference to the data in the object store. In a list it is fetched only on demand.
        threads: Number of threads.
        versions: The versions that this node must have, from `node_versions`.
        task_text: The text of the user's Python file that defines the task, if there is one.
    """

    task: bytes
    folder: str
    data_hash: str
    data: list[Any]
    threads: int
    versions: Mapping[str, str | None]
    task_text: str | None = None


def work_item(
    job: Job, work: Work, folder: Path, data: tuple[str, Any] | None, threads: int, versions: dict[str, str | None]
) -> WorkItem:
    """Turn a job into what its process on a node needs. Everything that a node lacks is added here.

    Args:
        job: The job.
        work: The function to call with it.
        folder: The folder of all jobs on this machine.
        data: The hash of its encoded data, and the reference to it in the object store.
        threads: Number of threads.
        versions: The versions that the node must have.
    """
    digest, reference = data or ("", None)
    task = pickle.dumps((replace(job, data=None, record=None), work))
    sent = [] if data is None else [reference]
    return WorkItem(task, str(folder), digest, sent, threads, versions, job.plan.definition.family.task_text())


@dataclass(frozen=True)
class Message:
    """A message of a job to the driver.

    Args:
        attempt: The number of the attempt.
        number: The number of the message, because a message may overtake another.
        kind: "start", "update" or "files".
        value: The update, or a list with the reference to a `Snapshot`.
    """

    attempt: int
    number: int
    kind: str
    value: Any = None


@dataclass(frozen=True)
class Result:
    """How a job ended: `value` is its record or a message, `snapshot` has the files that the driver does not have."""

    kind: Literal["done", "failed", "interrupted"]
    value: Any
    snapshot: Snapshot | None


class Mailbox:
    """The messages of all jobs to the driver. It is an actor on the driver's node."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.arrived, self.stopped = asyncio.Event(), False
        self.answers: dict[tuple[int, int], asyncio.Future[bool]] = {}

    async def post(self, message: Message) -> None:
        self.messages.append(message)
        self.arrived.set()

    async def deliver(self, message: Message) -> bool:
        """Post a message; return the driver's answer, whether it has kept the files."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.answers[message.attempt, message.number] = answer
        await self.post(message)
        return await answer

    async def answer(self, message: Message, kept: bool) -> None:
        self.answers.pop((message.attempt, message.number)).set_result(kept)

    async def take(self) -> list[Message]:
        """Wait for messages and hand them over in order."""
        await self.arrived.wait()
        self.arrived.clear()
        taken, self.messages = self.messages, []
        return sorted(taken, key=lambda message: (message.attempt, message.number))

    async def stop(self) -> None:
        self.stopped = True

    async def is_stopped(self) -> bool:
        return self.stopped


def execute(item: WorkItem, files: Files, mailbox: Any, attempt: int) -> Result:
    """Do a job in a temporary folder; the main function of its process.

    Args:
        item: What to do.
        files: The job's files from earlier attempts, such as its checkpoint.
        mailbox: The driver's `Mailbox`.
        attempt: The number under which to report.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="gasam-") as place:
        reporter = Reporter(mailbox, attempt, SentFiles(Path(place), files))
        try:
            with interruptible(mailbox):
                fetched(reporter.post("start"))  # from its first step on the driver can see and interrupt the job
                result = _done(item, reporter)
        except (Exception, KeyboardInterrupt) as error:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            kind: Any = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            message = message_of(error).replace(place, item.folder)
            result = Result(kind, message, reporter.files.changes())
    return result


def _done(item: WorkItem, reporter: Reporter) -> Result:
    difference = version_difference(item.versions, node_versions())
    if difference:
        raise InputError(f"node {platform.node()} {difference}")
    job, work = pickle.loads(item.task)
    if item.task_text is not None:
        give_text(job.plan.task, item.task_text)
    if item.data:
        give_data(job.plan, received_data(item.data_hash, lambda: fetched(item.data[0])))
    torch.set_num_threads(item.threads)
    value = work(job, reporter.files.folder, reporter.update)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on nothing can be interrupted any more
    return Result("done", value, reporter.files.changes())


def fetched(reference: Any) -> Any:
    """The value of a reference. While the main thread itself waits, Ray gives the CPU of its job to another one."""
    future = reference.future()
    while True:
        with suppress(TimeoutError):  # an interrupt is noticed between two waits
            return future.result(timeout=ASKING)


class Reporter:
    """Sends updates of a job to the driver, and its checkpoints.

    Updates come from the thread that trains, so no file is being written at that time. While a snapshot is on its way,
    no second one is taken.
    """

    def __init__(self, mailbox: Any, attempt: int, files: SentFiles) -> None:
        self.mailbox, self.attempt, self.files = mailbox, attempt, files
        self.numbers = itertools.count()
        self.delivery: Any = None
        self.snapshot: Any = None

    def post(self, kind: str, value: Any = None) -> Any:
        """Send a message; the returned reference is ready when the mailbox has it."""
        return self.mailbox.post.remote(Message(self.attempt, next(self.numbers), kind, value))

    def update(self, update: Any) -> None:
        self.post("update", update)
        if self.delivery is not None:
            if not self.delivery.done():
                return
            if self.delivery.result():
                self.files.received()
            self.delivery = self.snapshot = None
        changed = self.files.changes()
        if changed is not None:
            self.snapshot = ray.put(changed)  # kept until it was delivered
            message = Message(self.attempt, next(self.numbers), "files", [self.snapshot])
            self.delivery = self.mailbox.deliver.remote(message).future()


@contextmanager
def interruptible(mailbox: Any) -> Iterator[None]:
    """Interrupt this process when the driver stops all jobs, as Ctrl-C would.

    The driver is asked again and again, because the process does not end while one of its calls is pending.
    """
    ended = threading.Event()

    def ask() -> None:
        with suppress(ray.exceptions.RayError):  # the driver is gone, and Ray ends this process
            while not ended.wait(ASKING):
                if ray.get(mailbox.is_stopped.remote()):
                    _thread.interrupt_main(signal.SIGINT)  # Ray's processes block the signal itself
                    return

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()


def node_versions() -> dict[str, str | None]:
    """The versions that must be the same on all nodes; the commit is None if it is not known."""
    python = ".".join(platform.python_version_tuple()[:2])
    torch_version = torch.__version__.partition("+")[0]  # a CPU build and a GPU build may work together
    commit = records.code()["commit"]
    return {"Python": python, "torch": torch_version, "gasam": gasam.__version__, "commit": commit}


def version_difference(ours: Mapping[str, str | None], theirs: Mapping[str, str | None]) -> str:
    """What a node has that we do not, in words; empty if they agree."""
    for name, version in ours.items():
        other = theirs.get(name)
        if version is not None and other is not None and version != other:
            what = f"gasam's commit {other[:8]} and we have {version[:8]}" if name == "commit" else ""
            return f"has {what or f'{name} {other} and we have {version}'}: install the same versions on every node"
    return ""
