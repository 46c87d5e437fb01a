"""Finished runs loaded for analyses: the very weights, the record's metric, the loss of training, or a sentence."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from gasam.lab.errors import InputError
from gasam.lab.families import encoded
from gasam.lab.families.translation import PAD, bleu
from gasam.lab.tasks import Origin
from gasam.lab.training.finished import load
from gasam.lab.training.plan import make
from gasam.lab.training.run import run
from local_layout import sentence, write_lines
from tolerances import SINGLE, error, same_bits

FAMILIES = ("digits", "imdb", "ptb", "en-vi")


@pytest.fixture(params=FAMILIES)
def loaded(request, trained):
    return load(trained[f"{request.param} baseline"], Origin(), cpu=True)


def write_table(file, rows, words=("good", "bad")):
    return write_lines(file, ["review,stars", *(f"{sentence(i)} {words[i % 2]},{i % 2}" for i in range(rows))])


def test_a_run_loads_with_its_weights_and_scores_what_its_record_says(loaded, trained):
    file = trained[f"{loaded.record.task} baseline"]
    saved = load_file(file.with_suffix("") / "model.safetensors")
    found = loaded.model.state_dict()
    tied = {"ptb": {"output.weight"}, "en-vi": {"model.decoder.embed_tokens.weight"}}.get(loaded.record.task, set())
    assert found.keys() - saved.keys() == tied
    assert saved.keys() <= found.keys()
    assert same_bits([found[name] for name in saved], saved.values())
    assert not loaded.model.training
    assert loaded.name == file.stem
    assert loaded.score(loaded.model, "test") == loaded.record.test > 0
    assert loaded.score(loaded.model, "valid") == loaded.record.valid


def test_a_folder_names_a_run_as_its_record_does(trained):
    file = trained["digits baseline"]
    assert load(file.with_suffix(""), Origin(), cpu=True).record == load(file, Origin(), cpu=True).record


@torch.no_grad()
def test_the_objective_is_the_training_loss_of_each_example(loaded):
    """A row of a classifier, a column of text from an empty state, a sentence by itself and without padding."""
    family, model = loaded.family, loaded.model
    for batch in loaded.examples("train", 32)[:2]:
        losses = loaded.objective(model, batch)
        if loaded.record.task == "en-vi":
            alone = [
                family.loss(model, tuple(side[i][side[i] != PAD][None] for side in batch), None)[0]
                for i in range(len(losses))
            ]
            assert error(losses, torch.stack(alone)) < SINGLE
            continue
        if loaded.record.task == "ptb":
            words, following = batch
            columns = [
                cross_entropy(model(words[:, i : i + 1], None)[0][:, 0], following[:, i]) for i in range(words.shape[1])
            ]
            assert error(losses, torch.stack(columns)) < SINGLE
        assert float(losses.mean()) == pytest.approx(float(family.loss(model, batch, None)[0]), rel=SINGLE)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_examples_are_always_the_same_and_as_many_as_asked(loaded, split):
    torch.manual_seed(1)
    first = loaded.examples(split, 6)
    torch.manual_seed(2)
    again = loaded.examples(split, 6)
    assert [len(batch) for batch in first] == [len(batch) for batch in again]
    assert all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    count = sum(len(loaded.objective(loaded.model, batch)) for batch in first)
    columns = loaded.family.settings.batch if loaded.record.task == "ptb" else 1
    assert count == loaded.count(split, 6)
    assert 6 <= count < 6 + columns


def test_no_more_examples_than_there_are(loaded):
    every = loaded.count("train", 10**6)
    assert every == loaded.count("train", every)
    assert every >= loaded.count("train", 6)


def test_a_score_can_be_of_the_first_rows(loaded):
    family, model = loaded.family, loaded.model
    found = loaded.score(model, "test", 7)
    if loaded.record.task == "en-vi":
        lines = family.translate(model, "test")
        assert family.translate(model, "test", 7) == lines[:7]
        assert found == bleu(lines[:7], family.data["test"]["target_text"][:7])[0]
    elif loaded.record.task == "ptb":
        words = family.data["test"][: 7 * family.settings.length + 1].long()
        with torch.no_grad():
            scores = model(words[:-1, None], None)[0][:, 0]
        assert found == pytest.approx(float(cross_entropy(scores, words[1:]).exp()), rel=SINGLE)
    else:
        inputs, labels = family.data["test"]
        with torch.no_grad():
            right = (model(inputs[:7]).argmax(1) == labels[:7]).double().mean()
        assert found == pytest.approx(100 * float(right))
        assert family.worthless("test", 7) == pytest.approx(100 * float(labels[:7].bincount().max()) / 7)


def test_a_model_without_numbers_has_the_worst_score(trained):
    for task, worst in (("ptb", float("inf")), ("digits", None)):
        loaded = load(trained[f"{task} baseline"], Origin(), cpu=True)
        with torch.no_grad():
            for weight in loaded.model.parameters():
                weight.fill_(float("nan"))
        found = loaded.score(loaded.model, "test")
        assert found == worst if worst else 0 <= found <= 100


def refused(file, *words, origin=None):
    with pytest.raises(InputError) as raised:
        load(file, origin or Origin(), cpu=True)
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_loaded_is_refused_in_one_sentence(own_trained, tmp_path):
    [file] = own_trained.glob("digits-tiny-baseline-*.json")
    refused(tmp_path / "none.json", "none.json does not exist: name the record of a finished run")
    model = file.with_suffix("") / "model.safetensors"
    model.rename(tmp_path / "kept")
    refused(file, f"{file.stem} has no weights", "model.safetensors does not exist")
    model.write_bytes(b"not a checkpoint")
    refused(file, f"{model} is damaged or does not hold the weights of this run")
    shutil.copy(tmp_path / "kept", model)
    record = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in record.items() if key != "settings"}))
    refused(file, "is not a record: it lacks settings")
    file.write_text(json.dumps({key: value for key, value in record.items() if key != "curve"}))
    refused(file, "is not a record: it lacks curve")
    file.write_text("{")
    refused(file, "is not a record")


def test_a_diverged_run_is_refused(tmp_path):
    plan = make("digits", "baseline", "tiny", settings={"learning_rate": 1e30})
    record = run(plan, tmp_path, cpu=True)
    assert record.diverged
    refused(tmp_path / f"{plan.name(plan.data().hash)}.json", "has no weights: the run diverged")


def test_other_data_is_refused_and_the_runs_own_is_taken(tmp_path):
    mine, other = write_table(tmp_path / "mine.csv", 40), write_table(tmp_path / "other.csv", 40, ("fine", "poor"))
    columns = {"text_column": "review", "label_column": "stars"}
    origin = Origin(train=str(mine), **columns)
    plan = make("classify", "baseline", "tiny", origin=origin)
    record = run(plan, tmp_path / "runs", cpu=True)
    [file] = (tmp_path / "runs").glob("*.json")
    loaded = load(file, origin, cpu=True)
    assert loaded.score(loaded.model, "test") == record.test
    refused(file, "the data found for classify is not the data of this run", origin=Origin(train=str(other), **columns))


def test_a_run_finds_its_own_files_by_itself_or_names_what_is_missing_or_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, rows in (("train", 40), ("valid", 10), ("test", 10)):
        write_table(tmp_path / f"{split}.csv", rows)
    named = {split: f"{split}.csv" for split in ("train", "valid", "test")}  # relative to where the run was started
    plan = make("classify", "baseline", "tiny", origin=Origin(**named, text_column="review", label_column="stars"))
    record = run(plan, tmp_path / "runs", cpu=True)
    [file] = (tmp_path / "runs").glob("*.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def test_score(origin):
        found = load(file, origin, cpu=True)
        return found.score(found.model, "test")

    assert test_score(Origin()) == record.test
    valid, moved = tmp_path / "valid.csv", tmp_path / "moved.csv"
    valid.rename(moved)
    refused(file, f"{valid}, the valid file of {file.stem}, does not exist: give", "--valid")
    assert test_score(Origin(valid=str(moved))) == record.test
    write_table(valid, 11)
    refused(file, f"{valid}, the valid file of {file.stem}, has changed since it was trained: give", "--valid")
    write_lines(valid, ["other,columns", "a,b"])
    refused(file, f"{valid}, the valid file of {file.stem}, has changed since it was trained")
    refused(file, f"{valid}, line 1: no column 'review'", origin=Origin(valid=str(valid)))
    valid.write_bytes(moved.read_bytes().replace(b"\n", b"\r\n"))
    assert test_score(Origin()) == record.test  # the same examples in another file


def test_data_that_is_encoded_otherwise_by_now_is_refused(trained, monkeypatch):
    monkeypatch.setattr(encoded, "VERSION", 999)
    refused(trained["digits baseline"], "has changed since this run (now version 999, then")


def test_files_are_not_for_tasks_that_bring_their_own(trained):
    refused(trained["digits baseline"], "digits has its own data", origin=Origin(train="a.csv"))
    with pytest.raises(InputError, match="split must be one of train, valid, test, got 'dev'"):
        load(trained["digits baseline"], Origin(), cpu=True).examples("dev", 3)
