"""Sources: what each reads, that it reads the same every time, and that no split sees another's examples."""

import gzip
import random
import re
from pathlib import Path

import pytest
import torch

from gasam.lab.data.corpus import cache_directory, data_directory
from gasam.lab.errors import InputError
from gasam.lab.tasks import de_en, en_vi, imdb, mnist, ptb
from local_layout import (
    PROMISED,
    PUBLISHED,
    ROWS,
    disjoint,
    idx,
    sentence,
    sizes,
    write,
    write_de_en,
    write_en_vi,
    write_imdb,
    write_lines,
    write_mnist,
    write_pairs,
    write_ptb,
)

LOCAL = {
    "imdb": (write_imdb, imdb.source),
    "ptb": (write_ptb, ptb.source),
    "en-vi": (write_en_vi, en_vi.source),
    "de-en": (write_de_en, de_en.source),
    "mnist": (write_mnist, mnist.source),
}


@pytest.mark.parametrize("task", LOCAL)
def test_same_files_give_the_same_corpus_whatever_the_seeds(task, tmp_path):
    writer, source = LOCAL[task]
    first = source(writer(tmp_path / "a"))
    random.seed(5)
    torch.manual_seed(5)
    second = source(writer(tmp_path / "b"))
    assert first.read().digest() == second.read().digest()
    assert first.read().notes == second.read().notes
    assert first.key == second.key


@pytest.mark.parametrize("task", LOCAL)
def test_another_word_gives_another_key_and_another_corpus(task, tmp_path):
    writer, source = LOCAL[task]
    before = source(writer(tmp_path))
    old = before.key, before.read().digest()
    writer(tmp_path, rows=ROWS + 1)
    after = source(tmp_path)
    assert after.key != old[0]
    assert after.read().digest() != old[1]


@pytest.mark.parametrize("task", LOCAL)
def test_every_file_is_needed_and_the_sentence_says_how_to_get_it(task, tmp_path):
    writer, source = LOCAL[task]
    for file in source(writer(tmp_path)).files:
        name = file.relative_to(tmp_path).as_posix()
        kept = file.read_bytes()
        file.unlink()
        with pytest.raises(InputError) as caught:
            source(tmp_path)
        if not re.search("ted_small|news_wiki|train_subset", name):
            assert str(caught.value) == (
                f"{task} needs {name}, which is not in {tmp_path}: run `gasam data get {task}`, "
                "or set --data-dir or GASAM_DATA to a folder that has it"
            )
        else:
            assert "/train." in str(caught.value)
        file.write_bytes(kept)


@pytest.mark.parametrize("task", LOCAL)
def test_files_cut_short_are_told(task, tmp_path):
    writer, source = LOCAL[task]
    file = source(writer(tmp_path)).files[0]
    file.write_bytes(file.read_bytes()[:-12])
    with pytest.raises(
        InputError, match=rf"{re.escape(str(file))}: not a complete gzip file .*: copy or download it again$"
    ):
        source(tmp_path).read()


def test_imdb_halves_the_test_file_and_says_so(tmp_path):
    corpus = imdb.source(write_imdb(tmp_path, rows=21)).read()
    assert sizes(corpus) == (21, 10, 11)
    assert disjoint(corpus)
    assert corpus.classes == ("negative", "positive")
    assert sorted(corpus.train) == sorted((f"train {i} {sentence(i)}", i % 2) for i in range(21))
    assert sorted(corpus.valid + corpus.test) == sorted((f"test {i} {sentence(i)}", i % 2) for i in range(21))
    assert "3 classes" in corpus.notes[0]
    assert "fixed permutation" in corpus.notes[1]


def test_imdb_does_not_mind_the_order_of_the_file(tmp_path):
    before = imdb.source(write_imdb(tmp_path)).read()
    for split in ("train", "test"):
        file = tmp_path / f"imdb/{split}.jsonl.gz"
        write(file, b"".join(reversed(gzip.decompress(file.read_bytes()).splitlines(keepends=True))))
    assert imdb.source(tmp_path).read() == before


