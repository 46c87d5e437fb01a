"""Published data: what is found, what is fetched from a hub made here, and what is said when there is no hub."""

import socket
from dataclasses import replace

import pytest
from PIL import Image

from gasam.lab.cli.listings import get_data
from gasam.lab.data import published as download
from gasam.lab.data.files import lines
from gasam.lab.data.published import HubSplit
from gasam.lab.errors import InputError
from gasam.lab.tasks import TASKS, de_en, en_vi, imdb, mnist, ptb
from local_layout import (
    PROMISED,
    PUBLISHED,
    sentence,
    write_de_en,
    write_en_vi,
    write_imdb,
    write_lines,
    write_mnist,
    write_ptb,
)

FEW = 20

SOURCES = {"imdb": imdb.source, "ptb": ptb.source, "en-vi": en_vi.source, "de-en": de_en.source, "mnist": mnist.source}
WRITERS = {"imdb": write_imdb, "ptb": write_ptb, "en-vi": write_en_vi, "de-en": write_de_en, "mnist": write_mnist}


PUBLISHED_OF = {task: TASKS[task].published for task in SOURCES}


def with_contents(published, rows=None, checksums=None):
    """The same files, of which something else is known."""
    known = {
        name: (rows or each.rows, (each.checksum if checksums is None else checksums.get(name, each.checksum)) or "-")
        for name, each in published.known.items()
    }
    return replace(published, contents="".join(f"{name} {count} {sha}\n" for name, (count, sha) in known.items()))


def few(task):
    """The known numbers of rows, at the size of these tests."""
    return with_contents(PUBLISHED_OF[task], FEW)


def get(task, directory, load=None, fetch=None):
    return download.get(task, few(task), directory, load, fetch)


EXAMPLES = {
    "imdb": lambda number: {"text": f"{sentence(number)}\n<br /> {number}", "label": number % 2},
    "ptb": lambda number: {"sentence": f" {sentence(number)} \n"},
    "de-en": lambda number: {"translation": {"de": f"de {number}", "en": f"en\n{number}"}},
    "mnist": lambda number: {"image": Image.frombytes("L", (28, 28), bytes([number] * 784)), "label": number % 10},
}


def load(repository, configuration, split):
    task = next(
        task
        for task, published in PUBLISHED_OF.items()
        for part in published.parts
        if isinstance(part, HubSplit)
        and (part.repository, part.configuration, part.split) == (repository, configuration, split)
    )
    return [EXAMPLES[task](number) for number in range(FEW)]


def fetch(address):
    return "".join(f"{address.rpartition('.')[2]} {number}\n" for number in range(FEW)).encode()


def unreachable(*arguments):
    raise ConnectionError("no route\n  to host")


@pytest.mark.parametrize("task", SOURCES)
def test_fetched_data_can_be_read_as_any_other(tmp_path, task):
    states = get(task, tmp_path, load, fetch)
    assert all(state.found and state.size for state in states if not state.substitute)
    corpus = SOURCES[task](tmp_path).read()
    assert len(corpus.train) == (17 if task == "mnist" else FEW)
    assert len(corpus.test) == (10 if task == "imdb" else FEW)
    assert not [file for file in tmp_path.rglob("*") if file.name.startswith(".")]


def test_examples_arrive_unchanged(tmp_path):
    for task in SOURCES:
        get(task, tmp_path, load, fetch)
    numbers = range(FEW)
    assert sorted(imdb.source(tmp_path).read().train) == sorted((f"{sentence(i)}\n<br /> {i}", i % 2) for i in numbers)
    assert ptb.source(tmp_path).read().valid == [sentence(i) for i in numbers]
    assert de_en.source(tmp_path).read().test == [(f"de {i}", f"en {i}") for i in numbers]
    assert en_vi.source(tmp_path).read().test == [(f"en {i}", f"vi {i}") for i in numbers]
    assert mnist.source(tmp_path).read().test == [(bytes([i] * 784), i % 10) for i in numbers]


