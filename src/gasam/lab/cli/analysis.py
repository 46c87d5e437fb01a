"""The commands that analyse finished runs: each says what is measured, and all share how it is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from gasam.lab.cli import options as opt

if TYPE_CHECKING:
    from gasam.lab.analyses import Analysis

ON = "The examples"
Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Records of finished runs, runs/NAME.json.")]
Split = Annotated[str, typer.Option(help="train, valid or test: where the loss is taken.", rich_help_panel=ON)]
Rows = Annotated[int, typer.Option(help="How many examples of it, always the same.", rich_help_panel=ON)]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.", rich_help_panel=opt.RUN)]
Out = Annotated[Path, typer.Option(help="Folder of the records and pictures.", rich_help_panel=opt.RUN)]
Norm = Annotated[str, typer.Option(help="2, inf, or any number > 1.")]


def show(
    analysis: Analysis,
    runs: Runs,
    train: opt.Train = None,
    valid: opt.Valid = None,
    test: opt.Test = None,
    text_column: opt.TextColumn = "text",
    label_column: opt.LabelColumn = "label",
    data_dir: opt.DataDir = None,
    out: Out = Path("runs") / "analysis",
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """Measure what is missing, then a table, a picture and a sentence."""
    from gasam.lab import analyses
    from gasam.lab.cli.display import console, errors, print_json, print_table
    from gasam.lab.report.labels import run_labels
    from gasam.lab.tables import as_json
    from gasam.lab.tasks import Origin

    origin = Origin(data_dir, train, valid, test, text_column, label_column)
    found = []
    with errors.status("loading") as status:
        for number, run in enumerate(runs, 1):
            told = f"{number}/{len(runs)} {run.stem}"
            watch = lambda text, told=told: status.update(f"{told}: {text}")  # noqa: E731
            found.append(analyses.run(analysis, run, out, origin, cpu=cpu, watch=watch))
            if not errors.is_terminal:
                errors.print(f"{told}: done", soft_wrap=True)
    labels = run_labels(found)
    files = analyses.save(analysis, found, labels, out)
    if json:
        print_json(
            as_json(analysis.table(found, labels)) | {"sentence": analysis.sentence(found, labels), "files": files}
        )
        return
    print_table(analysis.table(found, labels))
    console.print(analysis.sentence(found, labels), soft_wrap=True)
    console.print(f"saved: {', '.join(files)}", soft_wrap=True)


def command(build: Callable[..., Analysis]) -> Callable[..., None]:
    """A command with the options of `build`, which makes an analysis of them, and those of `show`, which runs it."""
    own, shared = inspect.signature(build).parameters, dict(inspect.signature(show).parameters)
    del shared["analysis"]

    @wraps(build)
    def run(**given: Any) -> None:
        show(build(**{name: given.pop(name) for name in own}), **given)

    parameters = [shared.pop("runs"), *own.values(), *shared.values()]
    hints = get_type_hints(show, {"Analysis": object} | globals(), include_extras=True) | get_type_hints(
        build, {"Analysis": object} | globals(), include_extras=True
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=keyword, annotation=hints[parameter.name]) for parameter in parameters]
    )
    run.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters}
    del run.__wrapped__
    return run


@command
def attack(
    norm: Norm = "2",
    radii: Annotated[
        str, typer.Option(help="collapse (searched for), table4 (the paper's), or numbers with commas.")
    ] = "collapse",
    steps: Annotated[int, typer.Option(help="K, the steps of an attack.")] = 10,
    restarts: Annotated[int, typer.Option(help="Further walks from random points of the ball.")] = 1,
    draws: Annotated[int, typer.Option(help="Random corruptions at each radius.")] = 1,
    judged: Annotated[
        int | None, typer.Option(help="Take the metric on that many test examples only.", rich_help_panel=ON)
    ] = None,
    split: Split = "train",
    rows: Rows = 512,
    seed: Seed = 0,
) -> Analysis:
    """How much of the metric is left under corrupted weights: adversarial, random, quantised, pruned.

    `gasam attack runs/A.json runs/B.json --norm inf --radii table4`
    """
    from gasam.lab.analyses.robustness import Robustness, radii_named

    length = opt.norm(norm)
    return Robustness(
        norm=length, radii=radii_named(radii, length), steps=steps, restarts=restarts, draws=draws, judged=judged,
        split=split, rows=rows, seed=seed,
    )  # fmt: skip


@command
def sharpness(
    epsilon: Annotated[str, typer.Option(help="Radii of the ball, with commas.")] = "0.01,0.05,0.1",
    norm: Norm = "2",
    steps: Annotated[int, typer.Option(help="K, the steps of a walk.")] = 10,
    scale: Annotated[str, typer.Option(help="T, e.g. gradient_strength.")] = "one",
    granularity: Annotated[str, typer.Option(help="element, filter, layer, module or model.")] = "model",
    draws: Annotated[int, typer.Option(help="Random points for the average, in each batch.")] = 8,
    split: Split = "train",
    rows: Rows = 512,
    seed: Seed = 0,
) -> Analysis:
    """The rise of the loss in a ball around the weights: the worst and the average, with confidence over batches.

    `gasam sharpness runs/A.json runs/B.json --epsilon 0.05,0.1`
    """
    from gasam.lab.analyses.sharpness import Rises

    return Rises(
        epsilons=opt.numbers("--epsilon", epsilon), norm=opt.norm(norm), steps=steps, scale=scale,
        granularity=granularity, draws=draws, split=split, rows=rows, seed=seed,
    )  # fmt: skip


@command
def spectrum(
    matrix: Annotated[
        str, typer.Option(help="empirical_fisher (the paper's), fisher or hessian.")
    ] = "empirical_fisher",
    k: Annotated[int, typer.Option(help="How many of the largest eigenvalues.")] = 50,
    split: Split = "train",
    rows: Rows = 512,
    seed: Seed = 0,
) -> Analysis:
    """The largest eigenvalues of the loss's curvature at the weights.

    `gasam spectrum runs/A.json runs/B.json --matrix hessian --k 20`
    """
    from gasam.lab.analyses.spectrum import Spectrum

    return Spectrum(matrix=matrix, k=k, split=split, rows=rows, seed=seed)


@command
def landscape(
    to: Annotated[Path | None, typer.Option(help="The loss along the line to this run, instead of a plane.")] = None,
    radius: Annotated[float, typer.Option(help="How far the plane goes, in lengths of each filter.")] = 1.0,
    points: Annotated[int, typer.Option(help="Places in each direction; odd for a plane.")] = 15,
    start: Annotated[float, typer.Option(help="Where the line begins; 0 is the run, 1 the other.")] = -0.5,
    stop: Annotated[float, typer.Option(help="Where the line ends.")] = 1.5,
    split: Split = "train",
    rows: Rows = 512,
    seed: Seed = 0,
) -> Analysis:
    """The loss around the weights: over a filter-normalised plane, or along the line to another run.

    `gasam landscape runs/A.json runs/B.json`, `gasam landscape runs/A.json --to runs/B.json`
    """
    from gasam.lab.analyses.landscape import Plane, Towards

    if to is None:
        return Plane(radius=radius, points=points, split=split, rows=rows, seed=seed)
    return Towards(other=str(to), start=start, stop=stop, points=points, split=split, rows=rows, seed=seed)


COMMANDS = (attack, sharpness, spectrum, landscape)
