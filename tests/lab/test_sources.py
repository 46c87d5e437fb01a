"""The paper's data: what each source reads and refuses, and the download of missing files from a hub made here."""

import gzip
import random
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from refusals import refusal

import local_layout
from gasam.lab.data import published as download
from gasam.lab.data.corpus import cache_directory, data_directory
from gasam.lab.data.files import lines
from gasam.lab.errors import InputError
from gasam.lab.tasks import TASKS, Origin
from local_layout import PUBLISHED, ROWS, WRITERS, disjoint, idx, sentence, sizes, write, write_lines

FILES = {task: TASKS[task].published for task in WRITERS}


def source(task, directory):
    return TASKS[task].source(Origin(directory))


def told(task, directory):
    return refusal(lambda: source(task, directory).read())


@pytest.mark.parametrize("task", WRITERS)
def test_same_files_give_the_same_corpus_and_other_words_another(task, tmp_path):
    first = source(task, WRITERS[task](tmp_path / "a"))
    random.seed(5)
    torch.manual_seed(5)
    second = source(task, WRITERS[task](tmp_path / "b"))
    assert first.read() == second.read()
    assert first.key == second.key
    key, digest = first.key, first.read().digest()
    WRITERS[task](tmp_path / "a", rows=ROWS + 1)
    changed = source(task, tmp_path / "a")
    assert changed.key != key
    assert changed.read().digest() != digest


@pytest.mark.parametrize("task", WRITERS)
def test_every_file_is_needed_whole_and_the_sentence_says_how_to_get_it(task, tmp_path):
    for file in source(task, WRITERS[task](tmp_path)).files:
        name, kept = file.relative_to(tmp_path).as_posix(), file.read_bytes()
        file.write_bytes(kept[:-12])
        if file.suffix == ".gz":
            assert told(task, tmp_path).startswith(f"{file}: not a complete gzip file (")
        file.unlink()
        wanted = "/train." if re.search("ted_small|news_wiki|train_subset", name) else f"{task} needs {name}, which is "
        found = told(task, tmp_path)
        assert wanted in found
        assert f"run `gasam data --get {task}`, or set --data-dir or GASAM_DATA" in found
        file.write_bytes(kept)


def test_imdb_halves_the_test_file_whatever_its_order(tmp_path):
    corpus = source("imdb", WRITERS["imdb"](tmp_path, rows=21)).read()
    assert sizes(corpus) == (21, 10, 11)
    assert disjoint(corpus)
    assert sorted(corpus.train) == sorted((f"train {i} {sentence(i)}", i % 2) for i in range(21))
    assert sorted(corpus.valid + corpus.test) == sorted((f"test {i} {sentence(i)}", i % 2) for i in range(21))
    assert "3 classes" in corpus.notes[0]
    for split in ("train", "test"):
        file = tmp_path / f"imdb/{split}.jsonl.gz"
        write(file, b"".join(reversed(gzip.decompress(file.read_bytes()).splitlines(keepends=True))))
    assert source("imdb", tmp_path).read() == corpus
    file = write_lines(tmp_path / "imdb/train.jsonl.gz", ['{"text": "b", "label": "pos"}'])
    assert told("imdb", tmp_path) == f"{file}, line 1: label 'pos', but must be 0 (negative) or 1 (positive)"


def test_ptb_gives_stripped_lines_that_only_newlines_end(tmp_path):
    corpus = source("ptb", WRITERS["ptb"](tmp_path)).read()
    assert corpus.valid == [f"valid {sentence(i)}" for i in range(ROWS)]
    write_lines(tmp_path / "ptb/ptb.test.txt.gz", ["a\u2028b", "c\x85d", "e\x0cf"])
    assert source("ptb", tmp_path).read().test == ["a\u2028b", "c\x85d", "e\x0cf"]


@pytest.mark.parametrize(("task", "folder"), [("en-vi", "iwslt15"), ("de-en", "iwslt14")])
def test_substitutes_are_counted_and_genuine_text_goes_before_them(tmp_path, task, folder):
    substitute = source(task, WRITERS[task](tmp_path, rows=1600))
    corpus = substitute.read()
    assert re.fullmatch(r"[\d,]+ (of the 160k|substitute) training pairs.*", corpus.notes[0])
    first, second = task.split("-")
    assert corpus.valid[3][0].endswith(f" 3 {sentence(3)} {first}")
    assert corpus.valid[3][1].endswith(f" 3 {sentence(3)} {second}")
    assert [words[-1] for words in corpus.vocabularies] == (["en", "vi"] if task == "en-vi" else [])
    local_layout.write_pairs(tmp_path / folder, "train", (first, second), rows=7)
    genuine = source(task, tmp_path)
    assert len(genuine.read().train) == 7
    assert not genuine.read().notes
    assert genuine.key != substitute.key


