"""Cheaper walks: the guide shows what was measured, and the table says what the results say."""

import json

import pytest
from benchmarks.affordable import RESULTS, VARIANTS, table, walk_of

from pages import generated_part


def test_the_guide_shows_the_results():
    assert generated_part("guide.md", "affordable") == table(json.loads(RESULTS.read_text(encoding="utf-8")))


def test_shares_are_of_the_full_gain_and_paired_by_seed():
    rows = {name: {"test": [81.0, 82.0], "passes": 2.0, "chosen": (0.1, 0.01)} for name in VARIANTS}
    rows["plain training"] = {"test": [80.0, 80.0], "passes": 1.0}
    rows["every 4th step, weight 4"] = {"test": [80.5, 81.0], "passes": 1.25, "chosen": (0.3, 0.1), "step_time": 1.3}
    lines = table({"imdb": rows}).splitlines()
    assert "| imdb | every step | 0.1, 0.01 | 2.00 |  | +1.50 ± 0.71 | 100% |" in lines
    assert "| imdb | every 4th step, weight 4 | 0.3, 0.1 | 1.25 | 1.30x | +0.75 ± 0.35 | 50% |" in lines


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_differ_in_their_schedule_or_masks_only(variant):
    usual = walk_of("every step", (0.1, 0.01))
    assert usual.items() <= walk_of(variant, (0.1, 0.01)).items()
