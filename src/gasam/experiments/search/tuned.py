"""Plans with the walk that a search chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gasam.experiments.errors import InputError
from gasam.experiments.methods import choose
from gasam.experiments.plan import Plan
from gasam.experiments.search.finding import Finding, files, in_words, read
from gasam.experiments.search.strategy import NORMS
from gasam.experiments.sizes import for_users, uses_recommended_walk

NO_BUDGET = {"budget": None, "cap": None, "walk_progress": None}


def with_tuned_walk(plan: Plan, folder: Path, times: float | None = None) -> Plan:
    """The plan with the walk that was found for its method with its settings and data; the baseline has none.

    Args:
        plan: What is to be trained.
        folder: The folder of records whose `tuning` folder holds the searches.
        times: Use this multiple of the epsilon that was found in the plan's own norm.
    """
    if plan.choice.moved == "nothing":
        return plan
    if times is None and plan.choice.epsilon_source == "command line":
        raise InputError(
            f"{plan.choice.method} is given a radius and is to use the tuned one: leave out one of the two"
        )
    norms = NORMS if times is None else (plan.choice.norm,)
    found = _found_for(plan, folder, norms, ("epsilon",) if times is not None else _preferred(plan))
    best = None if found is None else found.chosen(norms)
    if found is None or best is None:
        raise _nothing_found(plan, folder, times)
    tried = next(part.tried for part in found.by_norm() if part.chosen() == best)
    walk: dict[str, Any] = NO_BUDGET | {"epsilon": 0.0} | found.options(best)
    if times is not None:
        walk["epsilon"] = float(f"{best.value * times:.6g}")
    source = f"tuned on validation{_for_whom(plan, walk)}, {tried if times is None else f'{times:g} x'}"
    return replace(plan, choice=replace(plan.choice, **walk, epsilon_source=source))


def _preferred(plan: Plan) -> tuple[str, ...]:
    """Which search to use where both a budget and an epsilon were searched."""
    return ("budget", "epsilon") if uses_recommended_walk(plan.task, plan.size) else ("epsilon", "budget")


def _found_for(plan: Plan, folder: Path, norms: Sequence[float], quantities: Sequence[str]) -> Finding | None:
    data_hash = plan.data()["hash"]
    serving = [file for file in files(folder) if read(file).serves(plan, data_hash)]
    for quantity in quantities:
        for file in serving:
            if read(file).quantity == quantity:
                found = _at_its_end(file)
                if found.chosen(norms):
                    return found
    return None


def _nothing_found(plan: Plan, folder: Path, times: float | None) -> InputError:
    method, size = plan.choice.method, for_users(plan.task, plan.size)
    wanted = "" if times is None else f" --quantity epsilon --norms {in_words(plan.choice.norm)}"
    what = "budget or epsilon" if times is None else "epsilon"
    return InputError(
        f"nothing in {folder / 'tuning'} says which {what} {method} needs on {plan.task} in size {plan.size} with "
        f"these settings and this data: run `gasam tune {plan.task} --method {method} --size {size}{wanted} "
        f"--out {folder}` first, with the same --epochs, --set and files and another --seed"
    )


def _for_whom(plan: Plan, walk: dict[str, Any]) -> str:
    """A search is for the method's usual walk, with fresh noise: another one may borrow its radius, and says so."""
    given = {name: value for name, value in walk.items() if value is not None}
    if "budget" in given:
        del given["epsilon"]
    usual = choose(plan.choice.method, plan.task, plan.settings.epochs, given, plan.size)
    ours = replace(plan.choice, **walk)
    return "" if ours.identity() == usual.identity() else " for the usual walk"


def _at_its_end(file: Path) -> Finding:
    """What a search has found so far is not yet what it will choose."""
    lock = file.with_suffix(".lock")
    if not lock.exists():
        return read(file)
    try:
        with FileLock(lock, timeout=1):
            return read(file)
    except Timeout:
        raise InputError(f"{file.stem} is still being tuned: wait for it, or use its radius with --epsilon") from None
