"""Charts of the HTML report as Vega-Lite specifications: dictionaries that the library in the page draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gasam.lab.report.chart_data import Row, Series

Spec = dict[str, Any]
HEIGHT, SMALL = 300, 170
ROW = 46
"""Pixels of a row of differences: its label stands above its interval, so that a phone has room for both."""
HALO = {"stroke": "var(--card)", "strokeWidth": 4}
"""Makes a text readable on a line; the style sheet draws it behind the letters."""
LINE = 15
"""Pixels between two labels."""
TICKS = 8
"""The largest number of epochs that an axis names."""
WIDE = 50
"""An axis is logarithmic if its positive values differ by more than this factor."""


@dataclass(frozen=True)
class Chart:
    title: str
    caption: str
    spec: Spec


def curves(rows: Sequence[Row], series: Sequence[Series], y: str, *, log: bool) -> Spec:
    """Lines over gradient evaluations with bands over seeds."""
    x = _quantity("spent", "gradient evaluations", format=",.0f")
    told = [("label", "configuration"), ("epoch", "epoch"), ("spent", "gradient evaluations"), ("told", y)]
    return _lines(rows, series, x, y, told, log=log, height=HEIGHT)


def over_epochs(rows: Sequence[Row], series: Sequence[Series], y: str) -> Spec:
    """A small chart of lines over epochs; logarithmic if the numbers need it."""
    epochs = sorted({row["epoch"] for row in rows})
    x = _quantity("epoch", "epoch", format="d", values=epochs[:: -(-len(epochs) // TICKS)])
    told = [("label", "configuration"), ("epoch", "epoch"), ("told", y)]
    return _lines(rows, series, x, "", told, log=_spans(row["value"] for row in rows), height=SMALL)


def _lines(
    rows: Sequence[Row],
    series: Sequence[Series],
    x: Spec,
    y: str,
    told: Sequence[tuple[str, str]],
    *,
    log: bool,
    height: int,
) -> Spec:
    values = [row[key] for row in rows for key in ("value", "low", "high") if key in row]
    scale, axis = _scaled(values, log)
    up = _quantity("value", y, **axis) | {"scale": scale}
    place: Spec = {"x": x, "color": _colour(series), "detail": {"field": "line"}}
    band: Spec = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.12},
        "encoding": place | {"y": up | {"field": "low"}, "y2": {"field": "high"}},
    }
    path: Spec = {
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": place | {"y": up, "strokeDash": _dashes(series)},
    }
    banded = any("low" in row for row in rows)
    return _chart(rows, series, [*[band] * banded, path, _points(place | {"y": up}, told)], height)


def _points(place: Spec, told: Iterable[tuple[str, str]]) -> Spec:
    """Points with tooltips. The one nearest to the pointer answers, because a point itself is hard to hit."""
    select = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
    size = {"condition": {"param": "near", "empty": False, "value": 110}, "value": 26}
    return {
        "mark": {"type": "point", "filled": True, "opacity": 1},
        "params": [{"name": "near", "select": select}],
        "encoding": place | {"size": size, "tooltip": _told(told)},
    }


def differences(rows: Sequence[Row], series: Sequence[Series], metric: str, better: str) -> Spec:
    """A row for each configuration: its name, the mean difference with its interval, and a dot for every seed."""
    order = [each.label for each in series]
    y = {"field": "label", "type": "nominal", "sort": order, "axis": None, "scale": {"paddingOuter": 0.3}}
    x = _quantity("value", f"difference in {metric}; {better} of 0 is better", format="+,~f")
    told = _told([("label", "configuration"), ("baseline", "minus"), ("told", "difference")])
    above, below = {"yOffset": -13}, {"yOffset": 7}
    means = {"filter": "datum.kind == 'mean' && isValid(datum.low)"}
    layers = [
        {
            "transform": [{"filter": "datum.kind == 'mean'"}],
            "mark": {
                "type": "tick",
                "orient": "vertical",
                "size": 22,
                "thickness": 1.5,
                "color": "var(--muted)",
                **below,
            },
            "encoding": {"x": {"datum": 0, "type": "quantitative"}, "y": y},
        },
        {
            "transform": [{"filter": "datum.kind == 'mean'"}],
            "mark": {"type": "text", "align": "left", "fontWeight": 600, "limit": {"expr": "width - 150"}, **above},
            "encoding": {"y": y, "x": {"value": 0}, "text": {"field": "name"}},
        },
        {
            "transform": [{"filter": "datum.kind == 'mean'"}],
            "mark": {"type": "text", "align": "right", **above},
            "encoding": {"y": y, "x": {"value": {"expr": "width"}}, "text": {"field": "text"}},
        },
        {
            "transform": [means],
            "mark": {"type": "rule", "strokeWidth": 2.5, **below},
            "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, "color": _colour(series)},
        },
        {
            "transform": [{"filter": "datum.kind == 'seed'"}],
            "mark": {"type": "point", "fill": "var(--card)", "size": 38, "strokeWidth": 1.5, "opacity": 1, **below},
            "encoding": {"x": x, "y": y, "color": _colour(series), "tooltip": told},
        },
        {
            "transform": [means],
            "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 150, "opacity": 1, **below},
            "encoding": {"x": x, "y": y, "color": _colour(series), "tooltip": told},
        },
    ]
    return _chart(rows, series, layers, {"step": ROW})


def costs(rows: Sequence[Row], series: Sequence[Series], x: str, y: str) -> Spec:
    """Scores against cost, with the names of the configurations that are visible at first."""
    across = _quantity("cost", x) | {"scale": {"zero": False, "nice": False, "padding": 24}}
    up = _quantity("value", y) | {"scale": {"zero": False, "nice": False, "padding": 14}}
    told = _told([("label", "configuration"), ("cost", x), ("told", y)])
    named = _placed(rows, series)
    layers: list[Spec] = [
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.45},
            "encoding": {"x": across, "y": up | {"field": "low"}, "y2": {"field": "high"}, "color": _colour(series)},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.9},
            "encoding": {"x": across, "y": up, "color": _colour(series), "tooltip": told},
        },
    ]
    for side, mark in (("left", {"align": "right", "dx": -9}), ("right", {"align": "left", "dx": 9})):
        here = [row for row in named if row["side"] == side]
        layer = {
            "data": {"values": here},
            "transform": [_visible(), {"filter": f"length(shown) <= {len(named)}"}],  # more would overlap
            "mark": {"type": "text", "limit": {"expr": "width / 2 - 10"}, **HALO, **mark},
            "encoding": {"x": across, "y": up | {"field": "at"}, "text": {"field": "name"}},
        }
        layers += [layer] if here else []
    return _chart(rows, series, layers, HEIGHT)


def _placed(rows: Sequence[Row], series: Sequence[Series]) -> list[Row]:
    """Where the names of configurations stand: at their scores, moved apart where they would overlap."""
    names = {each.label: each.name for each in series if each.shown}
    visible = [row for row in rows if row["label"] in names]
    if not visible:
        return []
    ends: list[float] = [row[key if key in row else "value"] for row in visible for key in ("low", "high")]
    gap = (max(ends) - min(ends) or 1.0) * LINE / (HEIGHT - 2 * LINE)
    middle = (min(row["cost"] for row in visible) + max(row["cost"] for row in visible)) / 2
    first = {row["label"]: row for row in reversed(visible)}
    placed: list[Row] = []
    for label, row in sorted(first.items(), key=lambda pair: pair[1]["value"]):
        at = max(row["value"], placed[-1]["at"] + gap) if placed else row["value"]
        side = "left" if row["cost"] > middle else "right"
        placed.append({"label": label, "name": names[label], "cost": row["cost"], "at": at, "side": side})
    return placed


def _chart(rows: Sequence[Row], series: Sequence[Series], layers: list[Spec], height: int | Spec) -> Spec:
    return {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "params": [{"name": "shown", "value": [each.label for each in series if each.shown]}],
        "data": {"values": list(rows)},
        "transform": [_visible()],
        "layer": layers,
    }


def _visible() -> Spec:
    return {"filter": "indexof(shown, datum.label) >= 0"}


def _quantity(field: str, title: str, **axis: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title or None, "axis": axis | {"title": title or None}}


def _told(fields: Iterable[tuple[str, str]]) -> list[Spec]:
    return [{"field": field, "title": title} for field, title in fields]


def _colour(series: Sequence[Series]) -> Spec:
    scale = {"domain": [each.label for each in series], "range": [each.colour for each in series]}
    return {"field": "label", "type": "nominal", "legend": None, "scale": scale}


def _dashes(series: Sequence[Series]) -> Spec:
    scale = {"domain": [each.label for each in series], "range": [each.dashes for each in series]}
    return {"field": "label", "type": "nominal", "legend": None, "scale": scale}


def _scaled(values: Sequence[float], log: bool) -> tuple[Spec, Spec]:
    """The scale of an axis and its ticks; those of a logarithmic one are 1, 2 and 5 times powers of ten.

    An axis with values that have no logarithm stays linear. One with equal values shows no rounding errors.
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = 0.05 * max(abs(low), abs(high))
    if values and room and high - low < 1e-6 * room:
        return {"zero": False, "domain": [low - room, high + room]}, {}
    if not log or low <= 0:
        return {"zero": False}, {}
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    mantissas = (1, 2, 5) if high < 1000 * low else (1,)
    ticks = [mantissa * 10.0**power for power in powers for mantissa in mantissas]
    return {"type": "log", "nice": False}, {"values": [tick for tick in ticks if low <= tick <= high], "format": "~g"}


def _spans(values: Iterable[float]) -> bool:
    found = list(values)
    return bool(found) and min(found) > 0 and max(found) > WIDE * min(found)
