"""Records are read into typed objects: every committed one as it is, and damaged ones are refused in one sentence."""

import json
import math
from pathlib import Path

import pytest
from synthetic import record

from gasam.lab import record as records
from gasam.lab.errors import InputError
from gasam.lab.record import EpsilonSource
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

RESULTS = Path(__file__).parents[2] / "results"


def test_every_committed_record_is_read_without_loss():
    files = sorted(RESULTS.glob("*.json"))
    assert len(files) > 100
    for file in files:
        raw, read = json.loads(file.read_text()), records.read(file)
        again = json.loads(json.dumps(records.as_json(read)))
        source = raw["epsilon_source"]  # a sentence in older records
        assert source == (str(read.epsilon_source) if isinstance(source, str) else again["epsilon_source"])
        raw.setdefault("data", {}).setdefault("encoding", None)
        assert {key: again[key] for key in raw.keys() - {"epsilon_source"}} == {
            key: value for key, value in raw.items() if key != "epsilon_source"
        }, file.name


def test_every_committed_analysis_is_read():
    files = sorted((RESULTS / "analysis").glob("*.json"))
    assert len(files) > 50
    for file in files:
        raw, read = json.loads(file.read_text()), records.read_analysis(file)
        assert (read.kind, read.options, read.found) == (raw["kind"], raw["options"], raw["found"])
        assert read.run.name == raw["run"]["name"]


SOURCES = {
    "none": EpsilonSource(kind="none"),
    "recommended": EpsilonSource(kind="recommended"),
    "command line": EpsilonSource(kind="given"),
    "paper of en-vi": EpsilonSource(kind="paper", borrowed_from="en-vi"),
    "paper, table3": EpsilonSource(kind="paper", remark="table3"),
    "chosen on validation of docstrings": EpsilonSource(kind="chosen", borrowed_from="docstrings"),
    "tuned on validation, 1 try": EpsilonSource(kind="tuned", trials=1),
    "tuned on validation, 0.05 x": EpsilonSource(kind="tuned", multiple=0.05),
    "tuned on validation without a gain for the usual walk, 8 tries": EpsilonSource(
        kind="tuned", trials=8, without_gain=True, for_usual_walk=True
    ),
}


@pytest.mark.parametrize("sentence", SOURCES)
def test_sentences_of_old_records_become_data(sentence):
    assert EpsilonSource.of_sentence(sentence) == SOURCES[sentence]
    assert str(SOURCES[sentence]) == sentence


def damaged(**changes):
    values = records.as_json(record("imdb", "ga-sam", 85.0)) | changes
    return json.dumps({key: value for key, value in values.items() if value != "left out"})


FAULTS = {
    "torn": (damaged()[:50], "is not a record: "),
    "a list": ("[]", "is not a record: "),
    "of a later version": (damaged(schema=2), "is not a record: schema: "),
    "without a seed": (damaged(seed="left out"), "is not a record: it lacks seed; delete it and run again"),
    "with text for a number": (damaged(test="good"), "is not a record: test: "),
    "without its method": (damaged(config={"settings": {}}), "is not a record: config: "),
    "without epochs": (damaged(config={"settings": {}, "method": {}}), "is not a record: config: "),
    "without a norm": (
        damaged(config={"settings": {"epochs": 2}, "method": {"epsilon": 1}}),
        "is not a record: config",
    ),
    "with a score of NaN": (damaged(test=math.nan), "is not a record: test: "),
    "with a score of true": (damaged(test=True), "is not a record: test: "),
    "without any gradients": (damaged(gradient_evaluations=0), "is not a record: gradient_evaluations"),
    "with endless gradients": (damaged(gradient_evaluations=math.inf), "is not a record: gradient_evaluations"),
    "deeper than Python goes": ("[" * 100_000, "is not a record: "),
    "with an unknown source": (damaged(epsilon_source="guessed"), "is not a record: epsilon_source: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_records_are_refused_in_one_sentence(fault, tmp_path):
    text, told = FAULTS[fault]
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        records.read(file)
    assert str(caught.value).startswith(f"{file} {told}")
    assert "\n" not in str(caught.value)
    assert file.exists()


def test_a_folder_or_a_broken_link_is_no_record(tmp_path):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "nothing")
    for name in ("folder.json", "link.json"):
        with pytest.raises(InputError, match=rf"{name} cannot be read \(.*\): check what it is"):
            records.read(tmp_path / name)


def test_new_records_name_the_processor_and_its_instructions(tmp_path):
    made = run(make("digits", "baseline", "tiny", settings={"epochs": 1}), tmp_path, cpu=True)
    assert made.machine["cpu"]
    assert made.machine["instructions"]
    [file] = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["epsilon_source"]["kind"] == "none"
    assert records.read(file) == made
