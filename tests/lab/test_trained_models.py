"""Trained models: the weights and numbers of evaluation, from the folder alone or with the data, or a sentence."""

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refusals import refusal
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from gasam.lab import load
from gasam.lab.families.classification import TextClassification
from gasam.lab.families.family import Sampling
from gasam.lab.families.translation import PAD
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import make
from gasam.lab.training.run import run
from local_layout import idx, sentence, write, write_lines
from tolerances import EXACT, SINGLE, error, same_bits

FAMILIES = ("digits", "imdb", "ptb", "en-vi")


@pytest.fixture(params=FAMILIES)
def loaded(request, trained):
    return load(trained[f"{request.param} baseline"], Origin(), cpu=True)


@pytest.fixture
def folder(trained, tmp_path):
    """The folder of a run, copied to another place without the record beside it."""

    def copied(task):
        source = trained[f"{task} baseline"].with_suffix("")
        return Path(shutil.copytree(source, tmp_path / "elsewhere" / source.name))

    return copied


@pytest.fixture
def typed(monkeypatch):
    """Gives text to standard input."""

    def give(text):
        data = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def with_data(trained, task):
    return load(trained[f"{task} baseline"], Origin(), cpu=True)


def write_table(file, rows, words=("yes", "no")):
    return write_lines(file, ["review,stars", *(f'"{sentence(i)} {i % 7}",{words[i % 3 == 0]}' for i in range(rows))])


