"""The usable window of the size of the walk: how it is computed, and that the guide shows what was measured."""

import json

import pytest
from benchmarks.window import RESULTS, mean_gains, table, window

from pages import generated_part


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ({1.0: 0.1, 2.0: 0.6, 5.0: 1.0, 10.0: 0.5, 20.0: -3.0}, (2.0, 10.0)),
        ({1.0: 1.0, 2.0: 0.1, 5.0: 0.9}, (1.0, 1.0)),  # a gap ends it
        ({1.0: 0.5, 2.0: 0.9, 5.0: 1.0}, (1.0, 5.0)),
    ],
)
def test_window_is_what_keeps_half_of_the_best_gain_without_a_gap(gains, expected):
    assert window(gains) == expected


def test_gains_are_paired_by_seed():
    rows = [
        {"quantity": "baseline", "size": 0.0, "valid": [80.0, 82.0], "test": [80.0, 82.0]},
        {"quantity": "epsilon", "size": 0.1, "valid": [81.0, 82.0], "test": [80.0, None]},
    ]
    assert mean_gains({"rows": rows}, "epsilon", "valid") == {0.1: 0.5}
    assert mean_gains({"rows": rows}, "epsilon", "test") == {0.1: -50.0}


def test_the_guide_shows_the_results():
    assert generated_part("guide.md", "window") == table(json.loads(RESULTS.read_text(encoding="utf-8")))