def test_pairs_with_an_empty_side_leave_the_training_text_only(tmp_path):
    WRITERS["de-en"](tmp_path)
    for name in ("train_subset", "valid"):
        write_lines(tmp_path / f"iwslt14/{name}.de.gz", ["ja", "", "nein", "gut"])
        write_lines(tmp_path / f"iwslt14/{name}.en.gz", ["yes", "no", " ", "good"])
    corpus = source("de-en", tmp_path).read()
    assert corpus.train == [("ja", "yes"), ("gut", "good")]
    assert corpus.valid == [("ja", "yes"), ("", "no"), ("nein", ""), ("gut", "good")]


def test_mnist_keeps_images_with_their_labels(tmp_path):
    corpus = source("mnist", WRITERS["mnist"](tmp_path, rows=24)).read()
    assert sizes(corpus) == (20, 4, 24)
    assert disjoint(corpus)
    expected = [(bytes((i * 13 + 5 * p) % 256 for p in range(784)), i % 10) for i in range(24)]
    assert sorted(corpus.train + corpus.valid) == sorted(expected)
    assert [label for _, label in corpus.test] == [i % 10 for i in range(24)]


UNFIT = "as many images of 28 x 28 pixels as labels from 0 to 9"
BAD_FILES = [
    ("images-idx3", idx(2050, [1, 28, 28], bytes(784)), "magic number 2050, but it must be 2051"),
    ("labels-idx1", b"\0\0\x08\x01", "4 bytes, but the header alone has 8"),
    ("images-idx3", idx(2051, [2, 28, 28], bytes(784)), "784 bytes of data, but the header says 1568"),
    ("images-idx3", idx(2051, [20, 8, 8], bytes(1280)), UNFIT),
    ("labels-idx1", idx(2049, [2], b"\1\2"), UNFIT),
    ("labels-idx1", idx(2049, [20], bytes([12] * 20)), UNFIT),
]


@pytest.mark.parametrize(("kind", "data", "fault"), BAD_FILES)
def test_bad_idx_files_are_told(tmp_path, kind, data, fault):
    file = write(WRITERS["mnist"](tmp_path) / f"mnist/train-{kind}-ubyte.gz", data)
    found = told("mnist", tmp_path)
    assert all(words in found for words in (str(file), fault, " again"))  # copy it or download it again


def test_locations_prefer_what_is_given_then_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("GASAM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GASAM_CACHE", str(tmp_path / "cache"))
    assert data_directory(tmp_path) == tmp_path
    assert (data_directory(None), cache_directory()) == (tmp_path / "data", tmp_path / "cache")
    monkeypatch.setenv("GASAM_DATA", "")
    monkeypatch.delenv("GASAM_CACHE")
    assert data_directory(None).name == cache_directory().name == "gasam"
    assert data_directory(Path("~/x")) == Path.home() / "x"


# Downloads: a hub with 20 rows for each split, made here.
FEW = 20
REAL_ONES = download.load_from_hub, download.fetch_from_web
EXAMPLES = {
    "imdb": lambda number: {"text": f"{sentence(number)}\n<br /> {number}", "label": number % 2},
    "ptb": lambda number: {"sentence": f" {sentence(number)} \n"},
    "de-en": lambda number: {"translation": {"de": f"de {number}", "en": f"en\n{number}"}},
    "mnist": lambda number: {"image": Image.frombytes("L", (28, 28), bytes([number] * 784)), "label": number % 10},
}


def load(repository, configuration, split):
    task = next(task for task in EXAMPLES if any(part.place.startswith(repository) for part in FILES[task].parts))
    return [EXAMPLES[task](number) for number in range(FEW)]


def fetch(address):
    return "".join(f"{address.rpartition('.')[2]} {number}\n" for number in range(FEW)).encode()


def unreachable(*arguments):
    raise ConnectionError("no route\n  to host")


def few(task, checksums=()):
    """The task's files, with the number of rows of this hub."""
    known = {name: (FEW, sha) for name, (_, sha) in FILES[task].known.items()}
    return replace(FILES[task], known=known | dict(checksums))


@pytest.fixture
def hub(monkeypatch):
    """Puts a hub that is made here in place of the real one and of the web; `hub(load, fetch)` puts another."""

    def put(load=load, fetch=fetch):
        monkeypatch.setattr(download, "load_from_hub", load)
        monkeypatch.setattr(download, "fetch_from_web", fetch)

    put()
    return put


def get(task, directory):
    return download.get(task, few(task), directory)


