"""Plans: what makes a run another one, and what does not."""

import json
import math
from dataclasses import fields, replace

import pytest

from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS
from gasam.lab.records import EpsilonSource
from gasam.lab.tasks import TASKS, Origin
from gasam.lab.training.plan import family_on, make
from local_layout import sentence, write_lines

HASH = {"hash": "of the data"}


def other(value):
    """Something else of the same kind."""
    return {bool: lambda: not value, int: lambda: value + 1, float: lambda: value / 2 + 0.01,
            str: lambda: f"not {value}", tuple: lambda: tuple(map(other, value)),
            type(None): lambda: 7}[type(value)]()  # fmt: skip


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # a name that no schedule has serves here
@pytest.mark.parametrize("task", ["imdb", "ptb", "en-vi", "mnist"])
def test_every_number_makes_another_run(task):
    plan = make(task, "ga-sam", "tiny", walk={"norm": 2.0})
    others = [replace(plan, seed=2), replace(plan, size="small"), replace(plan, task="docstrings")]
    for name, value in plan.settings:
        others.append(replace(plan, settings=plan.settings.model_copy(update={name: other(value)})))
    for field in fields(plan.choice):
        if field.name not in ("epsilon_source", "options"):  # options of a method: test_family_runs.py
            changed = replace(plan.choice, **{field.name: other(getattr(plan.choice, field.name))})
            others.append(replace(plan, choice=changed))
    identities = [made.identity(HASH) for made in (plan, *others)] + [plan.identity("other")]
    assert len(set(identities)) == len(identities) > 20
    assert len({made.name(HASH) for made in (plan, *others)}) == len(others) + 1


def test_where_data_lies_and_who_chose_epsilon_make_no_other_run(tmp_path):
    plan = make("imdb", "ga-sam")
    elsewhere = replace(plan, origin=Origin(data_dir=tmp_path))
    from_config = replace(
        plan, choice=replace(plan.choice, epsilon_source=EpsilonSource(kind="paper", remark="table3"))
    )
    assert plan.identity(HASH) == elsewhere.identity(HASH) == from_config.identity(HASH)


def test_a_file_is_known_by_its_content_and_not_by_its_name(tmp_path):
    lines = [sentence(i) for i in range(40)]
    texts = {"a.txt": lines, "b.txt": lines, "c.txt": [*lines[:-1], "another end"]}
    names = []
    for file, text in texts.items():
        plan = make("lm", "baseline", "tiny", origin=Origin(train=str(write_lines(tmp_path / file, text))))
        names.append(plan.name(plan.data().hash))
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("task", TASKS)
def test_every_plan_can_be_written_as_json(task):
    others = {"freelb"} if task in ("mnist", "digits") else set()
    for method in METHODS.keys() - others - set(family_on(task)[1]):
        walk = {"epsilon": 0.1, "norm": math.inf} if method != "baseline" else {}
        config = make(task, method, "paper", walk=walk).config()
        assert json.loads(json.dumps(config, allow_nan=False)) == config


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_told(seed):
    with pytest.raises(InputError, match=f"seed must be a whole number from 0 to 2147483647, got {seed}"):
        make("digits", seed=seed)
