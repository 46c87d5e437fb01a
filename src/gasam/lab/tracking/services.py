"""The trackers that Accelerate supports, and what each of them calls the name, the folder and the id of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, TensorBoardTracker, get_available_trackers

from gasam.lab.errors import InputError

PROJECT = "gasam"
"""The name of the project in trackers that have projects or experiments."""
FINAL = ("final/valid", "final/test")
"""The names of the scores of a finished run. TensorBoard shows them beside the hyperparameters."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker sees it.

    Args:
        name: The name of the run.
        folder: The folder of the tracker, which all its runs share.
        rows: Number of epochs that the tracker has already.
        id: The tracker's own id of the run; None if the run is new, or if the tracker has no ids.
    """

    name: str
    folder: Path
    rows: int = 0
    id: str | None = None


@dataclass(frozen=True)
class Service:
    """How to use a tracker.

    Args:
        arguments: The arguments of its class in Accelerate.
        id: Reads the id that the tracker gave the run.
        view: The command that shows the runs in `{folder}`; empty for trackers with a website.
    """

    arguments: Callable[[TrackedRun], dict[str, Any]]
    id: Callable[[Any], str | None] = lambda tracker: None
    view: str = ""


class TensorBoard(TensorBoardTracker):  # type: ignore[misc]
    """Accelerate's tracker, which writes hyperparameters to a second run without metrics. This one uses the same run.

    It also declares the final scores, so that the page HPARAMS shows a column for each.
    """

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        from torch.utils.tensorboard.summary import hparams

        for summary in hparams(values, dict.fromkeys(FINAL, 0.0)):  # type: ignore[no-untyped-call]
            self.writer.file_writer.add_summary(summary)
        self.writer.flush()


def _tensorboard(run: TrackedRun) -> dict[str, Any]:
    # A run that was killed may have written an epoch that the file of `Session` does not count: purge it.
    return {"run_name": run.name, "logging_dir": run.folder, "purge_step": run.rows + 1}


def _wandb(run: TrackedRun) -> dict[str, Any]:
    resumed = {} if run.id is None else {"id": run.id, "resume": "allow"}
    return {"run_name": PROJECT, "name": run.name, "dir": run.folder, **resumed}


def _mlflow(run: TrackedRun) -> dict[str, Any]:
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{(run.folder / 'mlflow.db').resolve()}")
    artifacts = (run.folder / "artifacts").resolve()
    return {"experiment_name": PROJECT, "run_name": run.name, "run_id": run.id, "logging_dir": str(artifacts)}


def _aim(run: TrackedRun) -> dict[str, Any]:
    resumed = {} if run.id is None else {"run_hash": run.id}
    return {"run_name": run.name, "logging_dir": str(run.folder), **resumed}


def _comet(run: TrackedRun) -> dict[str, Any]:
    return {"run_name": PROJECT} | ({} if run.id is None else {"experiment_key": run.id})


def _clearml(run: TrackedRun) -> dict[str, Any]:
    resumed = {} if run.id is None else {"continue_last_task": run.id}
    return {"run_name": run.name, "project_name": PROJECT, **resumed}


def _dvclive(run: TrackedRun) -> dict[str, Any]:
    return {"dir": str(run.folder / run.name / "dvclive"), "resume": run.rows > 0, "save_dvc_exp": False}


def _swanlab(run: TrackedRun) -> dict[str, Any]:
    resumed = {} if run.id is None else {"id": run.id, "resume": "allow"}
    return {"run_name": PROJECT, "experiment_name": run.name, "logdir": str(run.folder), **resumed}


def _trackio(run: TrackedRun) -> dict[str, Any]:
    return {"run_name": PROJECT, "name": run.name, "resume": "allow"}


SERVICES = {
    "aim": Service(_aim, lambda tracker: tracker.hash, "aim up --repo {folder}"),
    "clearml": Service(_clearml, lambda tracker: tracker.id),
    "comet_ml": Service(_comet, lambda tracker: tracker.get_key()),
    "dvclive": Service(_dvclive),
    "mlflow": Service(
        _mlflow,
        lambda tracker: tracker.info.run_id,
        "mlflow ui --backend-store-uri sqlite:///{folder}/mlflow.db, unless MLFLOW_TRACKING_URI names another store",
    ),
    "swanlab": Service(_swanlab, lambda tracker: tracker.id),
    "tensorboard": Service(_tensorboard, view="tensorboard --logdir {folder}"),
    "trackio": Service(_trackio, view=f"trackio show --project {PROJECT}"),
    "wandb": Service(_wandb, lambda tracker: tracker.id),
}


def check(name: str, option: str, *others: str) -> None:
    """Raise `InputError` if there is no such tracker, or if its package is not installed.

    Args:
        name: The name of the tracker.
        option: The option that gave the name.
        others: Other names that the option allows.
    """
    if name not in SERVICES:
        raise InputError(f"{option} must be one of {', '.join([*SERVICES, *others])}, got {name!r}")
    if name not in map(str, get_available_trackers()):
        raise InputError(f"{name} is not installed: run `pip install {name.replace('_', '-')}`")


def start(name: str, run: TrackedRun) -> tuple[GeneralTracker, str | None]:
    """Start a tracker for one run; gives the tracker and its id of the run."""
    kind = TensorBoard if name == "tensorboard" else LOGGER_TYPE_TO_CLASS[name]
    tracker = kind(**SERVICES[name].arguments(run))
    tracker.start()
    return tracker, SERVICES[name].id(tracker.tracker)
