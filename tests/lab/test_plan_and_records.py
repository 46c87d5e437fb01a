"""Plans and records: what makes another run, what does not, and damaged records that are refused in one sentence."""

import json
import math
from dataclasses import replace

import pytest
from refusals import refusal
from synthetic import record

from gasam.lab import record as records
from gasam.lab.methods import METHODS, Walk
from gasam.lab.tasks import TASKS, Origin
from gasam.lab.training.plan import family_on, make
from gasam.lab.training.run import run
from local_layout import sentence, write_lines

DATA = "hash of the data"
PINNED = {"docstrings": "677d7e5f", "pydoc": "d97025e2", "numerals": "e43b5ef0", "digits": "e8fbcd4e"}
"""The end of the name of one plan for each family. A change gives every run of every user another name: it is announced
in the changelog."""


def test_the_names_of_runs_have_not_changed(tmp_path):
    """Those of an own model depend on the text of its file."""
    for task, end in PINNED.items():
        assert make(task, "ga-sam", "paper", walk={"epsilon": 0.1}).name(DATA).rpartition("-")[2] == end
    file = write_lines(tmp_path / "mine.py", [
        "import torch",
        "def model(width=4): return torch.nn.Linear(width, 1)",
        "def loss(model, batch): return model(batch).mean()",
        "def data(): return [(torch.ones(3, 4),)] * 3",
        "def metric(model, batch): return model(batch)[:, 0]",
        "higher_is_better = False",
    ])  # fmt: skip
    plan = make(str(file), "ga-sam", walk={"epsilon": 0.1})
    assert plan.name(DATA) == "mine-own-ga-sam-1-e6a358c9"


def other(value):
    """Something else of the same kind."""
    return {bool: lambda: not value, int: lambda: value + 1, float: lambda: value / 2 + 0.01,
            str: lambda: f"not {value}", tuple: lambda: tuple(map(other, value)), dict: lambda: {"alpha": 1.0},
            type(None): lambda: 7}[type(value)]()  # fmt: skip


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # a name that no schedule has serves here
@pytest.mark.parametrize("task", ["imdb", "ptb", "en-vi", "mnist"])
def test_every_setting_makes_another_run(task):
    plan = make(task, "ga-sam", "tiny", walk={"norm": 2.0})
    others = [replace(plan, seed=2), replace(plan, task="docstrings")]
    for name, value in plan.settings:
        others.append(replace(plan, settings=plan.settings.model_copy(update={name: other(value)})))
    for name in Walk.model_fields.keys() - {"source", "method"}:
        walk = plan.walk.model_copy(update={name: other(getattr(plan.walk, name))})
        others.append(replace(plan, walk=walk))
    names = [made.name(DATA) for made in (plan, *others)] + [plan.name("other data")]
    assert len(set(names)) == len(names) > 20


def test_labels_places_and_who_chose_the_walk_make_no_other_run(tmp_path):
    plan = make("imdb", "ga-sam")
    chosen = replace(plan, walk=plan.walk.model_copy(update={"source": "tuned"}))
    same = (replace(plan, origin=Origin(data_dir=tmp_path)), replace(plan, size="mine"), replace(plan, seed=2), chosen)
    assert {plan.key(DATA)} == {each.key(DATA) for each in same}
    assert chosen.name(DATA) == plan.name(DATA) != replace(plan, seed=2).name(DATA)


def test_a_file_is_known_by_its_content_and_not_by_its_name(tmp_path):
    lines = [sentence(i) for i in range(40)]
    texts = {"a.txt": lines, "b.txt": lines, "c.txt": [*lines[:-1], "another end"]}
    names = []
    for file, text in texts.items():
        plan = make("lm", "baseline", "tiny", origin=Origin(train=str(write_lines(tmp_path / file, text))))
        names.append(plan.name(plan.data().hash))
    assert names[0] == names[1] != names[2]


def test_every_plan_can_be_written_as_json():
    for method in METHODS.keys() - set(family_on("imdb")[1]):
        walk = {"epsilon": 0.1, "norm": math.inf} if method != "baseline" else {}
        plan = make("imdb", method, "paper", walk=walk)
        written = json.loads(json.dumps(plan.config(), allow_nan=False))
        assert written == plan.config()
        assert Walk(**written["walk"]) == plan.walk


def test_a_record_is_read_as_it_was_written_and_has_the_key_of_its_plan(tmp_path):
    plan = make("digits", "gsam", "tiny", settings={"epochs": 1})
    made = run(plan, tmp_path, cpu=True)
    found = records.read(tmp_path / f"{made.name}.json")
    assert found == made
    assert found.key == plan.key(plan.data().hash)
    assert found.metric == TASKS["digits"].family.metric
    assert found.machine["cpu"]


def damaged(**changes):
    values = records.as_json(record("imdb", "ga-sam", 85.0)) | changes
    return json.dumps({key: value for key, value in values.items() if value != "left out"})


FAULTS = {
    "torn": (damaged()[:50], ""),
    "of another version": (damaged(schema=1), "schema: Input should be 2; delete it and run again"),
    "without a seed": (damaged(seed="left out"), "seed: Field required"),
    "with a score of NaN": (damaged(test=math.nan), "test: "),
    "with an unknown entry": (damaged(colour="red"), "colour: "),
    "with a metric that has no name": (damaged(metric={"unit": "%"}), "metric.name: Field required"),
    "deeper than Python goes": ("[" * 100_000, ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_records_are_refused_in_one_sentence(fault, tmp_path):
    text, told = FAULTS[fault]
    file = tmp_path / "run.json"
    file.write_text(text)
    assert refusal(records.read, file).startswith(f"{file} is not a record: {told}")
    assert "cannot be read (Is a directory): check what it is" in refusal(records.read, tmp_path)
