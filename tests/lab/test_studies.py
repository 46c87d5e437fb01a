"""The configs of the paper's tables: they load, they say what they cost, and every run of theirs can be planned."""

import copy
import math
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS, TABLE1
from gasam.lab.paper import studies
from gasam.lab.paper.studies import FOLDER, Expected, load, names, parse
from gasam.lab.tasks import SIZE_NAMES, TASKS
from gasam.lab.training import plan

ROOT = Path(__file__).parents[2]
EVERY = ("table1", "table2", "table3", "table5")


def raw(name="table1"):
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def test_every_config_is_listed():
    assert names() == sorted(file.stem for file in FOLDER.glob("*.toml")) == list(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_rows_are_known_methods_with_a_number_of_the_paper_for_every_task(name):
    study = load(name)
    assert len({row.label for row in study.rows}) == len(study.rows)
    assert study.seeds == 4
    assert set(study.tasks) <= set(TASKS)
    for task in study.tasks:
        rows = study.rows_on(task)
        assert [row.label for row in rows] == [row.label for row in study.rows]
        assert {row.method for row in rows} <= set(METHODS)
        assert [row.expected.text for row in rows] == [row.paper[task] for row in study.rows]


@pytest.mark.parametrize("size", SIZE_NAMES)
@pytest.mark.parametrize("name", EVERY)
def test_every_plan_is_made_once(name, size):
    plans = load(name).plans(size)
    configs = [(str(run.config()), run.seed) for run in plans]
    assert len(set(configs)) == len(configs)
    assert {run.size for run in plans} == {size}
    assert {run.seed for run in plans} == {1, 2, 3, 4}
    assert {run.walk.source for run in plans} == {"paper", "none"}


@pytest.mark.parametrize("name", EVERY)
def test_cost_is_what_the_plans_add_up_to(name):
    study = load(name)
    plans = study.plans("paper")
    passes = sum(
        sum(1 + run.walk.steps * (bool(run.walk.size) and epoch >= run.walk.start_epoch) for epoch in epochs)
        / len(epochs)
        for run in plans
        for epochs in [range(1, run.settings.epochs + 1)]
    )
    assert study.cost == f"{len(plans)} runs that cost as much as {passes:.0f} of the baseline at size paper"


def test_table1_compares_the_six_methods():
    assert tuple(row.method for row in load("table1").rows) == TABLE1


def test_the_rung_with_the_own_epsilon_is_the_walk_of_k_1():
    study = load("table3")
    assert len(study.plans("paper", seeds=[1])) == len(study.tasks) * (len(study.rows) - 1)
    for task, rung in (("imdb", "L-inf, 1 x"), ("ptb", "L-inf, 0.8 x")):
        same = {
            row.label
            for row in study.rows_on(task)
            if row.plan("small", 1).key("") == plan.make(task, "ga-sam", walks="paper").key("")
        }
        assert same == {"K = 1", rung}


def _config(row):
    config = row.plan("small", 1).config()
    return config | {"walk": config["walk"] | {"source": ""}}


@pytest.mark.parametrize(
    ("norm", "prefix", "factors", "unit"),
    [
        (2.0, "L2", (0.1, 0.5, 1, 5, 10, 50), {"imdb": 1e-2, "ptb": 1e-3}),
        (math.inf, "L-inf", (0.2, 0.5, 0.8, 1, 2, 5), {"imdb": 1e-4, "ptb": 1e-5}),
    ],
)
def test_ladders_climb_in_the_units_of_their_task(norm, prefix, factors, unit):
    for task in unit:
        rows = [row for row in load("table3").rows_on(task) if row.label.startswith(prefix)]
        assert [row.label for row in rows] == [f"{prefix}, {factor:g} x" for factor in factors]
        for row, factor in zip(rows, factors, strict=True):
            assert row.walk == {"norm": norm, "epsilon": pytest.approx(factor * unit[task])}


def test_differences_are_computed_and_the_slips_are_the_two_of_the_paper():
    slips = [
        (name, row.label, task, row.expected.slip, row.expected.difference)
        for name in EVERY
        for task in load(name).tasks
        for row in load(name).rows_on(task)
        if row.expected.slip
    ]
    assert slips == [
        ("table1", "Layer-SAM", "imdb", "+0.83", Decimal("0.85")),
        ("table3", "L-inf, 2 x", "ptb", "-0.96", Decimal("-1.50")),
    ]
    assert Expected("507.0 ± 243", Expected("86.70 ± 0.54")).difference == Decimal("420.3")


def test_the_same_row_has_the_same_number_in_every_table():
    numbers = {}
    for name in EVERY:
        for task in load(name).tasks:
            for row in load(name).rows_on(task):
                assert numbers.setdefault(str(_config(row)), row.expected.text) == row.expected.text


def test_plans_can_be_limited():
    plans = load("table5").plans("tiny", ["de-en"], range(1, 3))
    assert {(run.task, run.seed) for run in plans} == {("de-en", 1), ("de-en", 2)}
    with pytest.raises(InputError, match=r"table5 has no task 'imdb': it has en-vi, de-en"):
        load("table5").plans("tiny", ["imdb"])


def _without(key):
    return lambda study: study.pop(key)


def _row(**changes):
    return lambda study: study["rows"][1].update(changes)


def _task(name):
    """One more task, with a result in every row."""

    def spoil(study):
        study["tasks"].append(name)
        for row in study["rows"]:
            row["paper"][name] = "1 ± 1"

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("title"), "table1: title: "),
        (lambda s: s.update(seeds="4"), "table1: seeds: "),
        (lambda s: s.update(seeds=0), "table1: seeds: "),
        (lambda s: s.update(extra=1), "table1: extra: "),
        (_task("chess"), "table1: task must be one of"),
        (lambda s: s.update(tasks=["imdb"]), "row 1 must have a result of the paper for imdb"),
        (lambda s: s["rows"].pop(0), "the first row must be the baseline"),
        (lambda s: s.update(rows=[]), "table1: rows: "),
        (lambda s: s.update(rows=["sam"]), "table1: rows.1: "),
        (_row(method="magic"), "table1: method must be one of"),
        (_row(walk={"radius": 1}), "a walk has no option 'radius'"),
        (_row(walk={"steps": 0}), "steps must be a whole number >= 1"),
        (_row(walk={"imdb": {"epsilon": -1}}), "epsilon must be a finite number >= 0"),
        (_row(paper={"imdb": "84.4"}), "table1: rows.2.paper.imdb: "),
    ],
)
def test_a_bad_config_is_refused_in_one_sentence(spoil, message):
    study = copy.deepcopy(raw())
    spoil(study)
    with pytest.raises(InputError) as raised:
        parse("table1", study)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_study_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"study must be one of figure1, .*, table1, table2, table3, .* got 'table9'"):
        load("table9")
    (tmp_path / "broken.toml").write_text("title = ")
    monkeypatch.setattr(studies, "FOLDER", tmp_path)
    with pytest.raises(InputError, match="broken is not TOML"):
        load("broken")
