"""The session of one run with one tracker: it sends each epoch once, however often the run is resumed or exported."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from gasam.lab.records import RunRecord, read_as
from gasam.lab.storage import write_json
from gasam.lab.tracking.flattening import hyperparameters, metrics

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

STATE = "tracked.json"


class Sent(BaseModel):
    """What a tracker has of a run: the number of epochs, whether it has the final scores, and its id of the run."""

    model_config = ConfigDict(extra="forbid")

    rows: int = 0
    finished: bool = False
    id: str | None = None


class Session:
    """Sends the hyperparameters, the epochs and the final scores of a run to a tracker.

    The file `folder/RUN/tracked.json` counts what was sent. An error of the tracker ends the session, not the run.

    Args:
        tracker: The name of the tracker.
        run: The name of the run.
        folder: The folder of the tracker.
        on_failure: Called with one sentence if the tracker raises an error.
    """

    def __init__(self, tracker: str, run: str, folder: Path, on_failure: Callable[[str], None]) -> None:
        self.name, self.run, self.folder, self.on_failure = tracker, run, folder, on_failure
        self.tracker: GeneralTracker | None = None
        self.failed = False
        self.file = folder / run / STATE
        self.sent = Sent()

    def begin(self, config: Mapping[str, Any], seed: int, curve: Sequence[Mapping[str, Any]]) -> None:
        """Start the tracker, or continue where an earlier session stopped.

        Args:
            config: The configuration, as the record holds it.
            seed: The seed of the run.
            curve: The epochs that the run has finished so far.
        """
        self._safely(lambda: self._begin(config, seed, curve))

    def send(self, curve: Sequence[Mapping[str, Any]]) -> None:
        """Send the epochs that the tracker does not have yet."""
        self._safely(lambda: self._send(curve))

    def finish(self, record: RunRecord) -> bool:
        """Send what is missing of a finished run, and its scores. False if nothing was missing, or on failure."""
        before = self.sent if self.tracker or self.failed else self._known()
        if self.failed or (before.finished and before.rows == len(record.curve)):
            return False
        if self.tracker is None:
            self.begin(record.config, record.seed, record.curve)
        self._safely(lambda: self._finish(record))
        return True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.tracker is not None:
            self._safely(self.tracker.finish)
            self.tracker = None

    def _begin(self, config: Mapping[str, Any], seed: int, curve: Sequence[Mapping[str, Any]]) -> None:
        from gasam.lab.tracking.services import TrackedRun, start

        self.sent = self._known()
        if self.sent.rows > len(curve):  # an earlier run of this name, whose record was deleted
            shutil.rmtree(self.file.parent)
            self.sent = Sent()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.tracker, given = start(self.name, TrackedRun(self.run, self.folder, self.sent.rows, self.sent.id))
        if not self.file.exists():
            self.tracker.store_init_configuration(hyperparameters(config, seed))
        self._note(id=given)
        self._send(curve)

    def _send(self, curve: Sequence[Mapping[str, Any]]) -> None:
        if self.tracker is None:
            return
        for row in curve[self.sent.rows :]:
            self.tracker.log(metrics(row), step=row["epoch"])
            self._note(rows=self.sent.rows + 1)

    def _finish(self, record: RunRecord) -> None:
        from gasam.lab.tracking.services import FINAL

        self._send(record.curve)
        if self.tracker is None or self.sent.finished:
            return
        scores = dict(zip(FINAL, (record.valid, record.test), strict=True))
        self.tracker.log({name: score for name, score in scores.items() if score is not None}, step=len(record.curve))
        self._note(finished=True)

    def _known(self) -> Sent:
        return read_as(Sent, "the state of a tracker", self.file) if self.file.exists() else Sent()

    def _note(self, **changes: Any) -> None:
        self.sent = self.sent.model_copy(update=changes)
        write_json(self.file, self.sent.model_dump())

    def _safely(self, action: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            with redirect_stdout(sys.stderr):  # some trackers print, and the standard output may be JSON
                action()
        except Exception as error:  # whatever a tracker raises
            self.failed, self.tracker = True, None
            self.on_failure(f"{self.name} failed ({self._in_words(error)})")

    def _in_words(self, error: Exception) -> str:
        """The first line of a message, without the run's own file, so that all runs say the same."""
        if isinstance(error, OSError) and error.strerror:
            return f"{error.strerror}, {self.folder}"
        return (str(error).strip() or type(error).__name__).splitlines()[0]
