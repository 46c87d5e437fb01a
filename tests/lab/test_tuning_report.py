"""Searches on the results page: their regret on made-up grids whose answer is known, their tables and pictures."""

import json
import math
from dataclasses import replace

import pytest
from synthetic import COMMIT, finding_of, record, response

from gasam.lab.report import pages
from gasam.lab.report.contents import Contents
from gasam.lab.report.regret import baseline_spread, full_norms, given_up_after, regret, regret_table
from gasam.lab.report.sections import every, search_sections
from gasam.lab.report.tuning import tuning_figures
from gasam.lab.search.strategy import MANTISSAS, Candidate
from gasam.lab.search.worth import BehindBaseline, Worth
from gasam.lab.tasks import find

PEAK = {1e-3: 80.5, 2e-3: 81.0, 5e-3: 82.0, 8e-3: 81.5}


def grid(values, *, norm="inf", below=80.1, above=60.0, **changes):
    """Every radius from 1e-4 to 8e-1; `below` and `above` what `values` names, and a collapse from 1e-2 on."""
    tries = []
    for exponent in range(-4, 0):
        for mantissa in MANTISSAS:
            epsilon = float(f"{mantissa}e{exponent}")
            valid = values.get(epsilon, below if epsilon < 1e-2 else above)
            tries.append(response(valid, norm=norm, exponent=exponent, mantissa=mantissa, **changes))
    return tries


def at(tries, epsilon, **changes):
    """The grid with another outcome at one radius."""
    return [one | changes if float(f"{one['mantissa']}e{one['exponent']}") == epsilon else one for one in tries]


def test_a_search_that_finds_the_best_has_no_regret_and_costs_its_tries():
    found = regret(finding_of("imdb", "ga-sam", grid(PEAK)))
    assert found.chosen == found.best == Candidate(math.inf, -3, 5)
    assert found.lost == 0
    # 1e-3, 1e-2 (given up after 3 of 6 epochs), then 5e-3, 2e-3, 8e-3; a try is 1,200 evaluations, the baseline 600
    assert (found.tries, found.given_up, found.grid) == (5, 1, 16)
    assert found.share == pytest.approx((600 + 4 * 1200 + 600) / (16 * 1200))


def test_a_peak_that_the_search_passes_by_is_its_regret():
    found = regret(finding_of("imdb", "ga-sam", grid(PEAK | {2e-4: 83.5})))
    assert found.best == Candidate(math.inf, -4, 2)
    assert found.chosen == Candidate(math.inf, -3, 5)
    assert found.lost == pytest.approx(1.5)


def test_regret_follows_the_metrics_direction():
    values = {1e-3: 99.0, 2e-3: 98.0, 5e-3: 97.0, 8e-3: 98.0, 2e-4: 96.0}
    found = regret(finding_of("ptb", "ga-sam", grid(values, below=99.9, above=300.0), baseline=100.0))
    assert found.chosen == Candidate(math.inf, -3, 5)
    assert found.lost == pytest.approx(1.0)


def test_the_replay_gives_up_what_the_pruner_would_though_it_recovers_later():
    slow = {"curve": [60.0, 60.0, 60.0, 85.0, 85.0, 85.0], "valid": 85.0}
    found = regret(finding_of("imdb", "ga-sam", at(grid(PEAK), 5e-3, **slow)))
    assert found.best == Candidate(math.inf, -3, 5)
    assert found.chosen == Candidate(math.inf, -3, 8)
    assert found.lost == pytest.approx(85.0 - 81.5)
    assert found.given_up == 2


def test_both_norms_are_searched_together_if_both_grids_are_full():
    both = grid(PEAK) + grid({1e-3: 80.0, 5e-3: 82.5}, norm="2")
    found = regret(finding_of("imdb", "ga-sam", both))
    assert found.chosen == Candidate(2.0, -3, 5)
    assert (found.tries, found.grid) == (10, 32)
    assert regret(finding_of("imdb", "ga-sam", both[:-1])).grid == 16


