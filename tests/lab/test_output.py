"""Tables as Markdown, CSV, JSON and text; charts as pictures."""

import json
import math

import pytest
from rich.console import Console

from gasam.lab.output import FEW, Table, intervals, lines, plane, save

ROWS = [{"method": "a|b", "score": "1.5", "empty": ""}, {"method": "c", "score": "-2", "empty": ""}]
METHODS = {"Baseline": "baseline", "GA-SAM": "ga-sam"}


def test_a_table_leaves_out_empty_columns_and_aligns_numbers():
    table = Table("t", ROWS, notes=["read this"])
    assert table.markdown() == "| method | score |\n| --- | ---: |\n| a\\|b | 1.5 |\n| c | -2 |\n\n- read this\n"
    assert Table("t", []).markdown() == "\n"


def test_csv_and_json_hold_the_values_where_there_are_some():
    values = [{"score": 1.5, "seeds": 3}, {"score": None, "seeds": 1}]
    assert Table("t", ROWS).as_json()["rows"] == ROWS
    table = Table("t", ROWS, values=values)
    assert table.as_json() == {"title": "t", "rows": values, "notes": []}
    assert table.csv() == "score,seeds\n1.5,3\n,1\n"


def test_a_table_fits_the_terminal_without_lost_letters():
    console = Console(width=40, record=True)
    console.print(Table("t", [{"method": "a very long name " * 4, "score": "1.0 ± 0.1"}]).terminal())
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.count("long") == 4


def drawn(seeds, **options):
    rows = [
        {"label": label, "seed": seed, "x": x, "y": x + seed + (label == "GA-SAM")}
        for label in METHODS
        for seed in range(seeds)
        for x in (0, 1, 10)
    ]
    return lines(rows, METHODS, title="t", x="x", y="y", **options)


def test_few_seeds_are_lines_and_more_are_a_mean_with_its_ends():
    few, many = drawn(FEW - 1).values, drawn(FEW).values
    assert {row["line"] for row in few} == {f"{label} {seed}" for label in METHODS for seed in range(FEW - 1)}
    [start] = [row for row in many if row["line"] == "GA-SAM" and row["x"] == 0]
    assert (start["y"], start["low"], start["high"]) == (2, 1, 3)


def test_what_is_not_a_number_is_left_out():
    rows = [{"label": "Baseline", "seed": 1, "x": 0, "y": y} for y in (None, math.nan, math.inf, 2.0)]
    assert [row["y"] for row in lines(rows, METHODS, title="", x="", y="").values] == [2.0]
    found = plane([{"x": 0, "y": 0, "value": math.inf}], title="", x="", y="", value="loss", log=True, domain=None)
    json.dumps(found.spec, allow_nan=False)


@pytest.mark.parametrize("log", ["", "xy"])
def test_charts_are_drawn_side_by_side_as_png_and_svg(tmp_path, log):
    mean = {"label": "GA-SAM", "kind": "mean", "value": 1.0, "low": 0.5, "high": 1.5, "text": "+1.0 [+0.5, +1.5]"}
    seed = {"label": "GA-SAM", "kind": "seed", "value": 1.0}
    difference = intervals([mean, seed], METHODS, title="difference", x="points")
    points = [{"x": x, "y": y, "value": 1 + x} for x in (0, 1) for y in (0, 1)]
    grid = plane(points, title="p", x="", y="", value="v", log=bool(log), domain=(1, 2))
    files = save([drawn(3, log=log, marks=[{"y": 2, "text": "chance"}]), difference, grid], tmp_path / "a.b")
    assert [file.name for file in files] == ["a.b.png", "a.b.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    svg = files[1].read_text()
    for text in ("GA-SAM", "+1.0 [+0.5, +1.5]", "chance", "difference"):
        assert text in svg
