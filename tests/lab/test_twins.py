"""The embedded twins: their sizes, that they are the same every time, and what makes each an honest task."""

import functools
import re
from itertools import islice

import pytest

from gasam.lab.data.corpus import SPLITS
from gasam.lab.tasks import Origin, embedded, find
from local_layout import disjoint, sizes

SIZES = {"digits": (1000, 297, 500), "docstrings": (3997, 994, 2009), "numerals": (4000, 500, 500), "pydoc": None}


@pytest.fixture(scope="module")
def corpus():
    """Each twin read once."""
    return functools.cache(lambda name: find(name).source(Origin()).read())


@pytest.mark.parametrize("name", SIZES)
def test_twins_are_the_same_every_time_and_their_splits_apart(corpus, name):
    found = corpus(name)
    assert disjoint(found)
    assert SIZES[name] in (None, sizes(found))
    if name == "docstrings":  # takes seconds: a part of it is enough
        first, second = (list(islice(embedded._distinct("networkx", set()), 100)) for _ in range(2))
        assert first == second
    else:
        assert find(name).source(Origin()).read().digest() == found.digest()


def test_docstrings_are_balanced_and_none_begins_like_another(corpus):
    found = corpus("docstrings")
    for split in SPLITS:
        labels = [label for _, label in found.split(split)]
        assert len({labels.count(label) for label in range(len(found.classes))}) == 1
    texts = [text for split in SPLITS for text, _ in found.split(split)]
    assert len({" ".join(text.split()[:8]) for text in texts}) == len(texts)
    assert all(8 <= len(text.split()) <= 100 for text in texts)
    words = {word for text in texts for word in text.split()}
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
        ("Takes 3 of NumPyArrays in 2d, doesn't copy.", "takes of in doesn't copy"),
    ],
)
def test_prose_of_a_docstring(docstring, words):
    assert " ".join(embedded.prose_of(docstring)) == words


def test_examples_are_what_their_models_expect(corpus):
    assert {len(image) for image, _ in corpus("digits").train} == {64}
    assert max(max(image) for image, _ in corpus("digits").train) == 255
    assert all(re.fullmatch(r"\w+|[^\w\s]", token) for line in corpus("pydoc").train for token in line.split())
    assert len(corpus("pydoc").train) > 5 * len(corpus("pydoc").valid) > 0
    pairs = {pair for split in SPLITS for pair in corpus("numerals").split(split)}
    assert ("forty two", "bốn mươi hai") in pairs
    assert max(len(english.split()) for english, _ in pairs) > 8
