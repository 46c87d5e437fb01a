"""Text classification by a convolutional network over word embeddings (TextCNN), measured by accuracy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.families.family import Share, Sizes
from gasam.lab.families.labelled import Classification, ClassifierSettings
from gasam.lab.families.spaces import Space, Span
from gasam.lab.families.vocabulary import UNKNOWN, Vocabulary

PADDING = "<pad>"
BREAK = re.compile(r"<br\s*/?>")
WORD = re.compile(r"\w+(?:'\w+)?|[!?]")


class TextCNNSettings(ClassifierSettings):
    """Settings of a TextCNN.

    Args:
        vocabulary: Number of words, including padding and <unk>.
        length: Number of words that are read of each text.
        embedding: Size of the embeddings.
        maps: Number of feature maps of each window.
        windows: Widths of the convolutions.
        embedding_scale: Standard deviation of the initial embeddings.
        embedding_dropout: The probability that a number of an embedding is dropped.
    """

    vocabulary: PositiveInt
    length: PositiveInt
    embedding: PositiveInt
    maps: PositiveInt
    windows: Sizes = (3, 4, 5)
    embedding_scale: PositiveFloat = 1.0
    embedding_dropout: Share = 0.0

    encoding: ClassVar[tuple[str, ...]] = ("rows", "vocabulary", "length")
    later: ClassVar[dict[str, Any]] = ClassifierSettings.later | {"embedding_scale": 1.0, "embedding_dropout": 0.0}

    def space(self) -> Space:
        embeddings = {"embedding_scale": Span(0.02, 0.5, log=True), "embedding_dropout": Span(0.0, 0.6)}
        return {**super().space(), **embeddings}


class TextClassification(Classification[TextCNNSettings]):
    settings_type = TextCNNSettings

    @staticmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        texts = (words(text) for text, _ in training.train)
        vocabulary = Vocabulary.most_frequent(texts, settings.vocabulary, (PADDING, UNKNOWN))
        return {"words": vocabulary.words, "classes": list(training.classes)}

    @staticmethod
    def encode(split: Split, examples: list[Any], shared: dict[str, Any], settings: Any) -> tuple[Tensor, Tensor]:
        tokens = token_numbers([text for text, _ in examples], Vocabulary(shared["words"]), settings.length)
        return tokens, torch.tensor([label for _, label in examples])

    def model(self) -> nn.Module:
        return TextCNN(len(self.data.shared["words"]), len(self.data.shared["classes"]), self.settings)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.data.shared["words"])

    def input_tensor(self, inputs: Sequence[Any]) -> Tensor:
        return token_numbers(inputs, self.vocabulary, self.settings.length)


class TextCNN(nn.Module):
    """Embeddings, convolutions of several widths, the maximum over time of each feature map, and a linear layer.

    The convolutions are two-dimensional, on a text of height 1, because torch can then read the embeddings in their
    memory layout.
    """

    def __init__(self, words: int, classes: int, settings: TextCNNSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, settings.embedding, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.mul_(settings.embedding_scale)  # torch draws them with a standard deviation of 1
        self.convolutions = nn.ModuleList(
            nn.Conv2d(settings.embedding, settings.maps, (1, window), padding=(0, window - 1))
            for window in settings.windows
        )
        self.embedding_dropout = nn.Dropout(settings.embedding_dropout)
        self.dropout = nn.Dropout(settings.dropout)
        self.output = nn.Linear(settings.maps * len(settings.windows), classes)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding_dropout(self.embedding(tokens)).transpose(1, 2).unsqueeze(2)
        largest = [convolution(embedded).amax(dim=(2, 3)).relu() for convolution in self.convolutions]
        return self.output(self.dropout(torch.cat(largest, dim=1)))  # type: ignore[no-any-return]


def token_numbers(texts: Sequence[str], vocabulary: Vocabulary, length: int) -> Tensor:
    """The numbers of the first `length` words of each text, padded with zeros.

    Args:
        texts: The texts.
        vocabulary: Numbers the words.
        length: Number of words that are read of each text.
    """
    tokens = torch.zeros(len(texts), length, dtype=torch.int32)
    for row, text in enumerate(texts):
        numbers = vocabulary.encode(words(text)[:length])
        tokens[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
    return tokens


def words(text: str) -> list[str]:
    return WORD.findall(BREAK.sub(" ", text).lower())