@pytest.fixture
def classified(tmp_path, monkeypatch):
    """The record of a run on the user's own tables, and its file. 600 rows are more than one batch."""
    monkeypatch.chdir(tmp_path)
    for split, rows in (("train", 80), ("valid", 20), ("test", 600)):
        write_table(tmp_path / f"{split}.csv", rows)
    named = {split: f"{split}.csv" for split in ("train", "valid", "test")}  # relative to where the run was started
    plan = make("classify", "baseline", "tiny", origin=Origin(**named, text_column="review", label_column="stars"))
    record = run(plan, tmp_path / "runs", cpu=True)
    [file] = (tmp_path / "runs").glob("*.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return record, file


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


def test_every_family_is_used_from_its_folder_alone_by_a_new_process(trained, tmp_path):
    """No record, no data, no cache, and another working folder; the model has the very same bits."""
    script = tmp_path / "use.py"
    script.write_text(
        "import json, sys, torch\n"
        "from gasam.lab import load\n"
        "for name, inputs in json.loads(sys.argv[1]).items():\n"
        "    run = load(name, cpu=True)\n"
        "    torch.save(run.model.state_dict(), f'{name}.pt')\n"
        "    print(json.dumps(run.predict(inputs)))\n"
    )
    inputs = {"digits": [[7] * 64], "imdb": ["a fine film", "dull"], "ptb": ["the quick"], "en-vi": ["the lazy dog"]}
    names = {task: trained[f"{task} baseline"].stem for task in inputs}
    for name in names.values():
        shutil.copytree(trained["digits baseline"].parent / name, tmp_path / "away" / name)
    nowhere = str(tmp_path / "nowhere")
    done = subprocess.run(
        [sys.executable, script, json.dumps({names[task]: given for task, given in inputs.items()})],
        cwd=tmp_path / "away", env=os.environ | {"GASAM_CACHE": nowhere, "GASAM_DATA": nowhere, "HOME": nowhere},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (task, given), line in zip(inputs.items(), done.stdout.splitlines(), strict=True):
        known = with_data(trained, task)
        assert json.loads(line) == known.family.predict(known.model, given, Sampling())
        there = torch.load(tmp_path / "away" / f"{names[task]}.pt", weights_only=True)
        assert there.keys() == known.model.state_dict().keys()
        assert same_bits(there.values(), known.model.state_dict().values())
    assert not Path(nowhere).exists()


@torch.no_grad()
def test_the_objective_is_the_training_loss_of_each_example(loaded):
    """A sentence is by itself and without padding; the others together have the mean loss of their batch."""
    family, model = loaded.family, loaded.model
    for batch in loaded.examples("train", 32)[:2]:
        losses = loaded.objective(model, batch)
        if loaded.record.task == "en-vi":
            alone = [
                family.loss(model, tuple(side[i][side[i] != PAD][None] for side in batch), None)[0]
                for i in range(len(losses))
            ]
            assert error(losses, torch.stack(alone)) < SINGLE
        else:
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


def test_a_score_can_be_of_the_first_rows_and_is_the_worst_without_numbers(trained):
    loaded = with_data(trained, "ptb")
    words = loaded.family.data["test"][: 7 * loaded.family.settings.length + 1].long()
    with torch.no_grad():
        scores = loaded.model(words[:-1, None], None)[0][:, 0]
        first = float(cross_entropy(scores, words[1:]).exp())
        assert loaded.score(loaded.model, "test", 7) == pytest.approx(first, rel=SINGLE)
        next(loaded.model.parameters()).fill_(float("nan"))
    assert loaded.score(loaded.model, "test") == float("inf")


def test_classes_are_those_of_the_model_and_their_accuracy_is_the_records(command, classified, tmp_path):
    record, file = classified
    ended = command("predict", file, tmp_path / "test.csv", "--json", "--cpu", "--text-column", "review").done()
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert [each["line"] for each in found] == list(range(2, 602))
    right = sum(each["class"] == ("yes" if i % 3 else "no") for i, each in enumerate(found))
    assert 100 * right / 600 == record.test
    known = load(file, Origin(), cpu=True)
    with torch.no_grad():
        shares = torch.cat([known.model(some).double().softmax(1) for some in known.family.data["test"][0].split(250)])
    assert [each["probabilities"] for each in found] == [{"no": no, "yes": yes} for no, yes in shares.tolist()]
    assert ended.err == "600 predictions\n"


def test_the_perplexity_of_a_text_is_that_of_evaluation(trained, command, data_dir):
    known = with_data(trained, "ptb")
    file = data_dir / "ptb/ptb.test.txt.gz"
    ended = command("predict", trained["ptb baseline"], file, "--json", "--words", 0, "--cpu").done()
    *lines, whole = map(json.loads, ended.out.splitlines())
    assert whole["whole_input"]["perplexity"] == pytest.approx(known.record.test, rel=EXACT)
    assert whole["whole_input"]["words"] == len(known.family.data["test"]) - 1
    assert len(lines) == 20
    assert all(line.keys() == {"line", "perplexity", "words"} for line in lines)
    shown = command("predict", trained["ptb baseline"], file, "--words", 0, "--cpu")
    assert shown.out.splitlines() == [f"{line['perplexity']:.2f}" for line in lines]
    assert f"perplexity of the whole input: {known.record.test:.2f}\n" in shown.err


@torch.no_grad()
def test_a_line_is_read_on_its_own_and_continued_by_its_likeliest_words(trained):
    """Against the model called word by word; lines of several lengths, one longer than a window."""
    loaded = load(trained["ptb baseline"], cpu=True)
    words, model = loaded.family.data.shared["words"], loaded.model
    lines = ["the quick fox", sentence(3, words=25), "a lazy dog", "unheard-of words here"]
    found = loaded.predict(lines, words=4)
    for line, prediction in zip(lines, found, strict=True):
        numbers = [words.index(word) if word in words else 0 for word in ["<eos>", *line.split(), "<eos>"]]
        stream = torch.tensor(numbers)[:, None]
        shares = model(stream[:-1], None)[0].double().log_softmax(-1)
        loss = -shares[torch.arange(len(stream) - 1), 0, stream[1:, 0]].mean()
        assert prediction["perplexity"] == pytest.approx(float(loss.exp()), rel=SINGLE)
        assert prediction["words"] == len(numbers) - 1
        followed = numbers[:-1]
        for _ in range(4):
            scores = model(torch.tensor(followed)[:, None], None)[0][-1, 0]
            scores[words.index("<unk>")] = -torch.inf
            followed.append(int(scores.argmax()))
            if words[followed[-1]] == "<eos>":
                break
        added = [words[number] for number in followed[len(numbers) - 1 :]]
        assert prediction["continuation"] == " ".join(word for word in added if word != "<eos>")
        [alone] = loaded.predict([line], words=4)
        assert alone["perplexity"] == pytest.approx(prediction["perplexity"], rel=SINGLE)
        assert alone["continuation"] == prediction["continuation"]
    assert loaded.predict(lines, words=0)[0].get("continuation") is None


def test_drawn_words_depend_on_the_seed_and_on_the_line_alone(trained):
    loaded = load(trained["ptb baseline"], cpu=True)
    lines = [sentence(i) for i in range(12)]
    first = loaded.predict(lines, words=6, seed=1)
    assert first == loaded.predict(lines, words=6, seed=1, temperature=1.0)
    assert loaded.predict(lines[5:6], words=6, seed=1)[0]["continuation"] == first[5]["continuation"]
    assert loaded.predict(lines, words=6, seed=2) != first
    assert loaded.predict(lines, words=6, seed=1, temperature=0) == loaded.predict(lines, words=6)
    assert max(len(each["continuation"].split()) for each in first) <= 6


def test_translations_are_those_of_evaluation(trained, command, data_dir, tmp_path):
    known = with_data(trained, "en-vi")
    expected = known.family.translate(known.model, known.family.sides["test"][0])
    texts = gzip.decompress((data_dir / "iwslt15/tst2013.en.gz").read_bytes()).decode().splitlines()[: len(expected)]
    file = write_lines(tmp_path / "source.en.gz", texts)
    ended = command("predict", trained["en-vi baseline"], file, "--cpu").done()
    assert ended.out.splitlines() == expected
    loaded = load(trained["en-vi baseline"], cpu=True)
    assert [each["translation"] for each in loaded.predict(texts)] == expected
    told = "the input has a text of 2,501 tokens, but 2,048 is the limit: split it"
    assert told in refusal(loaded.predict, ["dog " * 2_500])


def test_inputs_are_read_from_standard_input_and_every_kind_of_file(folder, command, tmp_path, typed):
    place = folder("imdb")
    texts = ["a fine film", "dull", "the quick brown fox"]
    typed("\n".join(texts))
    expected = command("predict", place, "-", "--cpu").done()
    assert len(expected.out.splitlines()) == 3
    label, shares = expected.out.splitlines()[0].split("\t")
    assert shares.startswith(f"{label} 0.")
    rows = {
        "lines.txt": "\r\n".join(texts),
        "lines.gz": "\n".join(texts),
        "table.csv": "text,id\n" + "".join(f'"{text}",1\n' for text in texts),
        "table.tsv.gz": "id\ttext\n" + "".join(f"1\t{text}\n" for text in texts),
        "rows.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts),
    }
    for name, content in rows.items():
        assert command("predict", place, write(tmp_path / name, content), "--cpu").out == expected.out, name
    blank = write(tmp_path / "blank.txt", "one\n\n  \ntwo\n")
    found = command("predict", place, blank, "--cpu", "--json").out.splitlines()
    assert [json.loads(line)["line"] for line in found] == [1, 4]
    shown = command("predict", place, blank, "--cpu")
    assert [bool(line) for line in shown.out.splitlines()] == [True, False, False, True]
    assert shown.err == "2 predictions; 2 blank lines without one\n"
    named = write(tmp_path / "named.csv", rows["table.csv"].replace("text,id", "said,id"))
    ended = command("predict", place, named, "--text-column", "said", "--out", tmp_path / "found.txt", "--cpu")
    assert (ended.code, ended.out) == (0, "")
    assert (tmp_path / "found.txt").read_text() == expected.out
    assert ended.err == f"3 predictions; saved: {tmp_path / 'found.txt'}\n"


def test_images_are_read_as_lines_of_pixels_json_or_idx(folder, command, tmp_path, typed, trained):
    place = folder("digits")
    pixels = with_data(trained, "digits").family.data["test"][0][:5]
    rows = pixels.tolist()
    expected = load(place, cpu=True).predict(rows)
    plain = "\n".join(" ".join(map(str, row)) for row in rows)
    header = ",".join(f"pixel{i}" for i in range(64))
    files = {
        "plain.txt": plain,
        "table.csv": header + "\n" + "\n".join(",".join(f"{p}.0" for p in row) for row in rows),
        "lists.jsonl": "\n".join(map(json.dumps, rows)),
        "t5-images-idx3-ubyte.gz": idx(2051, [5, 8, 8], bytes(pixels.flatten().tolist())),
    }
    for name, content in files.items():
        ended = command("predict", place, write(tmp_path / name, content), "--json", "--cpu").done()
        found = [json.loads(line) for line in ended.out.splitlines()]
        first = 2 if name == "table.csv" else 1
        assert found == [{"line": first + i} | each for i, each in enumerate(expected)], name
    assert load(place, cpu=True).predict(list(pixels.view(5, 8, 8).numpy())) == expected
    assert load(place, cpu=True).predict([bytes(row) for row in rows]) == expected


def refused(ended, sentence):
    assert ended.refused().startswith(sentence), ended.err


BAD_INPUTS = {
    "imdb": {
        "empty.txt": ("", "empty.txt has no inputs: give at least one line that is not blank"),
        "column.csv": (
            "review\ngood\n",
            "column.csv, line 1: no column 'text' among 'review': name it with --text-column",
        ),
        ".": (None, ".: cannot be read (Is a directory)"),
        "good.txt --words 3": ("good\n", "words, temperature and seed are for language models, but"),
        "good.txt --out .": ("good\n", "--out must name a file, but . is a folder"),
    },
    "digits": {
        "image.txt": ("1 2 3\n", "image.txt, line 1: an image must have 64 whole numbers from 0"),
        "high.txt": (f"{'9 ' * 63}256\n", "high.txt, line 1: an image must have 64 whole numbers from 0"),
        "cut-ubyte": (idx(2051, [2, 8, 8], bytes(70)), "cut-ubyte: 70 bytes of data, but the header says 128"),
        "broken.jsonl": ("[1,\n", "broken.jsonl, line 1: not JSON"),
    },
}


@pytest.mark.parametrize("task", BAD_INPUTS)
def test_bad_inputs_and_options_are_told_in_one_sentence(task, folder, command, tmp_path, monkeypatch, typed):
    place = folder(task)
    monkeypatch.chdir(tmp_path)
    for given, (content, told) in BAD_INPUTS[task].items():
        if content is not None:
            write(tmp_path / given.split()[0], content)
        refused(command("predict", place, *given.split(), "--cpu"), told)
    refused(
        command("predict", place, "none.txt", "--cpu"),
        "none.txt: cannot be read (No such file or directory): check its path",
    )
    typed("")
    refused(command("predict", place, "--cpu", "--out", "kept.txt"), "standard input has no inputs")
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".") or file.name == "kept.txt"]


