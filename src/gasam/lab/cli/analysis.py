"""The commands that analyse finished runs, generated from the classes in `gasam.lab.analyses`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from gasam.lab import analyses
from gasam.lab.analyses import KINDS, Analysis
from gasam.lab.cli import options as opt
from gasam.lab.cli.grouping import keyword, with_parameters
from gasam.lab.cli.options import DataOptions, PlaceOptions
from gasam.lab.errors import InputError

Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Records of finished runs, such as runs/NAME.json.")]


@dataclass(frozen=True)
class AnalysisOutput:
    """The options for the output and the device of an analysis."""

    out: Annotated[Path, opt.option(opt.RUN, "Folder for the records and pictures.")] = opt.RUNS / "analysis"
    cpu: opt.Cpu = False
    json: opt.Json = False


def show(analysis: Analysis, runs: Runs, data: DataOptions, place: PlaceOptions, output: AnalysisOutput) -> None:
    """Measure the runs that have no record yet, then print and save the table, the picture and the summary."""
    from gasam.lab.cli.display import console, errors, print_json, print_table, say
    from gasam.lab.cli.measuring import measured
    from gasam.lab.report.comparison import labels as labels_of
    from gasam.lab.tables import as_json

    with place.engine(output.cpu) as engine, errors.status("loading") as status:
        found = measured(analysis, runs, output.out, data.origin, engine, status, cpu=output.cpu)
    labels = labels_of([each.run for each in found])
    files = analyses.save(analysis, found, labels, output.out)
    table, sentence = analysis.table(found, labels), analysis.sentence(found, labels)
    if output.json:
        print_json(as_json(table) | {"sentence": sentence, "files": files})
        return
    print_table(table)
    say(sentence)
    for file in files:
        console.print(f"saved: {file}", soft_wrap=True)


def generated(name: str) -> Callable[..., None]:
    """Make a command with the options of its kinds of analysis and the options that all analyses share."""
    kinds = sorted((kind for kind in KINDS.values() if kind.command == name), key=lambda kind: len(_required(kind)))
    own: dict[str, inspect.Parameter] = {}
    for kind in kinds:
        for parameter in _parameters(kind):
            own.setdefault(parameter.name, parameter)

    def command(
        runs: list[Path], data: DataOptions, place: PlaceOptions, output: AnalysisOutput, **chosen: Any
    ) -> None:
        show(_analysis(name, kinds, chosen), runs, data, place, output)

    command.__name__ = name
    command.__doc__ = kinds[0].__doc__
    groups = {"data": DataOptions, "place": PlaceOptions, "output": AnalysisOutput}
    shared = [keyword(name, None, group) for name, group in groups.items()]
    return with_parameters(command, [keyword("runs", inspect.Parameter.empty, Runs), *own.values(), *shared])


def _analysis(name: str, kinds: Sequence[type[Analysis]], given: Mapping[str, Any]) -> Analysis:
    """Make the analysis: of the kinds whose required options are given, the one that requires the most."""
    for kind in reversed(kinds):
        if all(given[flag] is not None for flag in _required(kind)):
            return kind.from_command(**{field: given[flag] for field, flag in _flags(kind).items()})
    raise InputError(f"{name} needs --{' and --'.join(_required(kinds[0]))}")


def _parameters(kind: type[Analysis]) -> Iterator[inspect.Parameter]:
    """The options of a kind as parameters of a function signature, from which typer reads them."""
    types, flags = get_type_hints(kind), _flags(kind)
    for field in fields(kind):
        described = field.metadata
        if described.get("text"):
            annotation, default = str, described["text"]
        elif field.default is MISSING:
            annotation, default = types[field.name] | None, None
        else:
            annotation, default = types[field.name], field.default
        shown = typer.Option(help=described.get("help"), rich_help_panel=described.get("panel"))
        yield keyword(flags[field.name], default, Annotated[annotation, shown])


def _flags(kind: type[Analysis]) -> dict[str, str]:
    """The name of each field on the command line."""
    return {field.name: field.metadata.get("flag") or field.name for field in fields(kind)}


def _required(kind: type[Analysis]) -> list[str]:
    return [_flags(kind)[field.name] for field in fields(kind) if field.default is MISSING]


COMMANDS = [generated(name) for name in dict.fromkeys(kind.command for kind in KINDS.values()) if name]