def test_tables_of_the_datasets_library_convert(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the extra `download`")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})

    def tables(repository, configuration, split):
        rows = list(load(repository, configuration, split))
        return datasets.Dataset.from_list(rows, features=features if "image" in rows[0] else None)

    for task in SOURCES:
        get(task, tmp_path / "datasets", tables, fetch)
        get(task, tmp_path / "lists", load, fetch)
        assert SOURCES[task](tmp_path / "datasets").read() == SOURCES[task](tmp_path / "lists").read()


@pytest.mark.parametrize("task", SOURCES)
def test_what_is_there_is_neither_fetched_nor_written_over(tmp_path, task):
    WRITERS[task](tmp_path)
    for name in (name for name in PUBLISHED_OF[task].files if "/train." in name and "iwslt" in name):
        write_lines(tmp_path / name, ["mine"])
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    states = get(task, tmp_path, unreachable, unreachable)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert {state.checksum for state in states if few(task).known[state.name].checksum and state.found} == {"different"}


def test_half_a_pair_is_completed(tmp_path):
    get("de-en", tmp_path, load, fetch)
    lost, kept = tmp_path / "iwslt14/valid.de.gz", tmp_path / "iwslt14/valid.en.gz"
    expected = lost.read_bytes()
    lost.unlink()
    write_lines(kept, ["mine"])
    get("de-en", tmp_path, load, fetch)
    assert lost.read_bytes() == expected
    assert list(lines(kept)) == ["mine\n"]


def test_another_number_of_rows_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(InputError) as caught:
        download.get("ptb", PUBLISHED_OF["ptb"], tmp_path, load, fetch)
    assert "(it has 20 rows, but ptb/ptb.train.txt.gz must have 42,068)" in str(caught.value)
    with pytest.raises(InputError, match=r"20 rows, but iwslt15/train.en.gz must have 133,317"):
        download.get("en-vi", PUBLISHED_OF["en-vi"], tmp_path, load, fetch)
    assert not list(tmp_path.iterdir())


def test_unexpected_columns_are_told(tmp_path):
    with pytest.raises(InputError, match=r"stanfordnlp/imdb on the Hugging Face hub failed .KeyError: 'label'"):
        get("imdb", tmp_path, lambda *_: [{"review": "a"}] * FEW)


@pytest.mark.parametrize("task", SOURCES)
def test_offline_is_explained_in_one_sentence(tmp_path, task):
    with pytest.raises(InputError) as caught:
        get(task, tmp_path, unreachable, unreachable)
    told, manifest = str(caught.value), PUBLISHED_OF[task]
    assert told.startswith(f"the data of {task} is incomplete because the download from {manifest.parts[0]} failed (")
    assert "(ConnectionError: no route to" in told
    assert f"run `gasam data get {task}`" in told
    assert all(name in told for name in manifest.files)
    assert f"into {tmp_path} ({manifest.form})" in told
    assert "\n" not in told


def test_the_real_loaders_fail_with_the_same_sentence(tmp_path, monkeypatch):
    """Names are resolved to nothing, so that no test reaches for the network."""
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    with pytest.raises(
        InputError, match=r"en-vi is incomplete because the download from https://nlp.stanford.edu/.*train.en failed"
    ):
        get("en-vi", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        InputError,
        match=r"downloading needs the package datasets, .*pip install gasam.download.*or copy imdb/train.jsonl.gz",
    ):
        get("imdb", tmp_path)


def test_unknown_tasks_are_told():
    for name in ("digits", "unknown"):
        with pytest.raises(
            InputError, match=f"data of '{name}' cannot be downloaded: name one of imdb, ptb, en-vi, de-en,"
        ):
            get_data(name, PUBLISHED)


@pytest.mark.parametrize("task", SOURCES)
def test_manifest_covers_what_the_source_reads(tmp_path, task):
    read = {file.relative_to(tmp_path).as_posix() for file in SOURCES[task](WRITERS[task](tmp_path)).files}
    manifest = PUBLISHED_OF[task]
    needed = set(manifest.files)
    assert read <= needed | set(manifest.substitutes)
    assert not {name for name in needed - read if "iwslt" not in name or "/train." not in name}
    assert needed | set(manifest.substitutes) == manifest.known.keys()


def test_states_of_files(tmp_path):
    write_imdb(tmp_path)
    train, test = tmp_path / "imdb/train.jsonl.gz", tmp_path / "imdb/test.jsonl.gz"
    known = with_contents(PUBLISHED_OF["imdb"], checksums={"imdb/train.jsonl.gz": download.checksum(train)})
    states = download.inspect(known, tmp_path)
    assert [(state.found, state.checksum, state.size) for state in states] == [
        (True, "ok", train.stat().st_size),
        (True, "different", test.stat().st_size),
    ]
    test.write_bytes(b"no archive")
    assert download.inspect(known, tmp_path)[1].checksum == "different"
    test.unlink()
    assert not download.inspect(known, tmp_path)[1].found
    unknown = with_contents(known, checksums={"imdb/train.jsonl.gz": None})
    assert download.inspect(unknown, tmp_path)[0].checksum == "unknown"


def test_checksums_are_of_the_content(tmp_path):
    packed = write_lines(tmp_path / "a.txt.gz", [" one ", "two"])
    assert download.checksum(packed) == download.checksum(write_lines(tmp_path / "a.txt", ["one", "two "]))
    assert download.checksum(packed) != download.checksum(write_lines(tmp_path / "a.txt", ["two", "one"]))
    rows = ['{"text": "a", "label": 1}', '{"label": 0, "text": "b"}']
    first = download.checksum(write_lines(tmp_path / "a.jsonl.gz", rows))
    assert first == download.checksum(write_lines(tmp_path / "b.jsonl.gz", rows[::-1]))


@pytest.mark.realdata
@pytest.mark.parametrize("task", SOURCES)
def test_published_files_have_the_known_content(task):
    found = [state for state in download.inspect(PUBLISHED_OF[task], PUBLISHED) if state.found]
    if not found and not PROMISED:
        pytest.skip(f"no data of {task} in {PUBLISHED}")
    assert {state.checksum for state in found if PUBLISHED_OF[task].known[state.name].checksum} == {"ok"}
