"""Whether it matters that dropout masks are shared over a step's passes: the same walk both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gasam.lab.report import cells
from gasam.lab.report.groups import Group, labels
from gasam.lab.report.statistics import paired_difference
from gasam.lab.report.verdicts import standing
from gasam.lab.tasks import find

CARRIED = {
    "better": "better",
    "worse": "worse",
    "no difference": "undecided, for the interval holds zero",
    None: "one seed carries nothing",
}


def shared_masks(groups: Sequence[Group]) -> Iterator[str]:
    """A sentence for each walk that was run with shared masks and with fresh ones."""
    for fresh, name in zip(groups, labels(groups), strict=True):
        for shared in groups:
            if fresh.method == "baseline" or not _differ_in_noise(shared, fresh):
                continue
            found = paired_difference(shared.scores, fresh.scores)
            if found is None:
                continue
            carried = standing(found, find(fresh.task).family.metric.higher_is_better)
            yield (
                f"{fresh.task}, size {fresh.size}, {name}: {cells.result(shared).text} with shared masks, "
                f"{cells.result(fresh).text} with fresh ones, {cells.difference(shared, fresh).text}: "
                f"{CARRIED[carried]}. By seed {_by_seed(shared)} with shared masks, {_by_seed(fresh)} with fresh ones."
            )


def _by_seed(group: Group) -> str:
    return ", ".join(cells.number(score) for _, score in sorted(group.scores.items()))


def _differ_in_noise(shared: Group, fresh: Group) -> bool:
    if not shared.walk.get("same_noise") or fresh.walk.get("same_noise") or shared.data != fresh.data:
        return False
    return shared.settings == fresh.settings and shared.walk | {"same_noise": False} == fresh.walk
