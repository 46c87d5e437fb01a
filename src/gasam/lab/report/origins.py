"""Where numbers come from: the commits of their runs, and the commands that run them again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from gasam.lab.paper.studies import Study
from gasam.lab.records import RunRecord
from gasam.lab.report import cells
from gasam.lab.report.groups import TUNED, Group
from gasam.lab.report.matching import lines
from gasam.lab.tasks import asked_size


def origin(runs: Sequence[RunRecord], again: str) -> str:
    commits = ", ".join(dict.fromkeys(commit(run.commit, run.dirty) for run in runs))
    return f"From {cells.counted(len(runs), 'run')} of {commits}. Again: {again}."


def commands(groups: Sequence[Group]) -> str:
    """What runs all of them and nothing else: those that need the same options and seeds by one command."""
    alike: dict[tuple[int, str], list[Group]] = {}
    for group in groups:
        alike.setdefault((_seeds(group), _options(group)), []).append(group)
    return _quoted(
        f"gasam compare {some[0].task} --size {asked_size(some[0].task, some[0].size)} "
        f"--methods {','.join(dict.fromkeys(group.method for group in some))} --seeds {seeds}{options}"
        for (seeds, options), some in alike.items()
    )


def study_commands(study: Study, size: str, by_task: Mapping[str, Sequence[Group]]) -> str:
    """What runs a table again and nothing else: the study where all its rows have runs; the rest, as other baselines,
    is where the task has its own section."""
    whole: dict[tuple[bool, int], list[str]] = {}
    rest: list[str] = []
    for task, groups in by_task.items():
        rows = [line.group for line in lines(study, task, groups) if line.first]
        ways = {group.found_on_validation for group in rows if group and group.method != "baseline"}
        seeds = min((_seeds(group) for group in rows if group), default=0)
        if complete := all(rows) and len(ways) == 1:
            whole.setdefault((ways.pop(), seeds), []).append(task)
        if any(not complete or group not in rows or _seeds(group) > seeds for group in groups):
            rest.append(f"[{task}](#{task}-size-{size})")
    made = _quoted(_reproduce(study, size, tasks, *how) for how, tasks in whole.items())
    return "; ".join(filter(None, [made, f"{'the rest ' * bool(made)}as told with {', '.join(rest)}" * bool(rest)]))


def _quoted(commands: Iterable[str]) -> str:
    return ", ".join(f"`{command}`" for command in commands)


def _reproduce(study: Study, size: str, tasks: Sequence[str], tuned: bool, seeds: int) -> str:
    words = [f"gasam reproduce {study.name} --size {size}"]
    words += [f"--tasks {','.join(tasks)}"] if len(tasks) < len(study.tasks) else []
    words += [f"--seeds {seeds}"] if seeds != max(study.seeds) else []
    return " ".join([*words, *["--tuned --out results"] * tuned])


def _seeds(group: Group) -> int:
    """Seeds are counted from 1."""
    return max(int(run.seed) for run in group.runs)


def _options(group: Group) -> str:
    settings = dict(group.other_settings)
    walk = {name: value for name, value in group.other_walk().items() if value is not None}
    tuned = " --tuned --out results" if group.tuned else ""
    if tuned:
        walk = {name: value for name, value in walk.items() if name not in TUNED}
    words = [f" --epochs {settings.pop('epochs')}"] if "epochs" in settings else []
    words += [" --same-noise"] if walk.pop("same_noise", False) else []
    words += [f" --set {name}={json.dumps(value, separators=(',', ':'))}" for name, value in settings.items()]
    return "".join(words + [f" --walk {group.method}.{name}={value}" for name, value in walk.items()]) + tuned


def commit(number: str | None, dirty: bool | None) -> str:
    if number is None:
        return "an unknown commit"
    return f"commit {number[:7]}" + (" with changes" if dirty else "")
