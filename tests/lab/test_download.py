"""Published data: what is found, what is fetched from a hub made here, and what is said when there is no hub."""

import socket

import pytest
from PIL import Image

from gasam.lab.data import download
from gasam.lab.data.manifest import CHECKSUMS, MANIFESTS, ROWS, HubSplit, WebFile
from gasam.lab.data.reading import lines
from gasam.lab.errors import InputError
from gasam.lab.tasks import imdb, iwslt, mnist, ptb
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

SOURCES = {"imdb": imdb.source, "ptb": ptb.source, "en-vi": iwslt.en_vi, "de-en": iwslt.de_en, "mnist": mnist.source}
WRITERS = {"imdb": write_imdb, "ptb": write_ptb, "en-vi": write_en_vi, "de-en": write_de_en, "mnist": write_mnist}


def example(form, number):
    return {
        "reviews": {"text": f"{sentence(number)}\n<br /> {number}", "label": number % 2},
        "sentences": {"sentence": f" {sentence(number)} \n"},
        "pairs": {"translation": {"de": f"de {number}", "en": f"en\n{number}"}},
        "images": {"image": Image.frombytes("L", (28, 28), bytes([number] * 784)), "label": number % 10},
    }[form]


def load(repository, configuration, split):
    form = next(
        part.form
        for manifest in MANIFESTS.values()
        for part in manifest.parts
        if isinstance(part, HubSplit)
        and (part.repository, part.configuration, part.split) == (repository, configuration, split)
    )
    return [example(form, number) for number in range(FEW)]


def fetch(address):
    return "".join(f"{address.rpartition('.')[2]} {number}\n" for number in range(FEW)).encode()


def unreachable(*arguments):
    raise ConnectionError("no route\n  to host")


@pytest.fixture
def _few_rows(monkeypatch):
    """The known numbers of rows, at the size of these tests."""
    for name in ROWS:
        monkeypatch.setitem(ROWS, name, FEW)


@pytest.mark.usefixtures("_few_rows")
@pytest.mark.parametrize("task", SOURCES)
def test_fetched_data_can_be_read_as_any_other(tmp_path, task):
    states = download.get(task, tmp_path, load, fetch)
    assert all(state.found and state.size for state in states if not state.substitute)
    corpus = SOURCES[task](tmp_path).read()
    assert len(corpus.train) == (17 if task == "mnist" else FEW)
    assert len(corpus.test) == (10 if task == "imdb" else FEW)
    assert not [file for file in tmp_path.rglob("*") if file.name.startswith(".")]


@pytest.mark.usefixtures("_few_rows")
def test_examples_arrive_unchanged(tmp_path):
    for task in SOURCES:
        download.get(task, tmp_path, load, fetch)
    numbers = range(FEW)
    assert sorted(imdb.source(tmp_path).read().train) == sorted((f"{sentence(i)}\n<br /> {i}", i % 2) for i in numbers)
    assert ptb.source(tmp_path).read().valid == [sentence(i) for i in numbers]
    assert iwslt.de_en(tmp_path).read().test == [(f"de {i}", f"en {i}") for i in numbers]
    assert iwslt.en_vi(tmp_path).read().test == [(f"en {i}", f"vi {i}") for i in numbers]
    assert mnist.source(tmp_path).read().test == [(bytes([i] * 784), i % 10) for i in numbers]


