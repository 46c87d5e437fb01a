"""Pictures of analyses: seeds, baselines and the colours of planes."""

import pytest

from gasam.analysis import pictures
from gasam.lab import record as records
from gasam.lab.analyses.plane import LossPlane
from gasam.lab.analyses.spectrum import Spectrum
from gasam.lab.record import AnalysisRecord, Summary
from gasam.lab.report.labels import run_labels


def seeds_of(trained, *, epochs=(2,)):
    """Spectra of baselines that differ in their seed and in their epochs."""
    record = records.as_json(records.read(trained["digits baseline"]))
    run = {name: record[name] for name in Summary.model_fields}
    found = []
    for number in epochs:
        for seed in (1, 2, 3):
            settings = run["settings"] | {"epochs": number}
            values = [seed * place * number / 2 for place in (3, 2, 1)]
            each = Summary(**run | {"name": f"run {number} {seed}", "seed": seed, "settings": settings})
            found.append(
                AnalysisRecord(
                    schema=2,
                    kind="spectrum",
                    options=Spectrum(k=3).options(),
                    run=each,
                    found={"values": values, "converged": [True] * 3},
                )
            )
    return found


def test_seeds_are_one_line_with_error_bars_and_a_second_baseline_is_dashed(trained):
    found = seeds_of(trained, epochs=(2, 4))
    [figure] = Spectrum(k=3).draw(found, run_labels(found))
    [axes] = figure.axes
    first, second = (line for line in axes.lines if not line.get_label().startswith("_"))
    assert list(first.get_ydata()) == [6.0, 4.0, 2.0]
    assert [first.get_linestyle(), second.get_linestyle()] == ["-", "--"]
    assert [first.get_color(), second.get_color()] == [pictures.BASELINE, pictures.SECOND_BASELINE]
    bars = [container for container in axes.containers if container.has_yerr]
    heights = [segment[1][1] - segment[0][1] for segment in bars[0].lines[2][0].get_segments()]
    assert heights == pytest.approx([2 * 3.0, 2 * 2.0, 2 * 1.0]), "the standard deviation of 3, 6, 9 is 3"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "Baseline, 3 seeds",
        "Baseline (epochs 4), 3 seeds",
    ]


def test_one_point_for_each_run_is_a_list_of_dots(trained):
    found = seeds_of(trained)
    for each in found:
        each.found["values"] = each.found["values"][:1]
    [figure] = Spectrum(k=1).draw(found, run_labels(found))
    [axes] = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["Baseline, 3 seeds"]
    assert axes.get_xlabel() == "eigenvalue at number 1"


def test_planes_share_their_colours_and_six_are_in_a_figure(trained):
    record = records.as_json(records.read(trained["digits baseline"]))
    run = {name: record[name] for name in Summary.model_fields}
    found = []
    for number in range(1, 8):
        each = Summary.model_validate(run | {"name": f"run {number}", "seed": number})
        losses = [[number * (1.0 + x * x + y * y) for x in (-3, 0, 3)] for y in (-3, 0, 3)]
        grid = {"axis": [-1.0, 0.0, 1.0], "losses": losses}
        found.append(
            AnalysisRecord(schema=2, kind="plane", options=LossPlane(points=3).options(), run=each, found=grid)
        )
    figures = LossPlane(points=3).draw(found, run_labels(found))
    shown = [[axes for axes in figure.axes if axes.get_xlabel()] for figure in figures]
    assert list(map(len, shown)) == [6, 1]
    limits = {axes.collections[0].get_clim() for some in shown for axes in some}
    assert limits == {(1.0, 7 * 19.0)}
    bars = [axes for figure in figures for axes in figure.axes if axes.get_ylabel().startswith("loss")]
    assert [bar.get_ylabel() for bar in bars] == ["loss, logarithmic"] * 2, "one bar for all panels of a figure"
    assert [tick.get_text() for tick in bars[0].get_yticklabels()] == ["1", "10", "100"]
