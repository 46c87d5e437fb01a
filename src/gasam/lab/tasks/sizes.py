"""The numbers of every task in its sizes: the paper's appendix, minutes on two cores, seconds for tests."""

from __future__ import annotations

from dataclasses import replace

from gasam.lab.families import Recipe
from gasam.lab.families.classification import TextCNNSettings
from gasam.lab.families.images import MLPSettings
from gasam.lab.families.language import LSTMSettings
from gasam.lab.families.translation import TransformerSettings

IMDB = TextCNNSettings(
    epochs=10, batch=64, learning_rate=1e-3, dropout=0.5, vocabulary=30_000, length=200, embedding=500, maps=500
)
PTB = LSTMSettings(
    epochs=20,
    batch=20,
    optimizer="sgd",
    learning_rate=50.0,
    clip=0.25,
    schedule="halving",
    halve_after=10,
    dropout=0.5,
    vocabulary=10_000,
    length=70,
    hidden=500,
)
EN_VI = TransformerSettings(
    epochs=52,
    batch=4096,
    optimizer="adamw",
    learning_rate=5e-4,
    betas=(0.9, 0.98),
    weight_decay=1e-4,
    schedule="inverse_sqrt",
    warmup=4000,
    dropout=0.3,
    average=10,
    vocabularies=(17_192, 7_710),
    units="words",
)
DE_EN = replace(EN_VI, epochs=70, vocabularies=(8_848, 6_632), units="bpe")
MNIST = MLPSettings(epochs=20, batch=64, learning_rate=1e-3, dropout=0.0)

SMALL_CNN = replace(IMDB, epochs=8, learning_rate=2e-3, dropout=0.2, embedding=32, maps=32)
SMALL_LSTM = replace(
    PTB, rows=3_000, epochs=12, halve_after=5, batch=10, length=35, hidden=128, dropout=0.2, learning_rate=20.0
)
SMALL_TRANSFORMER = replace(
    EN_VI,
    rows=20_000,
    epochs=12,
    batch=1024,
    learning_rate=2e-3,
    warmup=400,
    dropout=0.1,
    average=4,
    width=128,
    layers=2,
    heads=4,
    feedforward=256,
    length=50,
    judged=1_000,
)
SMALL_EN_VI = replace(SMALL_TRANSFORMER, rows=12_000, vocabularies=(8_000, 4_000))
SMALL_DE_EN = replace(SMALL_TRANSFORMER, vocabularies=(5_000, 4_000), units="bpe")

TWIN_CNN = replace(SMALL_CNN, epochs=12, dropout=0.1, embedding=50, maps=50, length=48, vocabulary=10_000)
TWIN_LSTM = replace(SMALL_LSTM, rows=None, epochs=6, halve_after=3, batch=20, vocabulary=4_000, hidden=64)
TWIN_TRANSFORMER = replace(
    SMALL_TRANSFORMER, rows=None, vocabularies=(200, 200), warmup=100, width=64, feedforward=128, judged=None
)

TINY_CNN = replace(IMDB, rows=200, epochs=2, batch=32, vocabulary=500, length=20, embedding=16, maps=8)
TINY_LSTM = replace(PTB, rows=200, epochs=2, halve_after=1, batch=8, dropout=0.1, vocabulary=200, length=10, hidden=16)
TINY_TRANSFORMER = replace(
    SMALL_TRANSFORMER,
    rows=100,
    epochs=2,
    batch=512,
    warmup=10,
    average=2,
    vocabularies=(300, 300),
    width=16,
    layers=1,
    heads=2,
    feedforward=32,
    length=40,
    judged=10,
)
TINY_MLP = replace(MNIST, rows=200, epochs=2)


SIZE_NAMES = ("paper", "small", "tiny")
RECORDED_SIZES = ("paper", "small@2", "small", "tiny")
"""As records have them: `small` is the first version of that size."""
OWN_DATA = ("classify", "lm", "translate")
"""Tasks on files of the user's own."""


def sizes(paper: Recipe, small: Recipe, tiny: Recipe) -> dict[str, Recipe]:
    """The second version of size small has better initial weights, and methods use the recommended walk."""
    return {"paper": paper, "small@2": well_initialised(small), "small": small, "tiny": tiny}


def own_data(paper: Recipe, small: Recipe, tiny: Recipe) -> dict[str, Recipe]:
    """The user's own data: no records to stay compatible with, so every size has the better initial weights."""
    return {name: well_initialised(recipe) for name, recipe in zip(SIZE_NAMES, (paper, small, tiny), strict=True)}


def well_initialised(recipe: Recipe) -> Recipe:
    """Word embeddings of a TextCNN with a standard deviation of 0.1. Torch's is 1, which costs 11 points on docstrings.
    The other models initialise theirs well."""
    return replace(recipe, embedding_scale=0.1) if isinstance(recipe, TextCNNSettings) else recipe


def uses_recommended_walk(task: str, size: str) -> bool:
    """Other sizes use the paper's epsilon, or one that was chosen with their first version."""
    return task in OWN_DATA or "@" in size


def versions(task: str, name: str) -> dict[int, str]:
    """The versions of a size that a task has, with their names in records."""
    names = [each for each in SIZES.get(task, ()) if each.partition("@")[0] == name]
    return {int(each.partition("@")[2] or 1): each for each in names}


def in_records(task: str, wanted: str) -> str:
    """The name in records of a size that a user asks for: `small` is the newest version, `small@1` the first."""
    name, _, version = wanted.partition("@")
    found = versions(task, name)
    if version:
        return found.get(int(version), wanted) if version.isdigit() else wanted
    return found[max(found)] if found else wanted


def for_users(task: str, recorded: str) -> str:
    """What a user must ask for to get the size of a record again."""
    return recorded if in_records(task, recorded) == recorded else f"{recorded}@1"


SIZES: dict[str, dict[str, Recipe]] = {
    "imdb": sizes(IMDB, SMALL_CNN, TINY_CNN),
    "ptb": sizes(PTB, SMALL_LSTM, TINY_LSTM),
    "en-vi": sizes(EN_VI, SMALL_EN_VI, TINY_TRANSFORMER),
    "de-en": sizes(DE_EN, SMALL_DE_EN, replace(TINY_TRANSFORMER, units="bpe")),
    "mnist": sizes(MNIST, replace(MNIST, rows=10_000), TINY_MLP),
    "docstrings": sizes(IMDB, TWIN_CNN, TINY_CNN),
    "pydoc": sizes(PTB, TWIN_LSTM, TINY_LSTM),
    "numerals": sizes(EN_VI, TWIN_TRANSFORMER, TINY_TRANSFORMER),
    "digits": sizes(MNIST, replace(MNIST, epochs=60), TINY_MLP),
    "classify": own_data(IMDB, SMALL_CNN, TINY_CNN),
    "lm": own_data(PTB, replace(SMALL_LSTM, rows=None), TINY_LSTM),
    "translate": own_data(DE_EN, replace(SMALL_DE_EN, rows=None, judged=None), replace(TINY_TRANSFORMER, units="bpe")),
}
