"""The commands that analyse finished runs; `commands` puts them beside the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gasam.cli import options as opt
from gasam.experiments.errors import InputError

if TYPE_CHECKING:
    from gasam.experiments.analyses import Analysis
    from gasam.experiments.tasks import Origin

ON = "The examples"
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Records of finished runs, runs/NAME.json.")]
Split = Annotated[str, typer.Option(help="train, valid or test: where the loss is taken.", rich_help_panel=ON)]
Rows = Annotated[int, typer.Option(help="How many examples of it, always the same.", rich_help_panel=ON)]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.", rich_help_panel=opt.RUN)]
Out = Annotated[Path, typer.Option(help="Folder of the records and pictures.", rich_help_panel=opt.RUN)]
FOLDER = Path("runs") / "analysis"


def attack(
    runs: Runs,
    norm: Annotated[str, typer.Option(help="2, inf, or any number > 1.")] = "2",
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
    train: opt.Train = None,
    valid: opt.Valid = None,
    test: opt.Test = None,
    data_dir: opt.DataDir = None,
    out: Out = FOLDER,
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """How much of the metric is left under corrupted weights: adversarial, random, quantised, pruned.

    `gasam attack runs/A.json runs/B.json --norm inf --radii table4`
    """
    from gasam.experiments.analyses.robustness import Robustness, radii_named

    length = opt.norm(norm)
    assert length is not None
    analysis = Robustness(
        norm=length, radii=radii_named(radii, length), steps=steps, restarts=restarts, draws=draws, judged=judged,
        split=split, rows=rows, seed=seed,
    )  # fmt: skip
    _show(analysis, runs, _origin(data_dir, train, valid, test), out, cpu, json)


def sharpness(
    runs: Runs,
    epsilon: Annotated[str, typer.Option(help="Radii of the ball, with commas.")] = "0.01,0.05,0.1",
    norm: Annotated[str, typer.Option(help="2, inf, or any number > 1.")] = "2",
    steps: Annotated[int, typer.Option(help="K, the steps of a walk.")] = 10,
    scale: Annotated[str, typer.Option(help="T, e.g. gradient_strength.")] = "one",
    granularity: Annotated[str, typer.Option(help="element, filter, layer, module or model.")] = "model",
    draws: Annotated[int, typer.Option(help="Random points for the average, in each batch.")] = 8,
    split: Split = "train",
    rows: Rows = 512,
    seed: Seed = 0,
    train: opt.Train = None,
    valid: opt.Valid = None,
    test: opt.Test = None,
    data_dir: opt.DataDir = None,
    out: Out = FOLDER,
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """The rise of the loss in a ball around the weights: the worst and the average, with confidence over batches.

    `gasam sharpness runs/A.json runs/B.json --epsilon 0.05,0.1`
    """
    from gasam.experiments.analyses.sharpness import Rises

    length = opt.norm(norm)
    assert length is not None
    analysis = Rises(
        epsilons=opt.numbers("--epsilon", epsilon), norm=length, steps=steps, scale=scale, granularity=granularity,
        draws=draws, split=split, rows=rows, seed=seed,
    )  # fmt: skip
    _show(analysis, runs, _origin(data_dir, train, valid, test), out, cpu, json)


def spectrum(
    runs: Runs,
    matrix: Annotated[
        str, typer.Option(help="empirical_fisher (the paper's), fisher or hessian.")
    ] = "empirical_fisher",
    k: Annotated[int, typer.Option(help="How many of the largest eigenvalues.")] = 50,
    split: Split = "train",
    rows: Rows = 512,
    seed: Seed = 0,
    train: opt.Train = None,
    valid: opt.Valid = None,
    test: opt.Test = None,
    data_dir: opt.DataDir = None,
    out: Out = FOLDER,
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """The largest eigenvalues of the loss's curvature at the weights.

    `gasam spectrum runs/A.json runs/B.json --matrix hessian --k 20`
    """
    from gasam.experiments.analyses.spectrum import Spectrum

    analysis = Spectrum(matrix=matrix, k=k, split=split, rows=rows, seed=seed)
    _show(analysis, runs, _origin(data_dir, train, valid, test), out, cpu, json)


def landscape(
    runs: Runs,
    to: Annotated[
        Path | None, typer.Option(help="The loss along the line to this run instead of over a plane.")
    ] = None,
    radius: Annotated[float, typer.Option(help="How far the plane goes, in lengths of each filter.")] = 1.0,
    points: Annotated[int, typer.Option(help="Places in each direction; odd for a plane.")] = 15,
    start: Annotated[float, typer.Option(help="Where the line begins; 0 is the run, 1 the other.")] = -0.5,
    stop: Annotated[float, typer.Option(help="Where the line ends.")] = 1.5,
    split: Split = "train",
    rows: Rows = 512,
    seed: Seed = 0,
    train: opt.Train = None,
    valid: opt.Valid = None,
    test: opt.Test = None,
    data_dir: opt.DataDir = None,
    out: Out = FOLDER,
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """The loss around the weights: over a filter-normalised plane, or along the line to another run.

    `gasam landscape runs/A.json runs/B.json`, `gasam landscape runs/A.json --to runs/B.json`
    """
    from gasam.experiments.analyses.landscape import Plane, Towards

    origin = _origin(data_dir, train, valid, test)
    if to is None:
        plane = Plane(radius=radius, points=points, split=split, rows=rows, seed=seed)
        _show(plane, runs, origin, out, cpu, json)
    else:
        line = Towards(other=str(to), start=start, stop=stop, points=points, split=split, rows=rows, seed=seed)
        _show(line, runs, origin, out, cpu, json)


COMMANDS = (attack, sharpness, spectrum, landscape)


def _origin(data_dir: Path | None, train: str | None, valid: str | None, test: str | None) -> Origin:
    from gasam.experiments.tasks import Origin

    return Origin(data_dir, train, valid, test)


def _show(analysis: Analysis, runs: list[Path], origin: Origin, out: Path, cpu: bool, json: bool) -> None:
    """Measure what is missing, then a table, a picture and a sentence."""
    from gasam.cli.display import console, errors, print_json, print_table
    from gasam.experiments import analyses
    from gasam.experiments.report.tables import as_json

    if not runs:
        raise InputError("RUN must be the record of a finished run, such as runs/NAME.json: none was given")
    found = []
    with errors.status("loading") as status:
        for number, run in enumerate(runs, 1):
            told = f"{number}/{len(runs)} {run.stem}"
            watch = lambda text, told=told: status.update(f"{told}: {text}")  # noqa: E731
            found.append(analyses.run(analysis, run, out, origin, cpu=cpu, watch=watch))
            if not errors.is_terminal:
                errors.print(f"{told}: done", soft_wrap=True)
    files = analyses.save(analysis, found, out)
    if json:
        print_json(as_json(analysis.table(found)) | {"sentence": analysis.sentence(found), "files": files})
        return
    print_table(analysis.table(found))
    console.print(analysis.sentence(found), soft_wrap=True)
    console.print(f"saved: {', '.join(files)}", soft_wrap=True)
