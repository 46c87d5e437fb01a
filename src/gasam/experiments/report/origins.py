"""Where numbers come from: the commits of their runs, and the commands that run them again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from gasam.experiments.records import Record
from gasam.experiments.report import cells
from gasam.experiments.report.groups import RADIUS, Group
from gasam.experiments.studies import Study


def origin(runs: Sequence[Record], commands: Sequence[str]) -> str:
    commits = ", ".join(dict.fromkeys(commit(run) for run in runs))
    again = ", ".join(f"`{command}`" for command in commands)
    return f"From {cells.counted(len(runs), 'run')} of {commits}. Again: {again}."


def commands(groups: Sequence[Group]) -> list[str]:
    """What runs all of them: those that need the same options by one command."""
    alike: dict[str, list[Group]] = {}
    for group in groups:
        alike.setdefault(_options(group), []).append(group)
    return [
        f"gasam compare {some[0].task} --size {some[0].size} "
        f"--methods {','.join(dict.fromkeys(group.method for group in some))} "
        f"--seeds {max(run['seed'] for group in some for run in group.runs)}{options}"
        for options, some in alike.items()
    ]


def _options(group: Group) -> str:
    settings, walk = dict(group.other_settings), group.other_walk()
    tuned = " --tuned --out results" if group.tuned else ""
    if tuned:
        walk = {name: value for name, value in walk.items() if name not in RADIUS}
    words = [f" --epochs {settings.pop('epochs')}"] if "epochs" in settings else []
    words += [" --same-noise"] if walk.pop("same_noise", False) else []
    words += [f" --set {name}={json.dumps(value, separators=(',', ':'))}" for name, value in settings.items()]
    return "".join(words + [f" --walk {group.method}.{name}={value}" for name, value in walk.items()]) + tuned


def commit(run: Record) -> str:
    if run["commit"] is None:
        return "an unknown commit"
    return f"commit {run['commit'][:7]}" + (" with changes" if run.get("dirty") else "")


def study_commands(study: Study, size: str, groups: Sequence[Group]) -> Iterator[str]:
    """What runs a table's rows again: with the paper's radii, and with those that were found on validation."""
    walking = [group for group in groups if group.method != "baseline"] or groups
    for tuned in (False, True):
        found = [group for group in walking if (group.tuned or group.multiple is not None) == tuned]
        some = [group for group in found if not group.other_settings]  # others have a command beside their task
        if some:
            named = [task for task in study.tasks if any(group.task == task for group in some)]
            seeds = max(run["seed"] for group in some for run in group.runs)
            words = [f"gasam reproduce {study.name} --size {size}"]
            words += [f"--tasks {','.join(named)}"] if len(named) < len(study.tasks) else []
            words += [f"--seeds {seeds}"] if seeds != max(study.seeds) else []
            yield " ".join([*words, *["--tuned --out results"] * tuned])
