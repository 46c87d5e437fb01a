"""What the tasks with published data consist of: files of the local layout, their content, and where to get them.

None of the addresses could be tried where this was written. `stanfordnlp/imdb`, `ylecun/mnist` and
`ptb-text-only/ptb_text_only` are the hub's own names for these sets. `bbaaaa/iwslt14-de-en-preprocess` is taken for
fairseq's tokenised form, since its sister without `-preprocess` is raw text; the checksums of its valid and test files
will tell. English to Vietnamese comes from Stanford's own pages: copies on the hub have no vocabularies, and those that
the hub's old script made have tst2013 in the place of tst2012.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

STANFORD = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"


@dataclass(frozen=True)
class HubSplit:
    """Files made out of one split of a dataset on the Hugging Face hub."""

    files: tuple[str, ...]
    form: Literal["reviews", "sentences", "pairs", "images"]
    repository: str
    configuration: str
    split: str

    def __str__(self) -> str:
        return f"{self.repository} on the Hugging Face hub"


@dataclass(frozen=True)
class WebFile:
    """A text file at an address of its own."""

    files: tuple[str]
    address: str

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class Manifest:
    """`form` tells who puts the files there by hand what is in them; `substitutes` may stand in for training files."""

    parts: tuple[HubSplit | WebFile, ...]
    form: str
    substitutes: tuple[str, ...] = ()


MANIFESTS = {
    "imdb": Manifest(
        tuple(
            HubSplit((f"imdb/{split}.jsonl.gz",), "reviews", "stanfordnlp/imdb", "plain_text", split)
            for split in ("train", "test")
        ),
        "a JSON object a line with text and label, 0 negative or 1 positive",
    ),
    "ptb": Manifest(
        tuple(
            HubSplit((f"ptb/ptb.{name}.txt.gz",), "sentences", "ptb-text-only/ptb_text_only", "penn_treebank", split)
            for name, split in (("train", "train"), ("valid", "validation"), ("test", "test"))
        ),
        "a tokenised sentence a line",
    ),
    "en-vi": Manifest(
        tuple(
            WebFile((f"iwslt15/{name}.{language}{suffix}",), f"{STANFORD}/{name}.{language}")
            for name, suffix in (("train", ".gz"), ("tst2012", ".gz"), ("tst2013", ".gz"), ("vocab", ""))
            for language in ("en", "vi")
        ),
        "a tokenised sentence a line, and a word a line in the vocabularies",
        substitutes=tuple(
            f"iwslt15/{name}.{language}.gz" for name in ("ted_small", "news_wiki") for language in ("en", "vi")
        ),
    ),
    "de-en": Manifest(
        tuple(
            HubSplit(
                (f"iwslt14/{name}.de.gz", f"iwslt14/{name}.en.gz"),
                "pairs",
                "bbaaaa/iwslt14-de-en-preprocess",
                "de-en",
                split,
            )
            for name, split in (("train", "train"), ("valid", "validation"), ("test", "test"))
        ),
        "a tokenised, lower-case sentence a line",
        substitutes=("iwslt14/train_subset.de.gz", "iwslt14/train_subset.en.gz"),
    ),
    "mnist": Manifest(
        tuple(
            HubSplit(
                (f"mnist/{name}-images-idx3-ubyte.gz", f"mnist/{name}-labels-idx1-ubyte.gz"),
                "images",
                "ylecun/mnist",
                "mnist",
                split,
            )
            for name, split in (("train", "train"), ("t10k", "test"))
        ),
        "idx files as published",
    ),
}

# Name, rows, and the checksum of the content (`download.checksum`) where a whole copy was at hand.
CONTENTS = """
imdb/test.jsonl.gz 25000 cb13a169b17c63a1bf2bbafd38036ac1ab136507c15d8a6c4f1cecadacf5acf6
imdb/train.jsonl.gz 25000 43b975efa826fcf7eb2d940469c4efc996465f1faf37ffb607206cd6df86465d
iwslt14/test.de.gz 6750 4bd4d70818c82247fabe2944aa60ef7571c256771fa250fdf2796d308b9dc1f7
iwslt14/test.en.gz 6750 0d03ab6ac3556ff0df36b65ebb38cda111e6e722e3d1ce1ee9cae69fdb214a8a
iwslt14/train.de.gz 160239 -
iwslt14/train.en.gz 160239 -
iwslt14/train_subset.de.gz 21112 3999c3e1707c271b22627b66532f0dc70bf9bad95c7d8a5e02e024131b74b91b
iwslt14/train_subset.en.gz 21112 16542524a5ab6f29e2fefc40506e1f449e06676d6fa4b9a9903e1fe25e89aa1f
iwslt14/valid.de.gz 7283 12c1290aa875c17458e284da52aa440aea321043db5d9706179a2d3f017bdc90
iwslt14/valid.en.gz 7283 3ac3384d06b3162b250168a707db5d9cf915a352e9d431e008c1b687b0c68b82
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
mnist/t10k-images-idx3-ubyte.gz 10000 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
mnist/t10k-labels-idx1-ubyte.gz 10000 ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2
mnist/train-images-idx3-ubyte.gz 60000 ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
mnist/train-labels-idx1-ubyte.gz 60000 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
ptb/ptb.test.txt.gz 3761 38a777800d6c33e401453fe41d87d4548247bed3bdd9d54a58928f53ef6e84d6
ptb/ptb.train.txt.gz 42068 05c01a9258233ad1eaa215f507c0b3b12ce2130dd579ea16099e037debab6dca
ptb/ptb.valid.txt.gz 3370 ef32d560607be130628303616ea6aefc6f906223135adfb49d9e516a3a7865e4
"""
ROWS = {name: int(rows) for name, rows, _ in map(str.split, CONTENTS.strip().splitlines())}
CHECKSUMS = {name: checksum for name, _, checksum in map(str.split, CONTENTS.strip().splitlines()) if checksum != "-"}
