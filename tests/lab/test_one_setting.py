"""What one setting for all tasks loses, on records whose answer is known."""

import math

import pytest
from synthetic import finding_of, record, response

from gasam.lab.report.contents import Contents
from gasam.lab.report.one_setting import all_regrets, conclusions, largest, one_setting_table
from gasam.lab.report.sections import every

WALKS = {
    "recommended": None,
    "budget 0.03, cap 0.01": {"budget": 0.03},
    "epsilon 0.001": {"epsilon": 1e-3},
    "epsilon 0.01": {"epsilon": 1e-2},
}


def runs(task, scores, size="small@2"):
    """Records with the scores on validation by walk, for the seeds 1, 2, ...; test scores tell nothing."""
    found = []
    for name, valid in scores.items():
        method = "baseline" if name == "plain training" else "ga-sam"
        found += [
            record(task, method, 50.0, size=size, seed=seed, walk=WALKS.get(name), valid=each)
            for seed, each in enumerate(valid, 1)
        ]
    return found


IMDB = {
    "plain training": [80.0, 81.0, 82.0],  # mean 81, standard deviation 1
    "recommended": [82.0, 82.0, 82.0],
    "budget 0.03, cap 0.01": [81.5, 81.5, 81.5],
    "epsilon 0.001": [83.0, 83.0, 83.0],
    "epsilon 0.01": [60.0, None, 60.0],
}
PTB = {
    "plain training": [100.0, 102.0, 104.0],  # lower is better; mean 102, standard deviation 2
    "recommended": [101.0, 101.0, 101.0],
    "budget 0.03, cap 0.01": [102.0, 102.0, 102.0],
    "epsilon 0.001": [105.0, 105.0, 105.0],
    "epsilon 0.01": [120.0, 120.0, 120.0],
}


@pytest.fixture
def contents():
    return Contents(runs("imdb", IMDB) + runs("ptb", PTB))


def test_regret_is_what_a_walk_loses_to_the_best_in_standard_deviations(contents):
    imdb, ptb = all_regrets(contents)
    assert (imdb.task, imdb.size, imdb.best, imdb.seeds) == ("imdb", "small@2", "epsilon 0.001", 3)
    assert imdb.lost == pytest.approx(
        {
            "recommended": 1.0,
            "budget 0.03, cap 0.01": 1.5,
            "epsilon 0.001": 0.0,
            "epsilon 0.01": math.inf,
            "plain training": 2.0,
        }
    )
    assert ptb.best == "recommended"
    assert ptb.lost == pytest.approx(
        {
            "recommended": 0.0,
            "budget 0.03, cap 0.01": 0.5,
            "epsilon 0.001": 2.0,
            "epsilon 0.01": 9.5,
            "plain training": 0.5,
        }
    )
    assert largest([imdb, ptb], "recommended") == pytest.approx(1.0)
    assert largest([imdb, ptb], "epsilon 0.5") is None


def test_the_table_and_the_sentence_name_the_largest_regret(contents):
    found = all_regrets(contents)
    table = one_setting_table(found)
    assert table.columns == ("walk", "imdb", "ptb", "largest")
    assert table.rows == (
        ("recommended", "1.0", "0.0", "1.0"),
        ("budget 0.03, cap 0.01", "1.5", "0.5", "1.5"),
        ("epsilon 0.001", "0.0", "2.0", "2.0"),
        ("epsilon 0.01", "diverged", "9.5", "diverged"),
        ("plain training", "2.0", "0.5", "2.0"),
    )
    [sentence] = conclusions(found)
    assert "the recommended walk: 1.0; budget 0.03, cap 0.01: 1.5; " in sentence
    assert "epsilon 0.001, the best of 2 epsilons: 2.0; plain training: 2.0." in sentence
    assert [section.title for section in every(contents)["tuning"]] == ["One setting for all tasks"]


def test_seeds_that_a_walk_does_not_have_are_left_out(contents):
    fewer = [run for run in contents.records if run.walk.get("budget") != 0.03 or run.seed < 3]
    [imdb, _] = all_regrets(Contents(fewer))
    assert imdb.seeds == 2
    assert imdb.lost["plain training"] == pytest.approx(83 - 80.5)  # the spread is that of all seeds


def test_walks_without_common_seeds_or_on_other_data_are_no_comparison(contents):
    apart = [
        run.model_copy(update={"seed": run.seed + 10}) if run.walk.get("budget") == 0.03 else run
        for run in contents.records
    ]
    assert [each.task for each in all_regrets(Contents(apart[: len(apart) // 2]))] == []
    stray = record("imdb", "ga-sam", 50.0, size="small@2", walk={"epsilon": 0.5}, valid=90.0)
    assert all_regrets(Contents([*contents.records, stray])) == all_regrets(contents)  # it has one seed
    other = {"hash": "other", "notes": []}
    elsewhere = [
        record("imdb", "ga-sam", 50.0, size="small@2", seed=seed, walk={"epsilon": 1e-3}, valid=10.0, data=other)
        for seed in (1, 2, 3)
    ]
    assert all_regrets(Contents([*contents.records, *elsewhere])) == all_regrets(contents)


def test_the_control_is_named_and_stands_beside_plain_training(monkeypatch):
    control = "no displacement (budget 1e-06)"
    monkeypatch.setitem(WALKS, control, {"budget": 1e-6})
    found = all_regrets(Contents(runs("imdb", IMDB | {control: [81.0, 81.0, 81.0]}) + runs("ptb", PTB)))
    assert found[0].lost[control] == pytest.approx(2.0)
    both = [each._replace(lost={**each.lost, control: 2.0}) for each in found]
    assert [row[0] for row in one_setting_table(both).rows][-2:] == [control, "plain training"]


def test_nothing_is_said_if_everything_diverged():
    assert all_regrets(Contents(runs("imdb", {name: [*valid[:2], None] for name, valid in IMDB.items()}))) == []


def test_what_a_search_chose_has_a_row_of_its_own(contents):
    tries = [response(81.0, exponent=-3), response(79.0, exponent=-2)]
    search = finding_of("imdb", "ga-sam", tries, size="small@2")
    [imdb, _] = all_regrets(Contents(contents.records, [search]))
    assert imdb.lost["searched epsilon"] == imdb.lost["epsilon 0.001"] == 0


def test_tasks_with_few_walks_or_seeds_are_left_out():
    few = {name: IMDB[name] for name in ("plain training", "recommended", "epsilon 0.001", "epsilon 0.01")}
    search = finding_of("imdb", "ga-sam", [response(81.0, exponent=-3)], size="small@2")
    assert all_regrets(Contents(runs("imdb", few), [search])) == []  # the search has no walk of its own
    assert all_regrets(Contents(runs("imdb", {name: valid[:2] for name, valid in IMDB.items()}))) == []
    assert all_regrets(Contents(runs("imdb", IMDB, size="small"))) == []  # its walks are the paper's
    assert list(conclusions([])) == []
