"""From the options of a search, as the command and the Python function take them, to its question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gasam.lab.errors import InputError
from gasam.lab.search.question import EXPONENTS, Question, usual_norms, usual_quantity
from gasam.lab.search.settings_question import SettingsQuestion


def ask(
    method: str,
    quantity: str | None,
    *,
    of_walk: Mapping[str, Any],
    of_settings: Mapping[str, Any],
    trials: int | None,
    **about: Any,
) -> Question | SettingsQuestion:
    """The question of a search for a walk or for settings of training. Options that are None have their defaults.

    Args:
        method: The name of the method.
        quantity: "budget", "epsilon", "settings" or "joint"; by default settings for the baseline, else the walk.
        of_walk: The options that only a search for a walk has, see `Question`.
        of_settings: The options that only a search for settings has, see `SettingsQuestion`.
        trials: The maximum number of trials.
        about: What both kinds of search have, such as the task and the seed.
    """
    quantity = quantity or ("settings" if method == "baseline" else usual_quantity(method))
    settings = quantity in ("settings", "joint")
    _refuse(of_walk if settings else of_settings, "budget or epsilon" if settings else "settings or joint")
    if quantity == "epsilon":
        _refuse({"cap": of_walk.get("cap")}, "budget")
    given = {"trials": trials, **(of_settings if settings else of_walk)}
    options = {name: value for name, value in given.items() if value is not None} | about
    if settings:
        return SettingsQuestion(method=method, joint=quantity == "joint", **options)
    usual = {"norms": usual_norms(method, quantity), "exponents": EXPONENTS.get(quantity, (0, 0))}
    return Question(method=method, quantity=quantity, **{**usual, **options})


def _refuse(given: Mapping[str, Any], quantity: str) -> None:
    """Refuse the options of the other kind of search, which would be ignored."""
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} needs --quantity {quantity}: leave out one of the two")