def test_what_is_no_run_is_told_in_one_sentence(folder, command, tmp_path):
    place = folder("imdb")
    inputs = write_lines(tmp_path / "good.txt", ["good"])
    predict = lambda run: command("predict", run, inputs, "--cpu")  # noqa: E731
    for nothing in (tmp_path / "none.json", tmp_path, write_lines(tmp_path / "other.json", ["{}"])):
        missing = nothing.with_suffix("") / "run.json"
        refused(predict(nothing), f"{nothing} is not a finished run: {missing} does not exist; name its record or")
    weights, encoding, about = (place / name for name in ("model.safetensors", "encoding.json", "run.json"))
    assert predict(about).code == 0
    described = json.loads(about.read_text())
    described["record"]["data"]["encoding"] = 4
    digits = (folder("digits") / "model.safetensors").read_bytes()
    for file, damage, told in (
        (weights, weights.read_bytes()[:-9], f"{weights} is damaged or does not hold the weights of this run"),
        (weights, digits, f"{weights} is damaged or does not hold the weights of this run"),
        (encoding, b"{", f"{encoding} is missing or damaged (Expecting"),
        (encoding, b"{}", f"{encoding} is damaged (it lacks 'words')"),
        (about, b"[]", f"{about} is not the description of a run"),
        (about, json.dumps(described).encode(), "the encoding of imdb has changed since this run (now version 5, then"),
    ):
        kept = file.read_bytes()
        file.write_bytes(damage)
        refused(predict(place), told)
        file.write_bytes(kept)
    weights.unlink()
    refused(predict(place), f"{place.name} has no weights: {weights} does not exist")
    encoding.unlink()
    refused(predict(place), f"{encoding} is missing or damaged")


