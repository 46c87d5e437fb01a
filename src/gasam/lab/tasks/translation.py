"""The translation tasks of IWSLT: en-vi (2015, Stanford's vocabularies) and de-en (2014, byte-pair encoding)."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from gasam.lab.data.corpus import Corpus, Source, required
from gasam.lab.data.files import aligned, lines
from gasam.lab.data.published import Published, Row, as_lines, on_hub, on_web
from gasam.lab.families.translation import TransformerSettings, Translation
from gasam.lab.tasks.task import Task


def _source(
    task: str,
    directory: Path,
    *,
    folder: str,
    judged: tuple[str, str],
    substitutes: tuple[str, ...],
    note: str,
    vocabularies: tuple[str, ...] = (),
) -> Source:
    """The files `{folder}/{split}.{language}.gz`; `task` is the source and the target language.

    The training split is `train`, or the substitutes if only they exist, with a note. Training pairs with a blank line
    are left out.
    """

    def files(*splits: str) -> tuple[str, ...]:
        return tuple(f"{folder}/{split}.{language}.gz" for split in splits for language in task.split("-"))

    def there(*splits: str) -> bool:
        return all((directory / name).is_file() for name in files(*splits))

    training = substitutes if there(*substitutes) and not there("train") else ("train",)
    splits = (*training, *judged)
    found = required(task, directory, files(*splits) + vocabularies)

    def read() -> Corpus:
        *train, valid, test = (aligned(*found[2 * i : 2 * i + 2]) for i in range(len(splits)))
        pairs = [pair for pair in chain(*train) if all(pair)]
        notes = () if training == ("train",) else (f"{len(pairs):,} {note}",)
        words = tuple(tuple(line.strip() for line in lines(file)) for file in found[2 * len(splits) :])
        return Corpus(pairs, valid, test, vocabularies=words, notes=notes)

    return Source(task, read, files=found, options=" ".join(splits))


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
DE_EN_SIZES = {
    "paper": PAPER.changed(epochs=70, vocabularies=(8_848, 6_632), units="bpe"),
    "small": SMALL_MODEL.changed(vocabularies=(5_000, 4_000), units="bpe"),
    "tiny": TINY.changed(units="bpe"),
}

STANFORD = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
# Copies on the Hugging Face hub have no vocabularies, and its old script put tst2013 in place of tst2012.
EN_VI_FILES = Published(
    tuple(
        on_web(f"iwslt15/{name}.{language}{suffix}", f"{STANFORD}/{name}.{language}")
        for name, suffix in (("train", ".gz"), ("tst2012", ".gz"), ("tst2013", ".gz"), ("vocab", ""))
        for language in ("en", "vi")
    ),
    "one tokenised sentence per line, and one word per line in the vocabularies",
    {
        "iwslt15/train.en.gz": (133_317, None),
        "iwslt15/train.vi.gz": (133_317, None),
        "iwslt15/tst2012.en.gz": (1_553, "206de622a51ceb74b52238808fbaca290c6e56a3622f01f2ee832405eab4464a"),
        "iwslt15/tst2012.vi.gz": (1_553, "8d9be59117ad8fe913389ec37fc9a426cb984701bea0fafa049a8ec2cb57121a"),
        "iwslt15/tst2013.en.gz": (1_268, "64b53740396add07ee7a025f81f6f3f44fc30221625279849802b118edd8ea70"),
        "iwslt15/tst2013.vi.gz": (1_268, "08d948636e360e7b2bff319c08d6b8e0a0dcf6dd8514c59ca46d6594364ef37f"),
        "iwslt15/vocab.en": (17_191, "69120071a603bb8cdd470c5ff988d7a0887462c045eaada17718d55e6cc71b0d"),
        "iwslt15/vocab.vi": (7_709, "fe972acbca64a43911ea98b05d1e810a5979230ff7a4982c7b1edd006ef9ba40"),
        "iwslt15/news_wiki.en.gz": (48_791, "5e52028696265b8609755a54484399557c24a2baf83a04c6e8e89e092dcd6c84"),
        "iwslt15/news_wiki.vi.gz": (48_791, "334f0907ecf302ffd7c58ab3a169733a231d00cce9fc608b8ea1676296e7a8a1"),
        "iwslt15/ted_small.en.gz": (4_502, "abd71d2181db9d511d889804bd740c9de59e2738b6bbd9b08a98af8d4574502d"),
        "iwslt15/ted_small.vi.gz": (4_502, "5eca4c31b5d2d9e175b5093f912fe41621fcb8c1e11ad7fe782d12b92061686b"),
    },
)


def _from_hub(table: list[Row]) -> list[bytes]:
    return [as_lines(row["translation"][language] for row in table) for language in ("de", "en")]


DE_EN_REPOSITORY = "bbaaaa/iwslt14-de-en-preprocess"
# Assumed to be fairseq's tokenised form, because the repository without `-preprocess` has raw text.
DE_EN_FILES = Published(
    tuple(
        on_hub((f"iwslt14/{name}.de.gz", f"iwslt14/{name}.en.gz"), _from_hub, DE_EN_REPOSITORY, "de-en", split)
        for name, split in (("train", "train"), ("valid", "validation"), ("test", "test"))
    ),
    "one tokenised, lower-case sentence per line",
    {
        "iwslt14/test.de.gz": (6_750, "4bd4d70818c82247fabe2944aa60ef7571c256771fa250fdf2796d308b9dc1f7"),
        "iwslt14/test.en.gz": (6_750, "0d03ab6ac3556ff0df36b65ebb38cda111e6e722e3d1ce1ee9cae69fdb214a8a"),
        "iwslt14/train.de.gz": (160_239, None),
        "iwslt14/train.en.gz": (160_239, None),
        "iwslt14/valid.de.gz": (7_283, "12c1290aa875c17458e284da52aa440aea321043db5d9706179a2d3f017bdc90"),
        "iwslt14/valid.en.gz": (7_283, "3ac3384d06b3162b250168a707db5d9cf915a352e9d431e008c1b687b0c68b82"),
        "iwslt14/train_subset.de.gz": (21_112, "3999c3e1707c271b22627b66532f0dc70bf9bad95c7d8a5e02e024131b74b91b"),
        "iwslt14/train_subset.en.gz": (21_112, "16542524a5ab6f29e2fefc40506e1f449e06676d6fa4b9a9903e1fe25e89aa1f"),
    },
)

TASKS = (
    Task(
        name="en-vi",
        about="English to Vietnamese, IWSLT 2015, Transformer",
        kind="paper",
        family=Translation,
        source=lambda origin: _source(
            "en-vi",
            origin.folder,
            folder="iwslt15",
            judged=("tst2012", "tst2013"),
            substitutes=("ted_small", "news_wiki"),
            note="substitute training pairs, not the paper's 133k",
            vocabularies=("iwslt15/vocab.en", "iwslt15/vocab.vi"),
        ),
        sizes={"paper": PAPER, "small": SMALL_MODEL.changed(rows=12_000, vocabularies=(8_000, 4_000)), "tiny": TINY},
        published=EN_VI_FILES,
    ),
    Task(
        name="de-en",
        about="German to English, IWSLT 2014, Transformer",
        kind="paper",
        family=Translation,
        source=lambda origin: _source(
            "de-en",
            origin.folder,
            folder="iwslt14",
            judged=("valid", "test"),
            substitutes=("train_subset",),
            note="of the 160k training pairs",
        ),
        sizes=DE_EN_SIZES,
        published=DE_EN_FILES,
    ),
)
