"""Whether settings and walk are better searched in turn or together, on records whose answer is known."""

import pytest
from synthetic import records_of

from gasam.lab.report.contents import Contents
from gasam.lab.report.search_order import order_table
from gasam.lab.report.search_sections import settings_sections
from gasam.lab.search.settings_finding import SettingsFinding, SettingsTrial
from gasam.lab.tasks import TASKS

PLAIN, RECOMMENDED, AFTERWARDS = [86.0, 86.2, 86.4], [86.3, 86.4, 86.5], [86.5, 86.6, 86.7]
JOINT, JOINT_PLAIN = [86.6, 86.9, 87.0], [85.9, 86.0, 86.1]
SETTINGS, WALK = {"learning_rate": 3e-3, "dropout": 0.3}, {"budget": 0.2, "cap": 0.05}


def trial(valid, **values):
    return SettingsTrial(
        values=values, valid=valid, curve=(valid,), worthless=50.0, diverged=False, gradient_evaluations=8, seconds=1.0
    )


def finding(method, *trials, data="imdb-data"):
    about = {"schema": 1, "name": "imdb", "task": "imdb", "size": "small@2", "method": method}
    joint = method != "baseline"
    return SettingsFinding(**about, joint=joint, seed=0, settings={}, shared={}, data=data, space={}, trials=trials)


@pytest.fixture
def joint():
    other = trial(86.0, learning_rate=1e-3, budget=0.1, cap=0.01)
    return finding("ga-sam", trial(85.0), trial(86.5, **SETTINGS, **WALK), other)


@pytest.fixture
def of_baseline():
    """A search for plain training that chose the settings of small@3."""
    own, newest = (TASKS["imdb"].sizes[size] for size in ("small@2", "small@3"))
    changed = {name: value for name, value in vars(newest).items() if value != getattr(own, name)}
    return finding("baseline", trial(84.0), trial(85.5, **changed))


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
        *records_of("imdb", {"ga-sam": [71.0] * 3}, size="small@2", settings=SETTINGS, walk={**walk, "walk_every": 4}),
    ]


def rows_of(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_both_orders_stand_beside_plain_training_with_its_own_settings(joint, of_baseline, in_turn, together):
    table = order_table(Contents([*in_turn, *together], settings=[of_baseline, joint]), joint)
    rows = rows_of(table)
    assert [(row["walk"], row["validation, accuracy"]) for row in rows] == [
        ("none", "86.20"),
        ("recommended", "86.40"),
        ("searched afterwards", "86.60"),
        ("none", "86.00"),
        ("of the joint search", "86.83"),
    ]
    assert [row["settings"] for row in rows] == ["of small@3"] * 3 + ["of the joint search"] * 2
    differences = [row["vs the first row, points"] for row in rows]
    assert differences[0] == ""
    assert [text.split(" [")[0] for text in differences[1:]] == ["+0.20", "+0.40", "-0.20", "+0.63"]
    to_recommended = [row["vs the recommended walk, points"].split(" [")[0] for row in rows]
    assert to_recommended == ["", "", "+0.20", "-0.40", "+0.43"]
    assert table.notes[0].startswith("The joint search took 24 gradient evaluations; ")
    assert table.notes[0].endswith("took 16 together.")


def test_a_joint_search_that_kept_the_own_settings_is_compared_with_the_recommended_walk(of_baseline, in_turn):
    kept = finding("ga-sam", trial(86.5))
    runs = [*in_turn, *records_of("imdb", {"ga-sam": [60.0] * 3}, size="small@2", walk={"epsilon": 0.1})]
    rows = rows_of(order_table(Contents(runs, settings=[of_baseline, kept]), kept))
    assert [row["validation, accuracy"] for row in rows[3:]] == ["80.00", "80.00"], "without the walk with an epsilon"


def test_there_is_nothing_to_compare_without_runs_of_both(joint, of_baseline, in_turn, together):
    searches = [of_baseline, joint]
    assert order_table(Contents(in_turn, settings=searches), joint) is None
    assert order_table(Contents(together, settings=searches), joint) is None
    assert order_table(Contents([*in_turn, *together], settings=[joint]), joint) is None, "small@3 was not searched"
    elsewhere = finding("ga-sam", *joint.trials, data="other data")
    assert order_table(Contents([*in_turn, *together], settings=searches), elsewhere) is None


def test_the_section_of_a_joint_search_shows_the_table(joint, of_baseline, in_turn, together):
    *_, shown = settings_sections(Contents([*in_turn, *together], settings=[of_baseline, joint]))
    *_, hidden = settings_sections(Contents(in_turn, settings=[of_baseline, joint]))
    assert shown.title == hidden.title == "imdb, size small@2: settings and walk of GA-SAM"
    assert "Does the order of the searches matter?" in shown.parts[-1]
    assert len(hidden.parts) == len(shown.parts) - 1