def test_a_diverged_run_has_no_weights_to_use(command, tmp_path):
    run(make("digits", "baseline", "tiny", settings={"learning_rate": 1e30}), tmp_path, cpu=True)
    [file] = tmp_path.glob("*.json")
    refused(command("predict", file, "-"), f"{file.stem} has no weights: the run diverged")


def test_a_run_finds_its_own_files_by_itself_or_names_what_is_missing(classified, tmp_path):
    record, file = classified

    def test_score(origin):
        found = load(file, origin, cpu=True)
        return found.score(found.model, "test")

    assert test_score(Origin()) == record.test
    valid, moved = tmp_path / "valid.csv", tmp_path / "moved.csv"
    valid.rename(moved)
    assert f"{valid} is not a file: check --valid" in refusal(load, file, Origin(), cpu=True)
    assert test_score(Origin(valid=str(moved))) == record.test
    other = Origin(valid=str(write_table(tmp_path / "other.csv", 20, ("no", "yes"))))
    assert "the data found for classify is not the data of this run" in refusal(load, file, other, cpu=True)
    valid.write_bytes(moved.read_bytes().replace(b"\n", b"\r\n"))
    assert test_score(Origin()) == record.test  # the same examples in another file


def test_wrong_arguments_are_told_in_one_sentence(trained):
    assert "digits has its own data" in refusal(load, trained["digits baseline"], Origin(train="a.csv"), cpu=True)
    loaded = with_data(trained, "imdb")
    assert "split must be one of train, valid, test, got 'dev'" in refusal(loaded.examples, "dev", 3)
    assert loaded.predict([]) == []
    assert "inputs must be a list, such as ['a film'], got one str" in refusal(loaded.predict, "a film")
    assert "input 2 of 2 is blank: leave it out" in refusal(loaded.predict, ["a film", " "])


def test_a_large_file_is_read_piece_by_piece(trained, tmp_path):
    """Only one batch has been read when the first prediction is there."""
    loaded = load(trained["imdb baseline"], cpu=True)
    read = []

    def numbered():
        for number in range(1, 10_001):
            read.append(number)
            yield number, sentence(number)

    line, _ = next(loaded.answers(numbered(), Sampling()))
    assert (line, len(read)) == (1, 250)


def test_ctrl_c_ends_with_130_and_leaves_no_part_of_a_file(folder, command, tmp_path, monkeypatch, typed):
    predict, place = TextClassification.predict, folder("imdb")
    typed("a film\n" * 400)

    def interrupted(self, model, inputs, options):
        if len(inputs) < 250:  # the second batch
            signal.raise_signal(signal.SIGINT)
        return predict(self, model, inputs, options)

    monkeypatch.setattr(TextClassification, "predict", interrupted)
    ended = command("predict", place, "--cpu", "--out", tmp_path / "found" / "classes.txt")
    assert (ended.code, ended.out, ended.err) == (130, "", "gasam: interrupted after 250 inputs\n")
    assert not list((tmp_path / "found").iterdir())
