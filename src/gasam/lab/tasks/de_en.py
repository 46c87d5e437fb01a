"""The task de-en: IWSLT'14, German to English, lower-case text as fairseq prepares it, byte-pair encoding."""

from __future__ import annotations

from pathlib import Path

from gasam.lab.data.corpus import Source
from gasam.lab.data.parallel import Layout, parallel_source
from gasam.lab.data.published import HubSplit, Published, Row, as_lines
from gasam.lab.families.translation import Translation
from gasam.lab.tasks import en_vi
from gasam.lab.tasks.en_vi import of_token_sum
from gasam.lab.tasks.task import Task, filter_wise, linf, sizes

LAYOUT = Layout(
    task="de-en",
    folder="iwslt14",
    languages=("de", "en"),
    valid="valid",
    test="test",
    substitutes=("train_subset",),
    note="{} subset of the 160k training pairs",
)

PAPER = en_vi.PAPER.changed(epochs=70, vocabularies=(8_848, 6_632), units="bpe")
SMALL = en_vi.SMALL_MODEL.changed(vocabularies=(5_000, 4_000), units="bpe")
TINY = en_vi.TINY.changed(units="bpe")


def source(directory: Path) -> Source:
    return parallel_source(LAYOUT, directory)


def _from_hub(table: list[Row]) -> list[bytes]:
    return [as_lines(row["translation"][language] for row in table) for language in LAYOUT.languages]


# Assumed to be fairseq's tokenised form, because the repository without `-preprocess` has raw text.
PUBLISHED = Published(
    tuple(
        HubSplit(LAYOUT.files(name), _from_hub, "bbaaaa/iwslt14-de-en-preprocess", "de-en", split)
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
    substitutes=LAYOUT.files(*LAYOUT.substitutes),
)

TASKS = (
    Task(
        name="de-en",
        about="German to English, IWSLT 2014, Transformer",
        kind="paper",
        family=Translation,
        source=lambda origin: source(origin.folder),
        sizes=sizes(paper=PAPER, small=SMALL, tiny=TINY),
        paper_radii={
            "sam": linf(5e-4),
            "asam": linf(2e-4),
            "asam-filter": filter_wise(1e-5),
            "layer-sam": linf(3e-3),
            "multi-step-defense": linf(5e-4, 2),
            "ga-sam": of_token_sum(0.8),
            "freelb": linf(0.005, 3),
        },
        start_epoch=(30, 70),
        published=PUBLISHED,
    ),
)
