"""The summary of all results: a sentence for each task about GA-SAM, and a table with a task in each column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gasam.lab.methods import METHODS, TABLE1
from gasam.lab.paper import studies
from gasam.lab.report.ablation_questions import without_ablations
from gasam.lab.report.contents import Contents
from gasam.lab.report.does_it_help import effects
from gasam.lab.report.group import Group
from gasam.lab.report.labels import in_words, named
from gasam.lab.report.notes import contrast
from gasam.lab.report.versions import newest_decided
from gasam.lab.statistics import Standing, counted, number, signed
from gasam.lab.tables import Table, of_texts
from gasam.lab.tasks import TASKS

SHOWN = (*TABLE1, "freelb")
NOT_RUN = "not run"
OTHERS: dict[Standing, str] = {
    "better": "GA-SAM is better than",
    "no difference": "no clear difference to",
    "worse": "GA-SAM is worse than",
}


def answers(contents: Contents) -> Table:
    """GA-SAM on each task: compared with plain training, with the other methods, and its cost.

    Sizes that are nearer to the paper than the one in README's table have rows here as well.
    """
    rows = []
    for task, shown in _by_task(contents).items():
        sizes = list(TASKS[task].sizes)
        for size in sizes[: sizes.index(shown[0].size) + 1]:
            groups = without_ablations(contents.groups(task, size))
            lead = next((group for group in groups if group.usual and group.method == "ga-sam"), None)
            if lead is not None and lead.baseline is not None:
                rows.append(_answer(lead, groups))
    return of_texts("GA-SAM on each task", rows)


def _answer(lead: Group, groups: Sequence[Group]) -> dict[str, str]:
    found, effect = contrast(groups, lead), effects(groups)[lead.key]
    row = {
        "task": f"[{lead.task}](results/{lead.task}.md)",
        "size": lead.size,
        "seeds": str(len(lead.scores)),
        "GA-SAM minus plain training, equal epochs": _judged(lead, lead.baseline, effect.equal_epochs),
        "equal cost": "same weights" if lead.longer_is_the_same else _judged(lead, lead.longer, effect.equal_cost),
    }
    for standing, title in OTHERS.items():
        row[title] = ", ".join(other.title for other, each in found if each == standing)
    cost = lead.relative_cost
    return row | {"gradient evaluations": f"{cost:.2f}x" if cost else ""}


def _judged(lead: Group, plain: Group | None, words: str) -> str:
    """The difference to plain training, and whether it is clear."""
    if plain is None or not (told := lead.versus(plain)):
        return ""
    return f"{told} {lead.metric.unit_of_differences}" + (f": {words}" if words else "")


def overview(contents: Contents) -> Table:
    """Each method in its most usual configuration, on each task of the paper's Table 1."""
    chosen = {
        task: {group.method: group for group in reversed(groups) if group.method in SHOWN}
        for task, groups in _by_task(contents).items()
        if task in studies.load("table1").tasks
    }
    lines = {
        METHODS[method].title: [_brief(groups[method]) if method in groups else NOT_RUN for groups in chosen.values()]
        for method in SHOWN
    }
    baseline, *others = lines.items()
    longer = "Baseline, as expensive as GA-SAM", [_as_expensive(groups) for groups in chosen.values()]
    rows = [(title, *texts) for title, texts in (baseline, longer, *others) if set(texts) != {NOT_RUN}]
    sizes = [f"{task} {next(iter(some.values())).size}, {_seeds(list(some.values()))}" for task, some in chosen.items()]
    walks = [f"{task} {_origin_of_walks(some.values())}" for task, some in chosen.items()]
    notes = f"Sizes: {'; '.join(sizes)}.", f"How far the weights are moved: {'; '.join(walks)}."
    return Table("Results", ("method", *map(_heading, chosen)), tuple(rows), notes)


def _origin_of_walks(groups: Iterable[Group]) -> str:
    """Where the sizes of the walks come from, and the methods whose size comes from elsewhere."""
    found = {group.title: group.sources[0].partition(",")[0] for group in groups if group.method != "baseline"}
    if not found:
        return "none"
    [(most, _)] = Counter(found.values()).most_common(1)
    return named(most, ", ".join(f"{title}: {source}" for title, source in found.items() if source != most))


def _by_task(contents: Contents) -> dict[str, list[Group]]:
    """What was run of each task in the newest version of `small` that decides something about GA-SAM.

    If none does, the size in which most methods were run; of several, the nearest to the paper.
    """
    found = {}
    for task, definition in TASKS.items():
        decided = newest_decided(contents, task)
        sizes = definition.sizes if decided is None else [decided]
        found[task] = max((contents.groups(task, size) for size in sizes), key=_methods)
    return {task: groups for task, groups in found.items() if _methods(groups)}


def _methods(groups: Sequence[Group]) -> int:
    return len({group.method for group in groups if group.method in SHOWN})


def _heading(task: str) -> str:
    metric = TASKS[task].family.metric
    return f"{task}, {metric.name}{'' if metric.higher_is_better else ' (lower is better)'}"


def _brief(group: Group) -> str:
    """The mean, the difference to the baseline, and settings that the other groups do not have."""
    text = f"diverged ({counted(len(group.lost), 'seed')})" if group.summary is None else number(group.summary.mean)
    if group.lost and group.scores:
        text += f", {len(group.lost)} of {len(group.records)} diverged"
    found = group.difference(group.baseline) if group.method != "baseline" else None
    return named(named(text, signed(found.mean) if found else ""), in_words(group.apart))


def _as_expensive(groups: Mapping[str, Group]) -> str:
    """Plain training that had as many gradient evaluations as GA-SAM, because it had more epochs."""
    walk = groups.get("ga-sam")
    if walk is None or walk.longer is None or walk.longer.summary is None:
        return NOT_RUN
    found = walk.longer.difference(walk.baseline)
    return named(number(walk.longer.summary.mean), signed(found.mean) if found else "")


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.records) for group in groups})
    return counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
