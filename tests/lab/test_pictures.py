"""Pictures: they show what they are given, the same bytes every time, and say what is missing."""

import math
import subprocess
import sys
from itertools import pairwise

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from gasam.analysis.pictures import (
    OKABE_ITO,
    PlotLine,
    draw_lines,
    in_sheets,
    level_line,
    round_numbers,
    save,
    save_all,
    sheet,
)


def drawn(*lines, **described):
    figure, [axes] = sheet(1)
    draw_lines(axes, lines, **({"title": "title", "x": "across", "y": "up"} | described))
    return figure, axes


@pytest.mark.parametrize(("panels", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2)])
def test_a_sheet_has_as_many_panels_as_asked_for(panels, rows, columns):
    figure, axes = sheet(panels)
    assert len(axes) == panels
    assert all(isinstance(each, Axes) and each.get_visible() for each in axes)
    assert axes[0].get_gridspec().get_geometry() == (rows, columns)
    assert sum(each.get_visible() for each in figure.axes) == panels


def test_lines_are_drawn_as_given_with_gaps_where_nothing_was_measured():
    _, axes = drawn(
        PlotLine("a", [1, 2, 3], [4.0, None, 6.0], marked=2.5), PlotLine("b", [1, 2], [5.0, 7.0], "#123456", "--")
    )
    first, mark, second = axes.lines
    assert list(first.get_xdata()) == [1, 2, 3]
    assert [None if math.isnan(y) else y for y in first.get_ydata()] == [4.0, None, 6.0]
    assert list(mark.get_xdata()) == [2.5, 2.5]
    assert (first.get_color(), mark.get_color(), second.get_color()) == (OKABE_ITO[0], OKABE_ITO[0], "#123456")
    assert second.get_linestyle() == "--"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert (axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()) == ("title", "across", "up")


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_scales_are_those_asked_for(log):
    _, axes = drawn(PlotLine("a", [1, 10], [2.0, 20.0]), log=log)
    assert (axes.get_xscale() == "log", axes.get_yscale() == "log") == ("x" in log, "y" in log)


@pytest.mark.parametrize("heights", [[0.0, 0.0], [None, None], [-1.0, math.inf]])
def test_what_has_no_logarithm_is_drawn_straight_and_without_a_warning(heights, tmp_path):
    figure, axes = drawn(PlotLine("a", [1, 2], heights), log="xy")
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert all(file.stat().st_size > 1000 for file in save(figure, tmp_path / "p"))


@pytest.mark.parametrize(
    ("low", "high"), [(1e-6, 1.0), (0.06, 1.1), (0.05, 0.5), (0.17, 0.62), (3e-4, 4e-4), (100, 1e12), (2.0, 2.2)]
)
def test_labels_of_a_logarithmic_axis_are_few_and_different(low, high, tmp_path):
    figure, axes = drawn(PlotLine("a", [low, high], [low, high]), log="xy")
    save(figure, tmp_path / "p", ["png"])
    labels = [tick.get_text() for tick in axes.get_xticklabels() if low <= tick.get_position()[0] <= high]
    assert 2 <= len(labels) <= 9
    assert len(set(labels)) == len(labels)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [tick.get_window_extent(renderer) for tick in axes.get_xticklabels() if tick.get_text()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), "labels overlap"


def test_round_numbers_are_in_the_range():
    assert round_numbers(1e-3, 1.0) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0])
    assert round_numbers(0.05, 1.0) == pytest.approx([0.1, 0.3, 1.0])
    assert all(0.171 <= number <= 0.183 for number in round_numbers(0.171, 0.183))


def test_a_logarithmic_axis_may_begin_at_zero(tmp_path):
    figure, axes = drawn(PlotLine("a", [0.0, 0.125, 0.25, 0.5, 1.0], [5.0, 4.0, 3.0, 2.0, 1.0]), log="x")
    save(figure, tmp_path / "p", ["png"])
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert (labels[0], labels[-1]) == ("0", "1")
    assert axes.get_xscale() == "symlog"
    assert -0.125 < axes.get_xlim()[0] < 0


def test_a_level_is_a_dotted_line_with_its_label():
    _, axes = drawn(PlotLine("a", [1, 2], [3.0, 4.0]))
    level_line(axes, 3.5, "chance: 3.5")
    assert axes.lines[-1].get_linestyle() == ":"
    assert [text.get_text() for text in axes.texts] == ["chance: 3.5"]


@pytest.mark.parametrize(("points", "bars"), [(5, True), (50, False)])
def test_errors_are_bars_or_a_band_around_many_points(points, bars):
    _, axes = drawn(PlotLine("a", range(points), [1.0] * points, errors=[0.5] * points))
    assert bool(axes.containers) == bars
    low, high = axes.get_ylim()
    assert (low <= 0.5, high >= 1.5) == (True, True)


def test_many_panels_are_several_figures(tmp_path):
    assert [len(range(14)[some]) for some in in_sheets(14)] == [6, 6, 2]
    assert [len(range(4)[some]) for some in in_sheets(4, each=3)] == [2, 2]
    files = save_all([sheet(1)[0], sheet(1)[0]], tmp_path / "p", ["png"])
    assert [file.name for file in files] == ["p.png", "p-2.png"]


def test_the_same_figure_gives_the_same_bytes_as_png_and_svg(tmp_path):
    files = []
    for name in ("one.tiny", "two.tiny"):
        figure, [left, right] = sheet(2)
        draw_lines(left, [PlotLine("a", [1, 2], [3.0, 4.0])], title="t", x="x", y="y", log="xy")
        draw_lines(right, [PlotLine("b", [1, 2], [5.0, 4.0])], title="p", x="x", y="y")
        files.append(save(figure, tmp_path / "folder" / name))
    assert [file.name for file in files[0]] == ["one.tiny.png", "one.tiny.svg"]
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert files[0][0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in files[0][1].read_bytes()


def test_without_matplotlib_the_extra_is_named():
    code = "import sys; sys.modules['matplotlib'] = None; import gasam.analysis.pictures"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: pictures need matplotlib: run `pip install 'gasam[analysis]'`" in done.stderr