def test_a_grid_with_a_hole_or_a_try_that_was_given_up_judges_nothing():
    assert full_norms(finding_of("imdb", "ga-sam", grid(PEAK)[:-1])) == ()
    assert regret(finding_of("imdb", "ga-sam", grid(PEAK)[:-1])) is None
    early = at(grid(PEAK), 1e-1, valid=None, diverged=False)
    assert regret(finding_of("imdb", "ga-sam", early)) is None
    diverged = at(grid(PEAK), 1e-1, valid=None, diverged=True)
    assert regret(finding_of("imdb", "ga-sam", diverged)).lost == 0


def test_where_all_diverges_or_nothing_is_found():
    nothing = [response(None, exponent=e, mantissa=m, end=3) for e in range(-4, 0) for m in MANTISSAS]
    assert regret(finding_of("imdb", "ga-sam", nothing)) is None
    lone = at(nothing, 2e-4, valid=81.0, diverged=False, curve=[81.0] * 6)
    found = regret(finding_of("imdb", "ga-sam", lone))
    assert found.chosen is None
    assert found.lost == pytest.approx(1.0)


def test_a_try_is_given_up_after_half_and_never_at_its_last_epoch():
    pruner = BehindBaseline(Worth(find("imdb").family.followed, 50.0), [80.0] * 6, 0.02)
    assert given_up_after(pruner, [60.0] * 6) == 3
    assert given_up_after(pruner, [60.0, 80.0, 60.0, 60.0, 60.0, 60.0]) is None
    assert given_up_after(pruner, [60.0, 60.0, None]) is None
    late = BehindBaseline(Worth(find("imdb").family.followed, 50.0), [60.0] * 5 + [80.0], 0.02)
    assert given_up_after(late, [60.0] * 6) is None


