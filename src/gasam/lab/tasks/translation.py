"""The translation tasks of IWSLT: en-vi (2015, Stanford's vocabularies) and de-en (2014, byte-pair encoding)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from gasam.lab.data.corpus import Corpus, Source, required
from gasam.lab.data.files import aligned, lines
from gasam.lab.data.published import HubSplit, Published, Row, WebFile, as_lines
from gasam.lab.families.translation import TransformerSettings, Translation
from gasam.lab.tasks.task import Task, sizes


@dataclass(frozen=True)
class Layout:
    """The names of the files: `{folder}/{split}.{language}.gz`.

    Args:
        task: The name of the task.
        folder: The folder of the task within the data folder.
        languages: The source and the target language.
        valid: The name of the validation split.
        test: The name of the test split.
        substitutes: Splits that replace missing training files.
        note: The note to show if they do; {} is the number of pairs.
        has_vocabularies: Whether there are word lists, `vocab.{language}`.
    """

    task: str
    folder: str
    languages: tuple[str, str]
    valid: str
    test: str
    substitutes: tuple[str, ...]
    note: str
    has_vocabularies: bool = False

    def files(self, *splits: str) -> tuple[str, ...]:
        return tuple(f"{self.folder}/{split}.{language}.gz" for split in splits for language in self.languages)

    def vocabularies(self) -> tuple[str, ...]:
        return tuple(f"{self.folder}/vocab.{language}" for language in self.languages if self.has_vocabularies)


def parallel_source(layout: Layout, directory: Path) -> Source:
    """The training split is `train`, or the substitutes if only they exist. Training pairs with a blank line are left
    out."""
    genuine = _there(directory, layout.files("train"))
    training = ("train",) if genuine or not _there(directory, layout.files(*layout.substitutes)) else layout.substitutes
    splits = (*training, layout.valid, layout.test)
    files = required(layout.task, directory, layout.files(*splits) + layout.vocabularies())

    def read() -> Corpus:
        *train, valid, test = (aligned(*files[2 * i : 2 * i + 2]) for i in range(len(splits)))
        pairs = [pair for pair in chain(*train) if all(pair)]
        notes = () if training == ("train",) else (layout.note.format(_rounded(len(pairs))),)
        words = tuple(tuple(line.strip() for line in lines(file)) for file in files[2 * len(splits) :])
        return Corpus(pairs, valid, test, vocabularies=words, notes=notes)

    return Source(layout.task, read, files=files, options=" ".join(splits))


def _there(directory: Path, names: tuple[str, ...]) -> bool:
    return all((directory / name).is_file() for name in names)


def _rounded(count: int) -> str:
    return f"{round(count / 1000)}k" if count >= 1000 else str(count)


EN_VI = Layout(
    task="en-vi",
    folder="iwslt15",
    languages=("en", "vi"),
    valid="tst2012",
    test="tst2013",
    substitutes=("ted_small", "news_wiki"),
    note="{} substitute training pairs, not the paper's 133k",
    has_vocabularies=True,
)

PAPER = TransformerSettings(
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
SMALL_MODEL = PAPER.changed(
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
EN_VI_SMALL = SMALL_MODEL.changed(rows=12_000, vocabularies=(8_000, 4_000))
TINY = SMALL_MODEL.changed(
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
STANFORD = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
# Copies on the Hugging Face hub have no vocabularies, and its old script put tst2013 in place of tst2012.
EN_VI_FILES = Published(
    tuple(
        WebFile((f"iwslt15/{name}.{language}{suffix}",), f"{STANFORD}/{name}.{language}")
        for name, suffix in (("train", ".gz"), ("tst2012", ".gz"), ("tst2013", ".gz"), ("vocab", ""))
        for language in ("en", "vi")
    ),
    "one tokenised sentence per line, and one word per line in the vocabularies",
    """
