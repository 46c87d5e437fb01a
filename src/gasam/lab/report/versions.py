"""The versions of a task's small size: the newest one that decides something, and the older ones that it replaces."""

from __future__ import annotations

from collections.abc import Sequence

from gasam.lab.report.ablation_questions import is_reference
from gasam.lab.report.contents import Contents
from gasam.lab.report.group import Group
from gasam.lab.statistics import FEW
from gasam.lab.tasks import TASKS
from gasam.lab.tasks.task import DEFAULT_SIZE


def versions(task: str) -> list[str]:
    """The versions of `small` by the names that records hold, the newest first."""
    return [size for size in TASKS[task].sizes if size.partition("@")[0] == DEFAULT_SIZE]


def newest_decided(contents: Contents, task: str) -> str | None:
    """The newest version in which GA-SAM and plain training have at least three seeds in common."""
    return next((size for size in versions(task) if _decides(contents.groups(task, size))), None)


def replaced_versions(contents: Contents, task: str) -> set[str]:
    """The versions with runs that are older than the newest one that decides something."""
    every, newest = versions(task), newest_decided(contents, task)
    older = [] if newest is None else every[every.index(newest) + 1 :]
    return {size for size in older if contents.groups(task, size)}


def page_of(contents: Contents, task: str, size: str) -> str:
    """The file with the scores of a size, in the folder of the pages, and the place in it."""
    if size in replaced_versions(contents, task):
        return f"earlier.md#{task}-size-{size.replace('@', '')}"
    return f"{task}.md"


def _decides(groups: Sequence[Group]) -> bool:
    """Whether GA-SAM's usual or tuned walk has enough seeds in common with plain training."""
    walks = [group for group in groups if group.usual and group.method == "ga-sam" and is_reference(group)]
    return any(group.baseline and len(group.scores.keys() & group.baseline.scores) >= FEW for group in walks)