def cells(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_regret_stands_beside_the_baselines_spread_over_seeds_for_the_whole_search_and_for_four_trials():
    found = finding_of("imdb", "ga-sam", grid(PEAK | {2e-4: 82.1}))
    runs = [record("imdb", seed=seed, valid=valid) for seed, valid in enumerate((80.0, 80.2), 1)]
    assert baseline_spread(found, runs).std == pytest.approx(0.1414, abs=1e-3)
    whole, short = cells(regret_table([found], runs))
    assert [row["trials"] for row in (whole, short)] == ["5", "4"]
    assert [row["regret"] for row in (whole, short)] == ["0.10", "0.10"]
    assert [row["of the grid's gradient evaluations"] for row in (whole, short)] == ["31%", "25%"]
    [note] = regret_table([found], runs).notes
    for fact in ("16 radii", "exponents -4 to -1", "L-inf 0.0002 with 82.10", "0.14 (2 seeds)"):
        assert fact in note
    assert whole["chosen"] == "L-inf 0.005"
    assert "standard deviation" not in regret_table([found], runs[:1]).notes[0]
    others = [record("imdb", seed=seed, settings={"epochs": 30}) for seed in (1, 2)]
    assert baseline_spread(found, others) is None
    assert regret_table([finding_of("imdb", "ga-sam", grid(PEAK)[:-1])], runs) is None


def tables(section):
    """The rows of the tables in a section, as lists of cells."""
    lines = [line for part in section.parts for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_task_has_a_section_with_a_table_a_picture_its_commits_and_a_command():
    tried = [response(81.0, exponent=-3), response(None, exponent=-2, end=2)]
    findings = [finding_of("docstrings", "sam", tried), finding_of("imdb", "sam", tried)]
    findings.append(finding_of("imdb", "asam", tried))
    twin, imdb = search_sections(Contents(findings=findings))
    assert "no evidence" in " ".join(twin.parts)
    assert "no evidence" not in " ".join(imdb.parts)
    assert [row[:7] for row in tables(imdb)[2:]] == [
        [method, "L-inf", "0.001", "81.00", "+1.00", "2", "1"] for method in ("SAM", "ASAM")
    ]
    assert list(imdb.pictures) == ["tuning-imdb-small"]
    assert sum("](../figures/tuning-imdb-small.svg)" in part for part in imdb.parts) == 1
    command = "gasam tune imdb --method sam --size small --quantity epsilon --norms inf --trials 2"
    assert f"`{command}`" in imdb.parts[-1]
    assert COMMIT[:7] in imdb.parts[-1]
    assert (twin.title, imdb.title) == ("docstrings, size small: epsilons", "imdb, size small: epsilons")
    assert "tuning" not in every(Contents([record("imdb")]))


def test_two_norms_have_a_row_each_and_the_one_to_use_comes_first():
    tried = [response(81.0, exponent=-3), response(None, exponent=-2, end=2), response(82.0, norm="2", exponent=-1)]
    [section] = search_sections(Contents(findings=[finding_of("imdb", "ga-sam", tried)]))
    assert [row[1:7] for row in tables(section)[2:]] == [
        ["L2", "0.1", "82.00", "+2.00", "1", "0"],
        ["L-inf", "0.001", "81.00", "+1.00", "2", "1"],
    ]


def test_a_full_grid_stands_below_the_search_of_its_method_and_says_so():
    search = finding_of("imdb", "ga-sam", [response(81.0, exponent=-3)])
    whole = replace(finding_of("imdb", "ga-sam", grid(PEAK)), name=f"{search.name}-grid")
    [section] = search_sections(Contents(findings=[whole, search]))
    assert [row[:3] for row in tables(section)[2:4]] == [
        ["GA-SAM", "L-inf", "0.001"],
        ["GA-SAM, full grid", "L-inf", "0.005"],
    ]
    [alone] = search_sections(Contents(findings=[whole]))
    assert "--norms inf --full-grid --exponents=-4,-1`" in alone.parts[-1]
    [picture] = section.pictures.values()
    assert [axes.get_title("left") for axes in picture.axes] == [
        "GA-SAM on imdb, size small",
        "GA-SAM, full grid on imdb, size small",
    ]


def test_the_picture_shows_what_collapsed_beyond_all_that_ended():
    tried = [response(81.0, exponent=-3), response(79.0, exponent=-2), response(None, exponent=-1, end=3)]
    [axes] = tuning_figures([finding_of("imdb", "sam", tried)])[0].axes
    [crosses] = [line for line in axes.lines if line.get_marker() == "x"]
    assert list(crosses.get_xdata()) == [0.1]
    assert list(crosses.get_ydata()) < [79.0]
    assert crosses.get_label() == "L-inf, given up (not to scale)"
    [ended] = [line for line in axes.lines if line.get_marker() == "o"]
    assert list(zip(ended.get_xdata(), ended.get_ydata(), strict=True)) == [(0.001, 81.0), (0.01, 79.0)]
    [axes] = tuning_figures([finding_of("imdb", "sam", tried[:2])])[0].axes
    assert not any(line.get_marker() == "x" for line in axes.lines)
    [axes] = tuning_figures([finding_of("ptb", "sam", tried)])[0].axes
    [crosses] = [line for line in axes.lines if line.get_marker() == "x"]
    assert list(crosses.get_ydata()) > [81.0], "perplexity collapses upwards"


def test_a_picture_has_at_most_six_searches():
    tried = [response(81.0, exponent=-3)]
    figures = tuning_figures([finding_of("imdb", "sam", tried)] * 14)
    assert [sum(axes.get_visible() for axes in figure.axes) for figure in figures] == [6, 6, 2]


def test_searches_with_other_settings_have_a_sheet_of_their_own():
    tried = [response(81.0, exponent=-3)]
    small, other = finding_of("imdb", "sam", tried), finding_of("imdb", "asam", tried)
    other.settings["epochs"] = 99
    found = search_sections(Contents(findings=[small, other]))
    assert [list(section.pictures) for section in found] == [["tuning-imdb-small"], ["tuning-imdb-small-2"]]


def test_pictures_of_searches_are_written_with_the_page(tmp_path):
    (tmp_path / "results" / "tuning").mkdir(parents=True)
    (tmp_path / "README.md").write_text("<!-- results -->\n<!-- /results -->\n")
    found = finding_of("imdb", "ga-sam", grid(PEAK))
    (tmp_path / "results" / "tuning" / "some.json").write_text(json.dumps(found.as_json()))
    pages.write(tmp_path)
    assert (tmp_path / "docs/figures/tuning-imdb-small.svg").stat().st_size > 1000
    assert "(../figures/tuning-imdb-small.svg)" in (tmp_path / "docs/results/tuning.md").read_text()
    assert pages.stale(tmp_path) == []
