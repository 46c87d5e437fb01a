"""The command `gasam export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gasam.lab.cli import options as opt
from gasam.lab.errors import InputError

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of records, such as runs.")]
To = Annotated[
    str,
    typer.Option(
        help="tensorboard, wandb, mlflow, trackio, aim, comet_ml, clearml, dvclive or swanlab for runs; optuna for the "
        "searches of `gasam tune`."
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the files. Default: FOLDER/TRACKER; for optuna FOLDER itself.")
]


def export(folder: Folder, to: To = "tensorboard", out: Out = None, json: opt.Json = False) -> None:
    """Send finished runs to an experiment tracker, or searches to Optuna. What it has already is not sent again.

    Examples: `gasam export runs --to tensorboard`, `gasam export runs --to optuna`
    """
    from gasam.lab.cli.display import console, print_json

    found = _searches(folder, out or folder) if to == "optuna" else _runs(folder, to, out or folder / to)
    if json:
        print_json(found)
        return
    for sentence in found["sentences"]:
        console.print(sentence, soft_wrap=True)


def _runs(folder: Path, tracker: str, out: Path) -> dict[str, Any]:
    from gasam.lab import records
    from gasam.lab.cli.display import errors
    from gasam.lab.tracking.export import export
    from gasam.lab.tracking.services import SERVICES, check

    check(tracker, "--to", "optuna")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(f"no records in {folder}: train something first, or name another folder")
    with errors.status("reading records") as status:
        runs = [(file.stem, records.read(file)) for file in files]
        sent = []
        for number, run in enumerate(runs, 1):
            status.update(f"{tracker}: {number}/{len(runs)} {run[0]}")
            sent += export(tracker, [run], out)
    sentences = [f"{len(sent)} of {len(runs)} runs sent to {tracker}"]
    if len(sent) < len(runs):
        sentences[0] += "; it has the others already"
    command = SERVICES[tracker].view.format(folder=out)
    return {"sent": sent, "folder": str(out), "sentences": sentences + ([f"open it: {command}"] if command else [])}


def _searches(folder: Path, out: Path) -> dict[str, Any]:
    from gasam.lab.search import finding, optuna_studies, settings_finding
    from gasam.lab.search.finding import Finding
    from gasam.lab.search.settings_finding import SettingsFinding

    searches: list[Finding | SettingsFinding] = [*finding.read_all(folder), *settings_finding.read_all(folder)]
    if not searches:
        raise InputError(f"no searches in {folder}: run `gasam tune` first, or name another folder")
    file = out / optuna_studies.JOURNAL
    added = optuna_studies.export_studies(searches, file)
    sentence = f"{len(searches)} studies in {file}, {sum(added.values())} trials added"
    return {"added": added, "file": str(file), "sentences": [sentence, f"open it: optuna-dashboard {file}"]}