@pytest.mark.parametrize("label", ["2", '"pos"', "null", "-1"])
def test_imdb_knows_two_labels(tmp_path, label):
    write_imdb(tmp_path)
    file = write_lines(
        tmp_path / "imdb/train.jsonl.gz", ['{"text": "a", "label": 1}', f'{{"text": "b", "label": {label}}}']
    )
    with pytest.raises(InputError, match=rf"^{re.escape(str(file))}, line 2: label .*, but must be 0 .negative. or 1"):
        imdb.source(tmp_path).read()


def test_ptb_gives_stripped_lines(tmp_path):
    corpus = ptb.source(write_ptb(tmp_path)).read()
    assert corpus.valid == [f"valid {sentence(i)}" for i in range(ROWS)]
    assert sizes(corpus) == (ROWS, ROWS, ROWS)
    assert not corpus.notes


def test_substitutes_are_counted_and_said(tmp_path):
    corpus = en_vi.source(write_en_vi(tmp_path)).read()
    assert sizes(corpus) == (2 * ROWS, ROWS, ROWS)
    assert corpus.notes == ("40 substitute training pairs, not the paper's 133k",)
    assert corpus.train[0] == (f"ted_small 0 {sentence(0)} en", f"ted_small 0 {sentence(0)} vi")
    assert corpus.test[3] == (f"tst2013 3 {sentence(3)} en", f"tst2013 3 {sentence(3)} vi")
    assert [words[:3] for words in corpus.vocabularies] == [("<unk>", "<s>", "</s>")] * 2
    assert [words[-1] for words in corpus.vocabularies] == ["en", "vi"]


def test_thousands_of_substitutes_are_rounded(tmp_path):
    assert de_en.source(write_de_en(tmp_path, rows=1600)).read().notes == ("2k subset of the 160k training pairs",)


@pytest.mark.parametrize(
    ("writer", "source", "folder", "languages"),
    [(write_en_vi, en_vi.source, "iwslt15", ("en", "vi")), (write_de_en, de_en.source, "iwslt14", ("de", "en"))],
    ids=["en-vi", "de-en"],
)
def test_genuine_training_text_goes_before_substitutes(tmp_path, writer, source, folder, languages):
    substitute = source(writer(tmp_path))
    write_pairs(tmp_path / folder, "train", languages, rows=7)
    genuine = source(tmp_path)
    assert sizes(genuine.read()) == (7, ROWS, ROWS)
    assert not genuine.read().notes
    assert genuine.key != substitute.key


def test_pairs_with_an_empty_side_leave_the_training_text_only(tmp_path):
    write_de_en(tmp_path)
    for name in ("train_subset", "valid"):
        write_lines(tmp_path / f"iwslt14/{name}.de.gz", ["ja", "", "nein", "gut"])
        write_lines(tmp_path / f"iwslt14/{name}.en.gz", ["yes", "no", " ", "good"])
    corpus = de_en.source(tmp_path).read()
    assert corpus.train == [("ja", "yes"), ("gut", "good")]
    assert corpus.valid == [("ja", "yes"), ("", "no"), ("nein", ""), ("gut", "good")]


def test_unequal_files_are_told_with_both_counts(tmp_path):
    write_de_en(tmp_path)
    short = write_lines(tmp_path / "iwslt14/test.en.gz", ["one"])
    with pytest.raises(InputError) as caught:
        de_en.source(tmp_path).read()
    assert str(caught.value).startswith(f"{tmp_path}/iwslt14/test.de.gz has 20 lines and {short} has 1, but line n")


def test_separators_of_unicode_do_not_break_lines(tmp_path):
    write_ptb(tmp_path)
    write_lines(tmp_path / "ptb/ptb.test.txt.gz", ["a\u2028b", "c\x85d", "e\x0cf"])
    assert ptb.source(tmp_path).read().test == ["a\u2028b", "c\x85d", "e\x0cf"]


