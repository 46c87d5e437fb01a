"""The task docstrings: which installed library a docstring comes from, the embedded twin of IMDB."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gasam.lab.data.corpus import Corpus, Source, cut, permuted
from gasam.lab.data.locations import installed
from gasam.lab.families.classification import TextClassification
from gasam.lab.tasks import imdb
from gasam.lab.tasks.task import Task, l2, linf, sizes

LIBRARIES = {
    "matplotlib": "matplotlib",
    "networkx": "networkx",
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "sympy": "sympy",
    "torch": "torch",
}
CLASSES = tuple(LIBRARIES)
EACH = 1_000
FEWEST_WORDS, MOST_WORDS, OPENING = 8, 100, 8

NAMES = re.compile(r"matplotlib|networkx|numpy|scipy|sklearn|scikit|sympy|torch|pyplot|pylab|mplot")
ALIASES = {"mpl", "np", "nx", "plt", "sk", "sp", "sy"}
WORD = re.compile(r"[a-z0-9]+(?:['-][a-z0-9]+)*")
ROLE = re.compile(r":[a-z:]+:(?=`)")
PROSE_ENDS = re.compile(
    r"^[ \t]*(?:>>>|\.\. |:\w+.*:|\S.*\n[ \t]*[-=~*^]{3,}[ \t]*$"
    r"|(?:arg(?:ument)?s?|parameters?|keyword arg\w*|attributes?|inputs?|outputs?|shape|returns?|yields?|raises"
    r"|examples?|usage|notes?|warnings?|see also|references?) ?:)",
    re.MULTILINE | re.IGNORECASE,
)
FOREIGN = re.compile(
    r"(?:^|_)(?:tests?|testing|conftest|testutils)(?:_|\.|$)|vendor|extern|array_api|uarray|cobyqa|pyprima"
)

SMALL = imdb.SMALL.changed(epochs=12, dropout=0.1, embedding=50, maps=50, length=48, vocabulary=10_000)

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def source() -> Source:
    """The prose at the start of docstrings, lower-case, without numbers and without the libraries' names and aliases.

    The packages' files are parsed, not imported. Every library contributes equally many texts, at most 1,000. Of these
    4/7 are for training, 1/7 for validation and 2/7 for test (3,997, 994 and 2,009 rows). No two rows begin with the
    same eight words. Tests and third-party code inside a package are left out.
    """
    for library in LIBRARIES:
        _folder(library)
    return Source("docstrings", _read, packages=tuple(LIBRARIES.values()))


def _read() -> Corpus:
    openings: set[str] = set()
    found = [list(islice(_distinct(library, openings), EACH)) for library in LIBRARIES]
    each = min(map(len, found))
    splits: list[list[tuple[str, int]]] = [[], [], []]
    for label, texts in enumerate(found):
        for split, part in zip(splits, cut(permuted(texts[:each]), each * 4 // 7, each // 7), strict=True):
            split += [(text, label) for text in part]
    train, valid, test = map(permuted, splits)
    return Corpus(train, valid, test, classes=CLASSES)


def _distinct(library: str, openings: set[str]) -> Iterator[str]:
    """Texts from the library's files in a fixed random order, so that the first ones are a fair sample."""
    folder = _folder(library)
    names = (path.relative_to(folder) for path in folder.rglob("*.py"))
    for name in permuted(sorted(name.as_posix() for name in names if not any(map(FOREIGN.search, name.parts)))):
        for text in _texts(folder / name):
            opening = " ".join(text.split()[:OPENING])
            if opening not in openings:
                openings.add(opening)
                yield text


def _texts(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about the package's code
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # a template, or code for another version of Python
            return
    for node in _documented(tree):
        words = _words(ast.get_docstring(node) or "")
        if len(words) >= FEWEST_WORDS:
            yield " ".join(words[:MOST_WORDS])


def _documented(node: Documented) -> Iterator[Documented]:
    yield node
    for inner in node.body:
        if isinstance(inner, Documented):
            yield from _documented(inner)


def _words(docstring: str) -> list[str]:
    end = PROSE_ENDS.search(docstring)
    prose = ROLE.sub("", docstring[: end.start()] if end else docstring)
    return [word for word in WORD.findall(prose.lower()) if not _telling(word)]


def _telling(word: str) -> bool:
    """Whether a word must be removed: it has a digit, contains a library's name, or has an alias as a part."""
    return (
        any(map(str.isdigit, word)) or NAMES.search(word) is not None or not ALIASES.isdisjoint(re.split("['-]", word))
    )


def _folder(library: str) -> Path:
    folders = installed("docstrings", library).submodule_search_locations
    assert folders, f"{library} is a package"
    return Path(folders[0])


TASKS = (
    Task(
        name="docstrings",
        about="which library wrote this docstring? TextCNN",
        kind="twin of imdb",
        family=TextClassification,
        source=lambda origin: source(),
        sizes=sizes(
            paper=imdb.PAPER,
            small=SMALL,
            small_2=SMALL.changed(embedding_scale=imdb.GOOD_SCALE),
            tiny=imdb.TINY,
        ),
        chosen_radii={
            "sam": linf(2e-3),
            "asam": linf(5e-2),
            "layer-sam": l2(3e-4),
            "multi-step-defense": linf(2e-3),
            "ga-sam": linf(5e-3),
        },
        borrows_from=("imdb", "en-vi"),
    ),
)
