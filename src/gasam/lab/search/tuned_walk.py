"""The use of tuned walks: plans with the walk that a search chose."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gasam.lab.errors import InputError
from gasam.lab.methods import OPTIONS, walk_for
from gasam.lab.search.finding import Finding, files
from gasam.lab.search.strategy import NORMS
from gasam.lab.training.plan import Plan


def with_tuned_walk(plan: Plan, folder: Path, times: float | None = None) -> Plan:
    """The plan with the walk that was tuned for its method, settings and data; a baseline is returned unchanged.

    Args:
        plan: The plan to change.
        folder: The folder of records whose `tuning` folder holds the searches.
        times: Use this multiple of the epsilon that was tuned in the plan's own norm.
    """
    method = plan.walk.method
    if plan.walk.moved == "nothing":
        return plan
    if times is None and plan.walk.source == "given":
        raise InputError(f"{method} has a given radius and --tuned: leave out one of the two")
    norms = NORMS if times is None else (plan.walk.norm,)
    found = _best_search(plan, folder, norms, only_epsilon=times is not None)
    best = None if found is None else found.chosen(norms)
    if found is None or best is None:
        raise _nothing_found(plan, folder, times)
    walk = found.options(best)
    if times is not None:
        walk["epsilon"] = float(f"{best.value * times:.6g}")
    ours = walk_for(method, plan.task, plan.size, plan.settings.epochs, **_own_options(plan) | walk)
    return replace(plan, walk=ours.model_copy(update={"source": "tuned"}))


def _own_options(plan: Plan) -> dict[str, Any]:
    """The options that the user changed in the method's walk, without its size."""
    default = walk_for(plan.walk.method, plan.task, plan.size, plan.settings.epochs)
    names = set(OPTIONS) - {"epsilon", "budget", "norm", "cap", "walk_progress"}
    values = {name: getattr(plan.walk, name) for name in names}
    changed = {name: value for name, value in values.items() if value != getattr(default, name)}
    own = {name: value for name, value in plan.walk.options.items() if value != default.options[name]}
    return changed | own


def _best_search(plan: Plan, folder: Path, norms: Sequence[float], only_epsilon: bool) -> Finding | None:
    """The search with the largest gain. Searches for a budget, the default quantity, come before those for epsilon."""
    data_hash = plan.data().hash
    usable = []
    for file in files(folder):
        if not _serves(Finding.read(file), plan, data_hash):
            continue
        found = _read_when_ended(file)
        if found.chosen(norms) and (found.quantity == "epsilon" or not only_epsilon):
            usable.append(found)
    return max(usable, key=lambda found: (found.quantity == "budget", max(found.gains(norms).values())), default=None)


def _serves(found: Finding, plan: Plan, data_hash: str) -> bool:
    """Whether the search has the plan's task, method, settings and data, and other seeds than the plan."""
    searched = (found.task, found.size, found.method, found.settings, found.data)
    planned = (plan.task_name, plan.size, plan.walk.method, plan.config()["settings"], data_hash)
    return searched == planned and plan.seed not in found.seeds and not found.full_grid


def _read_when_ended(file: Path) -> Finding:
    """Read a finding; raise if its search is still running, because it may yet choose another walk."""
    lock = file.with_suffix(".lock")
    if not lock.exists():
        return Finding.read(file)
    try:
        with FileLock(lock, timeout=1):
            return Finding.read(file)
    except Timeout:
        found = Finding.read(file)
    raise InputError(
        f"{file.stem} is still being tuned: wait for it, or give `gasam compare` "
        f"--walk {found.method}.{found.quantity}=VALUE instead of --tuned"
    )


def _nothing_found(plan: Plan, folder: Path, times: float | None) -> InputError:
    method, size = plan.walk.method, plan.size
    wanted = "" if times is None else f" --quantity epsilon --norms {plan.walk.norm:g}"
    what = "budget or epsilon" if times is None else "epsilon"
    return InputError(
        f"{folder / 'tuning'} has no search for the {what} of {method} on {plan.task} in size {plan.size} with these "
        f"settings and this data: run `gasam tune {plan.task} --method {method} --size {size}{wanted} "
        f"--out {shlex.quote(str(folder))}` first, with the same --epochs, --set and files and another --seed"
    )
