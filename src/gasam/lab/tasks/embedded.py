"""The embedded twins of the paper's tasks, whose data comes with installed packages: nothing is downloaded.

digits for mnist, docstrings for imdb, pydoc for ptb, and numerals for en-vi.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import re
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gasam.lab.data.corpus import SEED, Corpus, Source, Split, cut, permuted
from gasam.lab.families.classification import TextClassification
from gasam.lab.families.images import ImageClassification
from gasam.lab.families.language import LanguageModel
from gasam.lab.families.translation import Translation
from gasam.lab.tasks import imdb, mnist, ptb, translation
from gasam.lab.tasks.task import Task


def digits() -> Corpus:
    """1,000 training, 297 validation and 500 test images of 8 x 8 pixels; the 17 shades are scaled to 0..255."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    pixels, labels = load_digits(return_X_y=True)
    shades = (pixels * (255 / 16)).round().astype("uint8")
    images = [(image.tobytes(), int(label)) for image, label in zip(shades, labels, strict=True)]
    train, valid, test = cut(permuted(images), 1_000, 297)
    return Corpus(train, valid, test, classes=mnist.CLASSES)


LIBRARIES = ("matplotlib", "networkx", "numpy", "scipy", "sklearn", "sympy", "torch")
PACKAGES = tuple(name.replace("sklearn", "scikit-learn") for name in LIBRARIES)
EACH = 1_000
FEWEST_WORDS, MOST_WORDS, OPENING = 8, 100, 8

TELLING = re.compile(
    r"\d|matplotlib|networkx|numpy|scipy|sklearn|scikit|sympy|torch|pyplot|pylab|mplot"
    r"|(?:^|['-])(?:mpl|np|nx|plt|sk|sp|sy)(?:['-]|$)"
)
"""Words with digits, with the name of a library, or with its alias as a part."""
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

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings() -> Corpus:
    """The prose at the start of docstrings, lower-case, without numbers and without the libraries' names and aliases.

    The packages' files are parsed, not imported. Every library contributes equally many texts, at most 1,000. Of these
    4/7 are for training, 1/7 for validation and 2/7 for test (3,997, 994 and 2,009 rows). No two rows begin with the
    same eight words. Tests and third-party code inside a package are left out.
    """
    openings: set[str] = set()
    found = [list(islice(_distinct(library, openings), EACH)) for library in LIBRARIES]
    each = min(map(len, found))
    splits: list[list[tuple[str, int]]] = [[], [], []]
    for label, texts in enumerate(found):
        for split, part in zip(splits, cut(permuted(texts[:each]), each * 4 // 7, each // 7), strict=True):
            split += [(text, label) for text in part]
    train, valid, test = map(permuted, splits)
    return Corpus(train, valid, test, classes=LIBRARIES)


def _distinct(library: str, openings: set[str]) -> Iterator[str]:
    """Texts from the library's files in a fixed random order, so that the first ones are a fair sample."""
    folder = Path(str(importlib.util.find_spec(library).origin)).parent  # type: ignore[union-attr]
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
        words = prose_of(ast.get_docstring(node) or "")
        if len(words) >= FEWEST_WORDS:
            yield " ".join(words[:MOST_WORDS])


def _documented(node: Documented) -> Iterator[Documented]:
    yield node
    for inner in node.body:
        if isinstance(inner, Documented):
            yield from _documented(inner)


def prose_of(docstring: str) -> list[str]:
    """The words at the start of a docstring, without those that give its library away."""
    end = PROSE_ENDS.search(docstring)
    prose = ROLE.sub("", docstring[: end.start()] if end else docstring)
    return [word for word in WORD.findall(prose.lower()) if not TELLING.search(word)]


TOKEN = re.compile(r"\w+|[^\w\s]")
RULE = re.compile(r"^[*=~^\"'-]{3,}$", re.MULTILINE)


def pydoc() -> Corpus:
    """Paragraphs of Python's language reference, as lower-case words and single punctuation marks.

    Of every ten topics, in alphabetical order, one is for validation and one for test. Topics quote each other, so only
    the first occurrence of a paragraph is used, and no paragraph is in two splits.
    """
    from pydoc_data.topics import topics

    splits: dict[Split, list[str]] = {"train": [], "valid": [], "test": []}
    seen: set[str] = set()
    for number, name in enumerate(sorted(topics)):
        paragraphs = (TOKEN.findall(text.lower()) for text in re.split(r"\n\s*\n", RULE.sub("", topics[name])))
        fresh = [text for text in dict.fromkeys(map(" ".join, paragraphs)) if text and text not in seen]
        seen.update(fresh)
        splits["valid" if number % 10 == 0 else "test" if number % 10 == 5 else "train"] += fresh
    return Corpus(splits["train"], splits["valid"], splits["test"])


def numerals() -> Corpus:
    """4,000 training, 500 validation and 500 test numbers below a million as words of two languages, by num2words.

    The number of digits is drawn uniformly. A number is in one split only.
    """
    from num2words import num2words  # type: ignore[import-untyped]

    generator = random.Random(SEED)
    numbers: dict[int, None] = {}
    while len(numbers) < 5_000:
        numbers[generator.randrange(10 ** generator.randint(1, 6))] = None
    pairs = [
        (" ".join(re.findall(r"\w+", num2words(number, lang="en").lower())), num2words(number, lang="vi").lower())
        for number in permuted(numbers)
    ]
    train, valid, test = cut(pairs, 4_000, 500)
    return Corpus(train, valid, test)


TASKS = (
    Task(
        name="digits",
        about="scikit-learn's 8 x 8 digits, MLP",
        kind="twin of mnist",
        family=ImageClassification,
        source=lambda origin: Source("digits", digits, packages=("scikit-learn",)),
        sizes={"paper": mnist.PAPER, "small": mnist.PAPER.changed(epochs=60), "tiny": mnist.TINY},
    ),
    Task(
        name="docstrings",
        about="which library wrote this docstring? TextCNN",
        kind="twin of imdb",
        family=TextClassification,
        source=lambda origin: Source("docstrings", docstrings, packages=PACKAGES),
        sizes={
            "paper": imdb.PAPER,
            "small": imdb.SMALL_MODEL.changed(
                epochs=12, dropout=0.1, embedding=50, maps=50, length=48, vocabulary=10_000
            ),
            "tiny": imdb.TINY,
        },
    ),
    Task(
        name="pydoc",
        about="language model of Python's language reference, LSTM",
        kind="twin of ptb",
        family=LanguageModel,
        source=lambda origin: Source("pydoc", pydoc),
        sizes={
            "paper": ptb.PAPER,
            "small": ptb.SMALL_MODEL.changed(rows=None, epochs=6, halve_after=3, batch=20, vocabulary=4_000, hidden=64),
            "tiny": ptb.TINY,
        },
    ),
    Task(
        name="numerals",
        about="number words, English to Vietnamese, Transformer",
        kind="twin of en-vi",
        family=Translation,
        source=lambda origin: Source("numerals", numerals, packages=("num2words",)),
        sizes={
            "paper": translation.PAPER,
            "small": translation.SMALL_MODEL.changed(
                rows=None, vocabularies=(200, 200), warmup=100, width=64, feedforward=128, judged=None
            ),
            "tiny": translation.TINY,
        },
    ),
)
