"""The sections about searches: whether one is needed, for the settings of training, for the size of the walk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from gasam.lab.methods import METHODS
from gasam.lab.report.contents import Contents
from gasam.lab.report.one_setting import all_regrets, one_setting_table
from gasam.lab.report.regret import regret_table
from gasam.lab.report.search_order import order_table
from gasam.lab.report.section import Section, commit, links, named
from gasam.lab.report.settings_search import settings_table
from gasam.lab.report.tuning import tuning_figures, tuning_table
from gasam.lab.search.finding import Finding
from gasam.lab.search.settings_finding import SettingsFinding
from gasam.lab.tables import markdown
from gasam.lab.tasks import find


def one_setting_sections(contents: Contents) -> Iterator[Section]:
    """What walks lose that were not searched for a task, if several tasks have them."""
    if len(found := all_regrets(contents)) > 1:
        yield Section("One setting for all tasks", [markdown(one_setting_table(found))])


def settings_sections(contents: Contents) -> Iterator[Section]:
    """The searches for settings of training: the best trials of each."""
    for found in contents.settings:
        commits = ", ".join(dict.fromkeys(commit(one.commit, one.dirty) for one in found.trials))
        what = "settings and walk" if found.joint else "settings"
        title = f"{found.task}, size {found.size}: {what} of {METHODS[found.method].title}"
        order = order_table(contents, found) if found.joint else None
        parts = [markdown(settings_table(found)), f"From commits {commits}. To repeat it: `{_tune_settings(found)}`."]
        yield Section(title, [*parts, f"{order.title}\n\n{markdown(order)}"] if order else parts)


def _tune_settings(found: SettingsFinding) -> str:
    size, seeds = found.size, max(len(found.scores(one)) for one in found.trials)
    quantity = "joint" if found.joint else "settings"
    command = f"gasam tune {found.task} --method {found.method} --size {size} --quantity {quantity}"
    given = "".join(f" --set {name}={json.dumps(value)}" for name, value in found.shared.items())
    return f"{command} --trials {len(found.trials)} --seeds {seeds} --seed {found.seed} --jobs {found.parallel}{given}"


def search_sections(contents: Contents) -> Iterator[Section]:
    """Comparable searches together: a table, a picture, the regret of the search."""
    numbers, remarked = Counter[tuple[str, str]](), set[str]()
    for some in _comparable(contents.findings):
        task, size = some[0].task, some[0].size
        numbers[task, size] += 1
        number = numbers[task, size]
        is_first = task not in remarked
        remarked.add(task)
        name = f"tuning-{task}-{size}" + (f"-{number}" if number > 1 else "")
        about = f"{task} is here to measure the search: it is no evidence for the paper's claims."
        regret, figures = regret_table(some, contents.records), tuning_figures(some)
        tries = [one for found in some for one in (found.baseline, *found.tries)]
        commits = ", ".join(dict.fromkeys(commit(one.commit, one.dirty) for one in tries))
        parts = [
            about if find(task).kind != "paper" else "",
            markdown(tuning_table(some)),
            links(name, figures, f"validation against the size of the walk on {task}"),
            markdown(regret) if regret else "",
            contents.comment("search", task) if is_first else "",
            f"From commits {commits}. To repeat the first search: `{_tune(some[0])}`.",
        ]
        yield Section(f"{task}, size {size}: {some[0].quantity}s", parts, named(name, figures))


def _comparable(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Searches of one task, size, seed, quantity, data and settings, in the order of the methods."""
    order = list(METHODS)
    sheets: dict[str, list[Finding]] = {}
    for found in sorted(findings, key=lambda each: (each.task, each.size, order.index(each.method), each.full_grid)):
        same = [found.task, found.size, found.seed, found.quantity, found.data, found.settings]
        sheets.setdefault(json.dumps(same, sort_keys=True), []).append(found)
    return list(sheets.values())


def _tune(found: Finding) -> str:
    norms = ",".join(dict.fromkeys(f"{one.norm:g}" for one in found.tries))
    low, high = found.exponents
    extent = f"--full-grid --exponents={low},{high}" if found.full_grid else f"--trials {len(found.tries)}"
    command = f"gasam tune {found.task} --method {found.method} --size {found.size}"
    return f"{command} --quantity {found.quantity} --norms {norms} {extent}"
