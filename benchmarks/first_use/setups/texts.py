"""Text classification: TextCNN on docstrings and on a CSV file of movie reviews, and a BERT from scratch."""

from __future__ import annotations

import csv
import tempfile
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from benchmarks.first_use import data
from benchmarks.first_use.data import PADDING, Labelled, Vocabulary
from benchmarks.first_use.setup import Split
from benchmarks.first_use.setups.labelled import Classification

Example = tuple[str, int]
Examples = dict[Split, list[Example]]


@dataclass(frozen=True, kw_only=True)
class TextClassification(Classification):
    """Texts as rows of word numbers.

    Args:
        classes: Number of labels.
        vocabulary: Words that are known, special ones included.
        length: Words of a text that are read.
    """

    classes: int
    vocabulary: int = 10_000
    length: int = 150

    @abstractmethod
    def examples(self) -> Examples:
        """The labelled texts of each split."""

    def read(self) -> dict[Split, Labelled]:
        examples = self.examples()
        texts = {split: [data.words(text) for text, _ in rows] for split, rows in examples.items()}
        vocabulary = Vocabulary(texts["train"], self.vocabulary)
        return {
            split: (vocabulary.rows(texts[split], self.length), data.labels(rows)) for split, rows in examples.items()
        }


@dataclass(frozen=True, kw_only=True)
class TextCNNSetup(TextClassification):
    embedding: int = 64
    maps: int = 64
    initial_embedding: float = 0.1
    dropout: float = 0.5

    def model(self) -> nn.Module:
        return TextCNN(self)


class TextCNN(nn.Module):
    """Word embeddings, convolutions over 3, 4 and 5 words, the maximum over time, dropout, a linear layer.

    A text is an image of height one: torch convolves it faster than with Conv1d.
    """

    def __init__(self, setup: TextCNNSetup) -> None:
        super().__init__()
        self.embedding = nn.Embedding(setup.vocabulary, setup.embedding, padding_idx=PADDING)
        with torch.no_grad():
            self.embedding.weight.mul_(setup.initial_embedding)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(setup.embedding, setup.maps, (1, window), padding=(0, window - 1)) for window in (3, 4, 5)
        )
        self.dropout = nn.Dropout(setup.dropout)
        self.output = nn.Linear(3 * setup.maps, setup.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens).transpose(1, 2).unsqueeze(2)
        largest = [convolution(embedded).amax(dim=(2, 3)).relu() for convolution in self.convolutions]
        scores: Tensor = self.output(self.dropout(torch.cat(largest, dim=1)))
        return scores


@dataclass(frozen=True, kw_only=True)
class DocstringsCNN(TextCNNSetup):
    name = "docstrings-textcnn"
    title = "TextCNN, docstrings"

    epochs: int = 12
    batch: int = 64
    learning_rate: float = 1e-3
    classes: int = 7
    length: int = 48

    def examples(self) -> Examples:
        corpus = data.corpus("docstrings")
        return {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}


@dataclass(frozen=True, kw_only=True)
class ReviewsCNN(TextCNNSetup):
    name = "reviews-textcnn"
    title = "TextCNN, CSV file of 4,000 reviews"

    epochs: int = 10
    batch: int = 64
    learning_rate: float = 1e-3
    classes: int = 2
    rows: int = 4_000
    held_out: int = 2_000

    def examples(self) -> Examples:
        """Written to a CSV file and read back, as a user with a file of reviews would start."""
        reviews = imdb(self.rows, self.held_out)
        with tempfile.TemporaryDirectory() as folder:
            return {split: _through_csv(Path(folder, f"{split}.csv"), rows) for split, rows in reviews.items()}


def imdb(rows: int, held_out: int) -> Examples:
    corpus = data.corpus("imdb")
    return {"train": corpus.train[:rows], "valid": corpus.valid[:held_out], "test": corpus.test[:held_out]}


def _through_csv(path: Path, rows: list[Example]) -> list[Example]:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    with path.open(newline="", encoding="utf-8") as stream:
        return [(row["text"], int(row["label"])) for row in csv.DictReader(stream)]


@dataclass(frozen=True, kw_only=True)
class ReviewsBERT(TextClassification):
    """Training starts on a plateau: the loss stays near log 2 for more than one epoch before it falls."""

    name = "reviews-bert"
    title = "BERT from scratch, 4,000 reviews"

    epochs: int = 6
    batch: int = 32
    learning_rate: float = 2e-4
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    weight_decay: float = 0.01
    classes: int = 2
    length: int = 80
    width: int = 64
    layers: int = 2
    heads: int = 2
    rows: int = 4_000
    held_out: int = 2_000

    def examples(self) -> Examples:
        return imdb(self.rows, self.held_out)

    def model(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.length,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            num_labels=self.classes,  # type: ignore[call-arg]
            pad_token_id=PADDING,
        )
        return BertForSequenceClassification(config)  # type: ignore[no-untyped-call]

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        scores: Tensor = model(input_ids=inputs, attention_mask=(inputs != PADDING).long()).logits
        return scores
