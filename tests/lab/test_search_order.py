"""Whether settings and walk are better searched in turn or together, on records whose answer is known."""

import pytest
from synthetic import records_of

from gasam.lab.report.contents import Contents
from gasam.lab.report.search_order import order_table
from gasam.lab.report.search_sections import settings_sections
from gasam.lab.search.settings_finding import SettingsFinding, SettingsTrial

PLAIN, RECOMMENDED, AFTERWARDS = [86.0, 86.2, 86.4], [86.3, 86.4, 86.5], [86.5, 86.6, 86.7]
JOINT, JOINT_PLAIN = [86.6, 86.9, 87.0], [85.9, 86.0, 86.1]
SETTINGS, WALK = {"learning_rate": 3e-3, "dropout": 0.3}, {"budget": 0.2, "cap": 0.05}


def trial(valid, **values):
    return SettingsTrial(
        values=values, valid=valid, curve=(valid,), worthless=50.0, diverged=False, gradient_evaluations=8, seconds=1.0
    )


@pytest.fixture
def joint():
    trials = (trial(85.0), trial(86.5, **SETTINGS, **WALK), trial(86.0, learning_rate=1e-3, budget=0.1, cap=0.01))
    about = {"schema": 1, "name": "imdb", "task": "imdb", "size": "small@2", "method": "ga-sam", "joint": True}
    return SettingsFinding(**about, seed=0, settings={}, shared={}, data="imdb-data", space={}, trials=trials)


@pytest.fixture
def in_turn():
    tuned = {"walk": {"budget": 0.1, "cap": 0.1}, "epsilon_source": "tuned on validation, 4 tries"}
    return [
        *records_of("imdb", {"baseline": PLAIN, "ga-sam": RECOMMENDED}, size="small@3"),
        *records_of("imdb", {"ga-sam": AFTERWARDS}, size="small@3", **tuned),
        *records_of("imdb", {"ga-sam": [50.0] * 3}, size="small@3", walk={"epsilon": 0.1}),
        *records_of("imdb", {"baseline": [80.0] * 3, "ga-sam": [80.0] * 3}, size="small@2"),
    ]


@pytest.fixture
def together():
    walk = {**WALK, "walk_progress": 0.2}
    return [
        *records_of("imdb", {"ga-sam": JOINT}, size="small@2", settings=SETTINGS, walk=walk),
        *records_of("imdb", {"baseline": JOINT_PLAIN}, size="small@2", settings=SETTINGS),
        *records_of("imdb", {"ga-sam": [70.0] * 3}, size="small@2", settings=SETTINGS),  # another walk
    ]


def test_both_orders_stand_beside_plain_training_with_its_own_settings(joint, in_turn, together):
    table = order_table(Contents([*in_turn, *together]), joint)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["walk"], row["validation accuracy"]) for row in rows] == [
        ("none", "86.20"),
        ("recommended", "86.40"),
        ("searched afterwards", "86.60"),
        ("none", "86.00"),
        ("searched with the settings", "86.83"),
    ]
    assert [row["settings"].split()[0] for row in rows] == ["size"] * 3 + ["searched"] * 2
    differences = [row["test, vs the first row"] for row in rows]
    assert differences[0] == ""
    assert [text.split(" [")[0] for text in differences[1:]] == ["+0.20", "+0.40", "-0.20", "+0.63"]


def test_there_is_nothing_to_compare_without_runs_of_both(joint, in_turn, together):
    assert order_table(Contents(in_turn), joint) is None
    assert order_table(Contents(together), joint) is None


def test_the_section_of_a_joint_search_shows_the_table(joint, in_turn, together):
    [shown] = settings_sections(Contents([*in_turn, *together], settings=[joint]))
    [hidden] = settings_sections(Contents(in_turn, settings=[joint]))
    assert shown.title == hidden.title == "imdb, size small@2: settings and walk of GA-SAM"
    assert "Does the order of the searches matter?" in shown.parts[-1]
    assert len(hidden.parts) == len(shown.parts) - 1