@pytest.mark.usefixtures("_few_rows")
def test_tables_of_the_datasets_library_convert(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the extra `download`")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})

    def tables(repository, configuration, split):
        rows = list(load(repository, configuration, split))
        return datasets.Dataset.from_list(rows, features=features if "image" in rows[0] else None)

    for task in SOURCES:
        download.get(task, tmp_path / "datasets", tables, fetch)
        download.get(task, tmp_path / "lists", load, fetch)
        assert SOURCES[task](tmp_path / "datasets").read() == SOURCES[task](tmp_path / "lists").read()


@pytest.mark.usefixtures("_few_rows")
@pytest.mark.parametrize("task", SOURCES)
def test_what_is_there_is_neither_fetched_nor_written_over(tmp_path, task):
    WRITERS[task](tmp_path)
    for name in (
        name for part in MANIFESTS[task].parts for name in part.files if "/train." in name and "iwslt" in name
    ):
        write_lines(tmp_path / name, ["mine"])
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    states = download.get(task, tmp_path, unreachable, unreachable)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert {state.checksum for state in states if state.name in CHECKSUMS and state.found} == {"different"}


@pytest.mark.usefixtures("_few_rows")
def test_half_a_pair_is_completed(tmp_path):
    download.get("de-en", tmp_path, load, fetch)
    lost, kept = tmp_path / "iwslt14/valid.de.gz", tmp_path / "iwslt14/valid.en.gz"
    expected = lost.read_bytes()
    lost.unlink()
    write_lines(kept, ["mine"])
    download.get("de-en", tmp_path, load, fetch)
    assert lost.read_bytes() == expected
    assert list(lines(kept)) == ["mine\n"]


def test_another_number_of_rows_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(InputError) as caught:
        download.get("ptb", tmp_path, load, fetch)
    assert "(it has 20 rows for ptb/ptb.train.txt.gz, which must have 42,068)" in str(caught.value)
    with pytest.raises(InputError, match=r"20 rows for iwslt15/train.en.gz, which must have 133,317"):
        download.get("en-vi", tmp_path, load, fetch)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_few_rows")
def test_unexpected_columns_are_told(tmp_path):
    with pytest.raises(
        InputError, match=r"stanfordnlp/imdb on the Hugging Face hub did not give it .KeyError: 'label'"
    ):
        download.get("imdb", tmp_path, lambda *_: [{"review": "a"}] * FEW)


@pytest.mark.parametrize("task", SOURCES)
def test_offline_is_explained_in_one_sentence(tmp_path, task):
    with pytest.raises(InputError) as caught:
        download.get(task, tmp_path, unreachable, unreachable)
    told, manifest = str(caught.value), MANIFESTS[task]
    assert told.startswith(
        f"{task} is not complete because {manifest.parts[0]} did not give it (ConnectionError: no route to"
    )
    assert f"run `gasam data get {task}` where there is a connection" in told
    assert all(name in told for part in manifest.parts for name in part.files)
    assert f"into {tmp_path} by hand ({manifest.form})" in told
    assert "\n" not in told


def test_the_real_loaders_fail_with_the_same_sentence(tmp_path, monkeypatch):
    """Names are resolved to nothing, so that no test reaches for the network."""
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    with pytest.raises(InputError, match=r"en-vi is not complete because https://nlp.stanford.edu/.*train.en did not"):
        download.get("en-vi", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"downloading needs the package datasets, .*pip install gasam.download.*by hand"
    ):
        download.get("imdb", tmp_path)


def test_unknown_tasks_are_told():
    for function in (download.get, download.inspect):
        with pytest.raises(
            InputError, match="data of 'digits' cannot be downloaded: those of imdb, ptb, en-vi, de-en,"
        ):
            function("digits", PUBLISHED)


@pytest.mark.parametrize("task", SOURCES)
def test_manifest_covers_what_the_source_reads(tmp_path, task):
    read = {file.relative_to(tmp_path).as_posix() for file in SOURCES[task](WRITERS[task](tmp_path)).files}
    manifest = MANIFESTS[task]
    needed = {name for part in manifest.parts for name in part.files}
    assert read <= needed | set(manifest.substitutes)
    assert not {name for name in needed - read if "iwslt" not in name or "/train." not in name}
    assert needed | set(manifest.substitutes) <= ROWS.keys()
    assert all(isinstance(part, WebFile) or part.form in download.FORMS for part in manifest.parts)


def test_states_of_files(tmp_path, monkeypatch):
    write_imdb(tmp_path)
    train, test = tmp_path / "imdb/train.jsonl.gz", tmp_path / "imdb/test.jsonl.gz"
    monkeypatch.setitem(CHECKSUMS, "imdb/train.jsonl.gz", download.checksum(train))
    states = download.inspect("imdb", tmp_path)
    assert [(state.found, state.checksum, state.size) for state in states] == [
        (True, "ok", train.stat().st_size),
        (True, "different", test.stat().st_size),
    ]
    test.write_bytes(b"no archive")
    assert download.inspect("imdb", tmp_path)[1].checksum == "different"
    test.unlink()
    assert not download.inspect("imdb", tmp_path)[1].found
    monkeypatch.delitem(CHECKSUMS, "imdb/train.jsonl.gz")
    assert download.inspect("imdb", tmp_path)[0].checksum == "unknown"


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
    found = [state for state in download.inspect(task, PUBLISHED) if state.found]
    if not found and not PROMISED:
        pytest.skip(f"no data of {task} in {PUBLISHED}")
    assert {state.checksum for state in found if state.name in CHECKSUMS} == {"ok"}
