"""The embedded twins: their sizes, that they are the same every time, and what makes each an honest task."""

import functools
import re
from itertools import islice

import pytest

from gasam.lab.data.corpus import SPLITS
from gasam.lab.errors import InputError
from gasam.lab.tasks import digits, docstrings, numerals, pydoc
from local_layout import disjoint, sizes

EMBEDDED = {
    "docstrings": docstrings.source,
    "pydoc": pydoc.source,
    "numerals": numerals.source,
    "numerals de-en": lambda: numerals.source("de-en"),
    "digits": digits.source,
}


@pytest.fixture(scope="module")
def embedded():
    """Each twin read once."""
    return functools.cache(lambda name: EMBEDDED[name]().read())


@pytest.mark.parametrize("name", EMBEDDED)
def test_twins_are_the_same_every_time_and_their_splits_apart(embedded, name):
    corpus = embedded(name)
    assert disjoint(corpus)
    if name != "docstrings":  # takes seconds: the test below asks this of a part
        assert EMBEDDED[name]().read().digest() == corpus.digest()


def test_docstrings_of_a_library_come_in_a_fixed_order():
    first, second = (list(islice(docstrings._distinct("networkx", set()), 100)) for _ in range(2))
    assert first == second
    assert len(first) == 100


def test_twins_have_keys_of_their_own():
    assert len({source().key for source in EMBEDDED.values()}) == len(EMBEDDED)


def test_twins_have_the_sizes_they_promise(embedded):
    assert sizes(embedded("digits")) == (1000, 297, 500)
    assert sizes(embedded("numerals")) == sizes(embedded("numerals de-en")) == (4000, 500, 500)
    assert sizes(embedded("docstrings")) == (3997, 994, 2009)


def test_docstrings_are_balanced_and_none_begins_like_another(embedded):
    corpus = embedded("docstrings")
    for split in SPLITS:
        labels = [label for _, label in getattr(corpus, split)]
        assert len({labels.count(label) for label in range(len(corpus.classes))}) == 1
    texts = [text for split in SPLITS for text, _ in getattr(corpus, split)]
    assert len({" ".join(text.split()[:8]) for text in texts}) == len(texts)
    assert all(8 <= len(text.split()) <= 100 for text in texts)


def test_docstrings_do_not_name_their_library(embedded):
    corpus = embedded("docstrings")
    words = {word for split in SPLITS for text, _ in getattr(corpus, split) for word in text.split()}
    names = ("matplotlib", "networkx", "numpy", "scipy", "sklearn", "scikit", "sympy", "torch", "pyplot")
    assert not [word for word in words if any(name in word for name in names)]
    assert not words & {"np", "plt", "nx", "mpl", "sp"}
    assert not [word for word in words if re.search("[^a-z'-]", word)]


@pytest.mark.parametrize(
    ("docstring", "words"),
    [
        ("Adds numpy.ndarray, np.add or scikit-learn's.", "adds ndarray add or"),
        ("Sums over :class:`torch.Tensor`.\n\nArgs:\n    x: never seen", "sums over tensor"),
        ("Sums.\n\nParameters\n----------\nx : never seen", "sums"),
        ("Sums twice.\n\n>>> never_seen()", "sums twice"),
        ("Takes 3 of NumPyArrays in 2d, doesn't copy.", "takes of in doesn't copy"),
        ("Examples are welcome here.", "examples are welcome here"),
    ],
)
def test_prose_of_a_docstring(docstring, words):
    assert " ".join(docstrings._words(docstring)) == words


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for source, package in (
        (docstrings.source, "matplotlib"),
        (digits.source, "sklearn"),
        (numerals.source, "num2words"),
    ):
        with pytest.raises(InputError, match=f"needs the package {package}, .*: run `pip install gasam.lab.`"):
            source()


def test_reference_is_lower_case_words_and_marks(embedded):
    corpus = embedded("pydoc")
    assert all(re.fullmatch(r"\w+|[^\w\s]", token) for line in corpus.train for token in line.split())
    assert not [line for line in corpus.train if line != line.lower()]
    assert len(corpus.train) > 5 * len(corpus.valid) > 0
    assert corpus.test


def test_number_words_translate_each_other(embedded):
    pairs = {pair for split in SPLITS for pair in getattr(embedded("numerals"), split)}
    assert len(pairs) == 5000
    assert {english for english, _ in pairs} >= {"seven", "forty two", "nineteen"}
    assert ("forty two", "bốn mươi hai") in pairs
    assert max(len(english.split()) for english, _ in pairs) > 8


def test_german_compounds_come_apart_without_loss(embedded):
    from num2words import num2words

    numbers = {num2words(number, lang="de"): number for number in range(10_000)}
    for number in range(0, 10_000, 7):
        assert numbers[numerals._german(number).replace(" ", "")] == number
    assert numerals._german(21_345) == "ein und zwanzig tausend drei hundert fünf und vierzig"
    words = {word for german, _ in embedded("numerals de-en").train for word in german.split()}
    assert len(words) < 40


def test_unknown_direction_is_told():
    with pytest.raises(InputError, match="direction must be 'en-vi' or 'de-en', got 'en-fr'"):
        numerals.source("en-fr")


def test_digits_use_the_range_of_a_byte(embedded):
    corpus = embedded("digits")
    assert {len(image) for image, _ in corpus.train} == {64}
    assert max(max(image) for image, _ in corpus.train) == 255
    assert {label for _, label in corpus.test} == set(range(10))