def test_examples_arrive_unchanged(tmp_path, hub):
    for task in WRITERS:
        states = get(task, tmp_path)
        assert all(state.size for state in states if not state.substitute)
    assert not [file for file in tmp_path.rglob("*") if file.name.startswith(".")]
    numbers, read = range(FEW), {task: source(task, tmp_path).read() for task in WRITERS}
    assert sorted(read["imdb"].train) == sorted((f"{sentence(i)}\n<br /> {i}", i % 2) for i in numbers)
    assert read["ptb"].valid == [sentence(i) for i in numbers]
    assert read["de-en"].test == [(f"de {i}", f"en {i}") for i in numbers]
    assert read["en-vi"].test == [(f"en {i}", f"vi {i}") for i in numbers]
    assert read["mnist"].test == [(bytes([i] * 784), i % 10) for i in numbers]
    lost, kept = tmp_path / "iwslt14/valid.de.gz", tmp_path / "iwslt14/valid.en.gz"  # half a pair is completed
    expected = lost.read_bytes()
    lost.unlink()
    write_lines(kept, ["mine"])
    get("de-en", tmp_path)
    assert (lost.read_bytes(), list(lines(kept))) == (expected, ["mine\n"])


@pytest.mark.parametrize("task", WRITERS)
def test_what_is_there_is_neither_fetched_nor_written_over(tmp_path, hub, task):
    hub(unreachable, unreachable)
    WRITERS[task](tmp_path)
    for name in (name for name in FILES[task].files if "/train." in name and "iwslt" in name):
        write_lines(tmp_path / name, ["mine"])
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    states = {state.name: state for state in get(task, tmp_path) if state.size}
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    for name, state in states.items():
        assert state.checksum == ("different" if FILES[task].known[name][1] else "unknown")
    assert states.keys() >= {file.relative_to(tmp_path).as_posix() for file in source(task, tmp_path).files}


def test_failed_downloads_are_explained_in_one_sentence_and_nothing_is_written(tmp_path, monkeypatch, hub):
    known = {task: refusal(download.get, task, FILES[task], tmp_path) for task in ("ptb", "en-vi")}
    assert "it has 20 rows, but ptb/ptb.train.txt.gz must have 42,068" in known["ptb"]
    assert "20 rows, but iwslt15/train.en.gz must have 133,317" in known["en-vi"]
    hub(lambda *_: [{"review": "a"}] * FEW)
    assert "stanfordnlp/imdb on the Hugging Face hub failed (KeyError: 'label'" in refusal(get, "imdb", tmp_path)
    hub(unreachable, unreachable)
    told = refusal(get, "mnist", tmp_path)
    assert "from ylecun/mnist on the Hugging Face hub failed (ConnectionError: no route to host)" in told
    assert told.endswith(f"or copy {', '.join(FILES['mnist'].files)} into {tmp_path} (idx files as published)")
    hub(*REAL_ONES)
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)  # so that no test reaches for the network
    assert re.search("the download from https://nlp.stanford.edu/.*train.en failed", refusal(get, "en-vi", tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "the package datasets is not installed: run `pip install gasam[download]" in refusal(get, "imdb", tmp_path)
    assert not list(tmp_path.iterdir())


def test_states_of_files_are_those_of_their_content(tmp_path):
    WRITERS["imdb"](tmp_path)
    train, test = tmp_path / "imdb/train.jsonl.gz", tmp_path / "imdb/test.jsonl.gz"
    known = few("imdb", {"imdb/train.jsonl.gz": (FEW, download.checksum(train))})
    write_lines(train, reversed([line.rstrip() for line in lines(train)]))
    states = download.inspect(known, tmp_path)
    assert [(state.checksum, state.size) for state in states] == [
        ("ok", train.stat().st_size),
        ("different", test.stat().st_size),
    ]
    test.write_bytes(b"no archive")
    assert download.inspect(known, tmp_path)[1].checksum == "different"
    test.unlink()
    assert download.inspect(known, tmp_path)[1].size is None


REAL = {
    "imdb": (25_000, 12_500, 12_500),
    "ptb": (42_068, 3_370, 3_761),
    "en-vi": (None, 1_553, 1_268),
    "de-en": (None, 7_283, 6_750),
    "mnist": (50_000, 10_000, 10_000),
}


@pytest.mark.realdata
@pytest.mark.parametrize("task", REAL)
def test_published_data_is_complete(task):
    try:
        corpus = source(task, PUBLISHED).read()
    except InputError as error:
        if local_layout.PROMISED:
            raise
        pytest.skip(str(error))
    assert all(found == size for found, size in zip(sizes(corpus), REAL[task], strict=True) if size is not None)
    assert "different" not in [state.checksum for state in download.inspect(FILES[task], PUBLISHED)]