def test_mnist_keeps_images_with_their_labels(tmp_path):
    corpus = mnist.source(write_mnist(tmp_path, rows=24)).read()
    assert sizes(corpus) == (20, 4, 24)
    assert disjoint(corpus)
    assert corpus.classes == tuple("0123456789")
    expected = [(bytes((i * 13 + 5 * p) % 256 for p in range(784)), i % 10) for i in range(24)]
    assert sorted(corpus.train + corpus.valid) == sorted(expected)
    assert [label for _, label in corpus.test] == [i % 10 for i in range(24)]
    assert "last sixth" in corpus.notes[0]


BAD_IDX = {
    "another magic number": (
        "images-idx3",
        idx(2050, [1, 28, 28], bytes(784)),
        "magic number 2050, but it must be 2051",
    ),
    "a short header": ("labels-idx1", b"\0\0\x08\x01", "4 bytes, but the header alone has 8"),
    "missing data": ("images-idx3", idx(2051, [2, 28, 28], bytes(784)), "784 bytes of data, but the header says 1568"),
    "other images": (
        "images-idx3",
        idx(2051, [20, 8, 8], bytes(1280)),
        "images of 8 x 8 pixels, but they must be 28 x 28",
    ),
    "too few labels": (
        "labels-idx1",
        idx(2049, [2], b"\1\2"),
        "2 labels for the 20 images of train-images-idx3-ubyte.gz",
    ),
    "no digit": ("labels-idx1", idx(2049, [20], bytes([12] * 20)), "label 12, but labels must be 0 to 9"),
}


@pytest.mark.parametrize("name", BAD_IDX)
def test_bad_idx_files_are_told(tmp_path, name):
    kind, data, fault = BAD_IDX[name]
    file = write(write_mnist(tmp_path) / f"mnist/train-{kind}-ubyte.gz", data)
    with pytest.raises(InputError) as caught:
        mnist.source(tmp_path).read()
    assert str(caught.value).startswith(f"{file}: {fault}")
    assert str(caught.value).endswith("download it again with `gasam data get mnist`")


def test_locations_prefer_what_is_given_then_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("GASAM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GASAM_CACHE", str(tmp_path / "cache"))
    assert data_directory(tmp_path) == tmp_path
    assert data_directory(None) == tmp_path / "data"
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.setenv("GASAM_DATA", "")
    monkeypatch.delenv("GASAM_CACHE")
    assert data_directory(None).name == cache_directory().name == "gasam"
    assert data_directory(Path("~/x")) == Path.home() / "x"


REAL = {
    "imdb": (imdb.source, (25_000, 12_500, 12_500)),
    "ptb": (ptb.source, (42_068, 3_370, 3_761)),
    "en-vi": (en_vi.source, (None, 1_553, 1_268)),
    "de-en": (de_en.source, (None, 7_283, 6_750)),
    "mnist": (mnist.source, (50_000, 10_000, 10_000)),
}


@pytest.mark.realdata
@pytest.mark.parametrize("task", REAL)
def test_published_data_is_complete(task):
    source, expected = REAL[task]
    try:
        corpus = source(PUBLISHED).read()
    except InputError as error:
        if PROMISED:
            raise
        pytest.skip(str(error))
    assert all(found == size for found, size in zip(sizes(corpus), expected, strict=True) if size is not None)
    if task == "ptb":
        assert sum(len(line.split()) + 1 for line in corpus.train) == 929_589
        assert len({word for line in corpus.train for word in line.split()} | {"<eos>"}) == 10_000
    if task == "en-vi":
        assert [len(words) for words in corpus.vocabularies] == [17_191, 7_709]
    if task in ("en-vi", "de-en"):
        assert all(all(pair) for pair in corpus.train)
