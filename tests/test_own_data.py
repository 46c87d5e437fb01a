"""The trial on a user's own texts: the page shows what was measured, and no recommendation does harm."""

import json
from statistics import fmean

from benchmarks.own_data import RESULTS, SEARCHES, SEEDS, table

from pages import generated_part

FOUND = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_page_shows_the_results():
    assert generated_part("experiments.md", "own data") == table(FOUND)


def test_nothing_that_was_recommended_is_worse_than_the_noise():
    """As the protocol demands: a point for the defaults, the noise of the split for each search."""
    plain = fmean(FOUND["baseline"])
    assert FOUND["seeds"] == list(SEEDS)
    assert fmean(FOUND["ga-sam"]) >= plain - 1
    assert [found["seed"] for found in FOUND["searches"]] == list(SEARCHES)
    assert all(fmean(found["test"]) >= plain - found["noise"] for found in FOUND["searches"])
