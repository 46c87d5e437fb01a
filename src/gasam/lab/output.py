"""Tables and charts. A table is Markdown, CSV, JSON or text; a chart is Vega-Lite, for pages and for pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from string import digits
from typing import Any

from rich.table import Table as RichTable

from gasam.lab.storage import replaced, write_json

Spec = dict[str, Any]
Row = Mapping[str, Any]
FEW = 3
"""With fewer seeds nothing is decided: the seeds themselves are shown instead of a mean with an interval."""
BASELINE, GA_SAM = "#4D4D4D", "#D55E00"
OTHERS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6D00", "#5D3A9B", "#882255")
"""The colours of Okabe and Ito, which colour-blind readers can distinguish."""
DASHES = ([1, 0], [6, 3], [6, 3, 1, 3], [2, 2])
WIDTH, HEIGHT = 400, 300
CONFIG: Spec = {
    "background": "white",
    "view": {"stroke": None},
    "axis": {"gridColor": "#e6e8eb", "domainColor": "#9aa1ab", "tickColor": "#9aa1ab", "titleFontWeight": 400},
    "axisX": {"grid": False, "tickCount": 5, "labelOverlap": True},
    "axisY": {"tickCount": 5, "labelOverlap": True},
    "title": {"anchor": "start", "fontSize": 13, "offset": 10},
    "legend": {"title": None, "orient": "bottom", "columns": 3, "labelLimit": 320, "symbolType": "stroke"},
}


@dataclass(frozen=True)
class Table:
    """A table. Columns that are empty in every row are not shown."""

    title: str
    rows: Sequence[Mapping[str, str]]  # the text of each column by its title
    notes: Sequence[str] = ()  # sentences below the table
    values: Sequence[Mapping[str, Any]] = ()  # the rows for JSON, with numbers; by default the rows themselves

    @property
    def columns(self) -> list[str]:
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if any(row.get(name) for row in self.rows)]

    def holds_numbers(self, column: str) -> bool:
        """Whether most cells of the column begin with a number."""
        texts = [row[column] for row in self.rows if row.get(column)]
        return 2 * sum(text.startswith((*digits, "+", "-")) for text in texts) > len(texts)

    def cells(self) -> list[list[str]]:
        return [[row.get(column, "") for column in self.columns] for row in self.rows]

    def markdown(self) -> str:
        """The rows and notes without the title, because pages have their own headings."""
        rule = ["---:" if self.holds_numbers(column) else "---" for column in self.columns]
        lines = [self.columns, rule, *self.cells()] if self.rows else []
        text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([*text, *notes]) + "\n"

    def csv(self) -> str:
        """The values, or else the cells; a value that does not exist is empty."""
        from pandas import DataFrame

        return str(DataFrame(self.values or self.rows).to_csv(index=False))

    def as_json(self) -> dict[str, Any]:
        return {"title": self.title, "rows": [dict(row) for row in self.values or self.rows], "notes": list(self.notes)}

    def save(self, file: Path) -> list[Path]:
        """Write JSON and Markdown, with the name of the file and these endings."""
        numbers, text = (file.with_name(f"{file.name}.{ending}") for ending in ("json", "md"))
        write_json(numbers, self.as_json())
        with replaced(text) as partial:
            partial.write_text(self.markdown(), encoding="utf-8")
        return [numbers, text]

    def terminal(self) -> RichTable:
        table = RichTable()
        for column in self.columns:
            table.add_column(column, justify="right" if self.holds_numbers(column) else "left", overflow="fold")
        for cells in self.cells():
            table.add_row(*cells)
        return table


@dataclass(frozen=True)
class Chart:
    """One panel: a Vega-Lite specification without a width, which a page or a picture gives it."""

    title: str
    spec: Spec

    @property
    def values(self) -> list[dict[str, Any]]:
        """The points that are drawn."""
        return list(self.spec["data"]["values"])


def save(charts: Sequence[Chart], file: Path, columns: int = 3) -> list[Path]:
    """Draw charts side by side as PNG and SVG, with the name of the file and these endings."""
    import vl_convert

    panels = [chart.spec | {"title": chart.title, "width": WIDTH} for chart in charts]
    side_by_side: Spec = {"columns": columns, "spacing": 40, "resolve": {"scale": {"color": "independent"}}}
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    whole = {"$schema": schema, "concat": panels, "config": CONFIG, "padding": 12} | side_by_side
    pictures = {".png": vl_convert.vegalite_to_png(whole, scale=2), ".svg": vl_convert.vegalite_to_svg(whole).encode()}
    files = []
    for ending, picture in pictures.items():
        files.append(file.with_name(file.name + ending))
        with replaced(files[-1]) as partial:
            partial.write_bytes(picture)
    return files


def styled(methods: Mapping[str, str]) -> tuple[Spec, Spec]:
    """Colour and dashes by configuration. Those of one method, given by their label, differ in their dashes only."""
    names = [name for name in dict.fromkeys(methods.values()) if name not in ("baseline", "ga-sam")]
    colours = {name: OTHERS[place % len(OTHERS)] for place, name in enumerate(names)}
    colours |= {"baseline": BASELINE, "ga-sam": GA_SAM}
    counts = {name: count() for name in colours}
    dashes = [DASHES[next(counts[method]) % len(DASHES)] for method in methods.values()]

    def scale(values: list[Any]) -> Spec:
        return {"field": "label", "type": "nominal", "scale": {"domain": list(methods), "range": values}}

    return scale([colours[method] for method in methods.values()]), scale(dashes)


def lines(
    rows: Iterable[Row],
    methods: Mapping[str, str],
    *,
    title: str,
    x: str,
    y: str,
    log: str = "",
    marks: Sequence[Row] = (),
    height: int = HEIGHT,
) -> Chart:
    """Lines of configurations: from three seeds on their mean with a band from the lowest to the highest seed.

    Args:
        rows: Points with label, seed, x and y; `step` is what the points of seeds have in common, by default x.
        methods: The method of each configuration, by its label, in the order of the legend.
        title: The title of the chart; `x` and `y` are those of its axes.
        log: The axes with a logarithmic scale: "", "x", "y" or "xy". An axis may begin at zero.
        marks: Lines across the chart: {"y": 0.5, "text": "chance"}.
        height: In pixels.
    """
    values = _over_seeds(rows)
    colour, dashes = styled(methods)
    across = _axis("x", x, [row["x"] for row in values], "x" in log)
    up = _axis("y", y, [row[end] for row in values for end in ("low", "high")], "y" in log)
    place: Spec = {"x": across, "y": up, "color": colour | {"legend": None}, "detail": {"field": "line"}}
    band = place | {"y": up | {"field": "low"}, "y2": {"field": "high"}}
    told = _told(("label", "configuration"), ("x", x), ("told", y))
    dots: Spec = {"type": "point", "filled": True, "size": 30, "opacity": 1}
    layers: list[Spec] = [
        {"mark": {"type": "area", "opacity": 0.13}, "encoding": band},
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": place | {"color": colour, "strokeDash": dashes}},
        {"mark": dots, "encoding": place | {"tooltip": told}},
    ]
    for mark in marks:
        here: Spec = {"y": {"datum": mark["y"], "type": "quantitative"}}
        text: Spec = {"type": "text", "text": mark["text"], "align": "left", "dx": 4, "dy": -6}
        layers += [
            {"data": {"values": [{}]}, "mark": {"type": "rule", "strokeDash": [2, 3]}, "encoding": here},
            {"data": {"values": [{}]}, "mark": text, "encoding": here | {"x": {"value": 0}}},
        ]
    return _chart(title, values, layers, height)


def intervals(rows: Iterable[Row], methods: Mapping[str, str], *, title: str, x: str) -> Chart:
    """A line of text for each configuration, and below it its interval, its mean and a dot for every seed.

    Rows have a label, a value, and may have a text `told`; those of kind `mean` also a text and may have low and high,
    those of kind `seed` do not.
    """
    colour = styled(methods)[0] | {"legend": None}
    y = {"field": "label", "type": "nominal", "sort": list(methods), "axis": None, "scale": {"paddingOuter": 0.3}}
    scale = {"nice": False, "padding": 12}
    across = {"field": "value", "type": "quantitative", "title": x, "axis": {"format": "+,~f"}, "scale": scale}
    told = _told(("label", "configuration"), ("told", "difference"))
    mean, seed, bounds = "datum.kind == 'mean'", "datum.kind == 'seed'", "isValid(datum.low)"

    def layer(only: str, mark: Spec, **encoding: Any) -> Spec:
        return {"transform": [{"filter": only}], "mark": {"yOffset": 7, **mark}, "encoding": {"y": y, **encoding}}

    zero = {"type": "tick", "orient": "vertical", "size": 22, "thickness": 1.5, "color": "#9aa1ab"}
    name = {"type": "text", "align": "left", "fontWeight": 600, "limit": 260, "yOffset": -13}
    number = {"type": "text", "align": "right", "yOffset": -13}
    bar = {"type": "rule", "strokeWidth": 2.5}
    ring = {"type": "point", "fill": "white", "size": 38, "strokeWidth": 1.5, "opacity": 1}
    diamond = {"type": "point", "shape": "diamond", "filled": True, "size": 150, "opacity": 1}
    layers = [
        layer(mean, zero, x={"datum": 0, "type": "quantitative"}),
        layer(mean, name, x={"value": 0}, text={"field": "label"}),
        layer(mean, number, x={"value": "width"}, text={"field": "text"}),
        layer(bounds, bar, x=across | {"field": "low"}, x2={"field": "high"}, color=colour),
        layer(seed, ring, x=across, color=colour, tooltip=told),
        layer(bounds, diamond, x=across, color=colour, tooltip=told),
    ]
    return _chart(title, rows, layers, {"step": 46})


def plane(
    rows: Iterable[Row], *, title: str, x: str, y: str, value: str, log: bool, domain: tuple[float, float] | None
) -> Chart:
    """A heat map of points with x, y and value on a grid; a value that is not finite is left blank.

    With `domain`, the lowest and the highest value of the colours, several planes can be compared.
    """
    scale = {"scheme": "viridis", "type": "log" if log else "linear"} | ({"domain": list(domain)} if domain else {})
    axis = {"format": ".2~g", "labelOverlap": True}
    place: Spec = {
        "x": {"field": "x", "type": "ordinal", "title": x, "axis": axis | {"labelAngle": 0}},
        "y": {"field": "y", "type": "ordinal", "title": y, "axis": axis, "sort": "descending"},
        "color": {"field": "value", "type": "quantitative", "title": value, "scale": scale},
        "tooltip": _told(("x", x), ("y", y), ("value", value)),
    }
    finite = (row for row in rows if math.isfinite(row["value"]))
    return _chart(title, finite, [{"mark": "rect", "encoding": place}], HEIGHT)


def _chart(title: str, rows: Iterable[Row], layers: list[Spec], height: int | Spec) -> Chart:
    legends = {"resolve": {"legend": {"color": "independent", "strokeDash": "independent"}}}
    return Chart(title, {"height": height, "data": {"values": [dict(row) for row in rows]}, "layer": layers, **legends})


def _over_seeds(rows: Iterable[Row]) -> list[Row]:
    """The points of lines. A configuration with enough seeds is one line, their mean; otherwise each seed is one."""
    finite = [row for row in rows if row["x"] is not None and row["y"] is not None and math.isfinite(row["y"])]
    seeds: dict[str, set[Any]] = {}
    for row in finite:
        seeds.setdefault(row["label"], set()).add(row["seed"])
    places: dict[tuple[str, Any], list[Row]] = {}
    for row in finite:
        line = row["label"] if len(seeds[row["label"]]) >= FEW else f"{row['label']} {row['seed']}"
        places.setdefault((line, row.get("step", row["x"])), []).append(row)
    found: list[Row] = []
    for (line, _), some in places.items():
        x, heights = statistics.fmean(row["x"] for row in some), [row["y"] for row in some]
        y, low, high = statistics.fmean(heights), min(heights), max(heights)
        of = f"{low:.4g} to {high:.4g}, {len(some)} seeds" if len(some) > 1 else f"seed {some[0]['seed']}"
        ends = {"x": x, "y": y, "low": low, "high": high}
        found.append({"label": some[0]["label"], "line": line, "told": f"{y:.4g} ({of})", **ends})
    return found


def _axis(field: str, title: str, values: Sequence[float], log: bool) -> Spec:
    """An axis. A logarithmic one that begins at zero is linear up to the smallest other value."""
    positive = [value for value in values if value > 0]
    scale: Spec = {"zero": False, "nice": False}
    axis: Spec = {}
    if log and positive and max(positive) > 2 * min(positive):
        zero = min(values) <= 0
        scale |= {"type": "symlog", "constant": min(positive)} if zero else {"type": "log"}
        low, high = (math.floor(math.log10(end)) for end in (min(positive), max(positive)))
        steps = (1, 2, 5) if high - low < 2 else (1,)
        ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
        ticks = [0.0] * zero + [tick for tick in ticks if min(positive) <= tick <= max(positive)]
        axis = {"values": ticks, "format": "~g"} if len(ticks) > 1 else {"format": ".3~g"}
    return {"field": field, "type": "quantitative", "title": title or None, "scale": scale, "axis": axis}


def _told(*fields: tuple[str, str]) -> list[Spec]:
    return [{"field": field, "title": title} for field, title in fields]