iwslt15/news_wiki.en.gz 48791 5e52028696265b8609755a54484399557c24a2baf83a04c6e8e89e092dcd6c84
iwslt15/news_wiki.vi.gz 48791 334f0907ecf302ffd7c58ab3a169733a231d00cce9fc608b8ea1676296e7a8a1
iwslt15/ted_small.en.gz 4502 abd71d2181db9d511d889804bd740c9de59e2738b6bbd9b08a98af8d4574502d
iwslt15/ted_small.vi.gz 4502 5eca4c31b5d2d9e175b5093f912fe41621fcb8c1e11ad7fe782d12b92061686b
iwslt15/train.en.gz 133317 -
iwslt15/train.vi.gz 133317 -
iwslt15/tst2012.en.gz 1553 206de622a51ceb74b52238808fbaca290c6e56a3622f01f2ee832405eab4464a
iwslt15/tst2012.vi.gz 1553 8d9be59117ad8fe913389ec37fc9a426cb984701bea0fafa049a8ec2cb57121a
iwslt15/tst2013.en.gz 1268 64b53740396add07ee7a025f81f6f3f44fc30221625279849802b118edd8ea70
iwslt15/tst2013.vi.gz 1268 08d948636e360e7b2bff319c08d6b8e0a0dcf6dd8514c59ca46d6594364ef37f
iwslt15/vocab.en 17191 69120071a603bb8cdd470c5ff988d7a0887462c045eaada17718d55e6cc71b0d
iwslt15/vocab.vi 7709 fe972acbca64a43911ea98b05d1e810a5979230ff7a4982c7b1edd006ef9ba40
""",
    substitutes=EN_VI.files(*EN_VI.substitutes),
)

DE_EN = Layout(
    task="de-en",
    folder="iwslt14",
    languages=("de", "en"),
    valid="valid",
    test="test",
    substitutes=("train_subset",),
    note="{} subset of the 160k training pairs",
)

DE_EN_PAPER = PAPER.changed(epochs=70, vocabularies=(8_848, 6_632), units="bpe")
DE_EN_SMALL = SMALL_MODEL.changed(vocabularies=(5_000, 4_000), units="bpe")
DE_EN_TINY = TINY.changed(units="bpe")


def _from_hub(table: list[Row]) -> list[bytes]:
    return [as_lines(row["translation"][language] for row in table) for language in DE_EN.languages]


# Assumed to be fairseq's tokenised form, because the repository without `-preprocess` has raw text.
DE_EN_FILES = Published(
    tuple(
        HubSplit(DE_EN.files(name), _from_hub, "bbaaaa/iwslt14-de-en-preprocess", "de-en", split)
        for name, split in (("train", "train"), ("valid", "validation"), ("test", "test"))
    ),
    "one tokenised, lower-case sentence per line",
    """
iwslt14/test.de.gz 6750 4bd4d70818c82247fabe2944aa60ef7571c256771fa250fdf2796d308b9dc1f7
iwslt14/test.en.gz 6750 0d03ab6ac3556ff0df36b65ebb38cda111e6e722e3d1ce1ee9cae69fdb214a8a
iwslt14/train.de.gz 160239 -
iwslt14/train.en.gz 160239 -
iwslt14/train_subset.de.gz 21112 3999c3e1707c271b22627b66532f0dc70bf9bad95c7d8a5e02e024131b74b91b
iwslt14/train_subset.en.gz 21112 16542524a5ab6f29e2fefc40506e1f449e06676d6fa4b9a9903e1fe25e89aa1f
iwslt14/valid.de.gz 7283 12c1290aa875c17458e284da52aa440aea321043db5d9706179a2d3f017bdc90
iwslt14/valid.en.gz 7283 3ac3384d06b3162b250168a707db5d9cf915a352e9d431e008c1b687b0c68b82
""",
    substitutes=DE_EN.files(*DE_EN.substitutes),
)


TASKS = (
    Task(
        name="en-vi",
        about="English to Vietnamese, IWSLT 2015, Transformer",
        kind="paper",
        family=Translation,
        source=lambda origin: parallel_source(EN_VI, origin.folder),
        sizes=sizes(paper=PAPER, small=EN_VI_SMALL, tiny=TINY),
        published=EN_VI_FILES,
    ),
    Task(
        name="de-en",
        about="German to English, IWSLT 2014, Transformer",
        kind="paper",
        family=Translation,
        source=lambda origin: parallel_source(DE_EN, origin.folder),
        sizes=sizes(paper=DE_EN_PAPER, small=DE_EN_SMALL, tiny=DE_EN_TINY),
        published=DE_EN_FILES,
    ),
)
