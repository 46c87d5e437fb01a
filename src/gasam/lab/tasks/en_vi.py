"""The task en-vi: IWSLT'15, English to Vietnamese, with Stanford's vocabularies; valid is tst2012, test is tst2013."""

from __future__ import annotations

from pathlib import Path

from gasam.lab.data.corpus import Source
from gasam.lab.data.parallel import Layout, parallel_source
from gasam.lab.data.published import Published, WebFile
from gasam.lab.families.translation import TransformerSettings, Translation
from gasam.lab.tasks.task import Radius, Task, filter_wise, linf, sizes

LAYOUT = Layout(
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
SMALL = SMALL_MODEL.changed(rows=12_000, vocabularies=(8_000, 4_000))
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
PUBLISHED = Published(
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
    substitutes=LAYOUT.files(*LAYOUT.substitutes),
)


def source(directory: Path) -> Source:
    return parallel_source(LAYOUT, directory)


def of_token_sum(epsilon: float) -> Radius:
    """Convert the paper's epsilon from fairseq's loss, a sum over the 4,096 tokens of a batch, to the mean loss.

    This is inferred: GA-SAM's T is the inverse of a gradient, so with the mean loss 0.9 would move every weight by
    about 1.
    """
    return linf(epsilon / 4096, 2, f"{epsilon:g} for the sum of 4,096 tokens (inferred)")


TASKS = (
    Task(
        name="en-vi",
        about="English to Vietnamese, IWSLT 2015, Transformer",
        kind="paper",
        family=Translation,
        source=lambda origin: source(origin.folder),
        sizes=sizes(paper=PAPER, small=SMALL, tiny=TINY),
        paper_radii={
            "sam": linf(1.2e-3),
            "asam": linf(5e-4),
            "asam-filter": filter_wise(2e-5),
            "layer-sam": linf(1e-3),
            "multi-step-defense": linf(5e-4, 2),
            "ga-sam": of_token_sum(0.9),
            "freelb": linf(0.02, 1),
        },
        start_epoch=(30, 52),
        published=PUBLISHED,
    ),
)
