"""Classification of labelled examples, measured by accuracy, and a convolutional network for texts (TextCNN)."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gasam.analysis.objective import CrossEntropy, Objective
from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.families.family import UNKNOWN, Family, Recipe, Sampling, Score, Share, Sizes, Vocabulary, one_line
from gasam.lab.record import Metric

PADDING = "<pad>"
BREAK = re.compile(r"<br\s*/?>")
WORD = re.compile(r"\w+(?:'\w+)?|[!?]")


class ClassifierSettings(Recipe):
    dropout: Share
    smoothing: Share = 0.0  # the share of the label that is spread over all classes in the training loss

    def space(self) -> dict[str, Any]:
        return super().space() | {
            "schedule": ["constant", "linear"],
            "optimizer": ["adamw"],
            "weight_decay": "0.001..1,log",
            "dropout": "0..0.6",
            "smoothing": [0.0, 0.1],
        }


Settings = TypeVar("Settings", bound=ClassifierSettings)


class Classification(Family[Settings]):
    """Classification of examples; `data[split]` is (inputs, labels)."""

    metric = followed = Metric("accuracy", higher_is_better=True, unit="%")
    inputs_at_once = 250

    def count(self, split: Split) -> int:
        return len(self.data[split][1])

    def read(self, split: Split, rows: Tensor) -> tuple[Tensor, ...]:
        inputs, labels = self.data[split]
        return inputs[rows], labels[rows]

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], carried: Any) -> tuple[Tensor, Any]:
        inputs, labels = batch
        return cross_entropy(model(inputs), labels, label_smoothing=self.settings.smoothing), None

    def objective(self) -> Objective:
        return Objective(lambda model, batch: model(batch[0]), CrossEntropy())

    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        inputs, labels = (part[:rows] for part in self.data[split])
        right, count = int((self._scores(model, inputs).argmax(dim=1) == labels).sum()), len(labels)
        share = (right + 1) / (count + 2)  # add-one smoothing, so that the error is not 0 at 0 or 100 %
        return Score(100 * right / count, 100 * math.sqrt(share * (1 - share) / count))

    @torch.no_grad()
    def _scores(self, model: nn.Module, inputs: Tensor) -> Tensor:
        device = next(model.parameters()).device
        return torch.cat([model(some.to(device)).cpu() for some in torch.split(inputs, self.inputs_at_once)])

    def worthless(self, split: Split, rows: int | None = None) -> float:
        """The accuracy of always predicting the most frequent class."""
        labels = self.data[split][1][:rows]
        return 100 * int(labels.bincount().max()) / len(labels)

    @abstractmethod
    def input_tensor(self, inputs: Sequence[Any]) -> Tensor:
        """Encode inputs for the model."""

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Sampling) -> list[dict[str, Any]]:
        """The most likely class of each input, and the probabilities of all classes."""
        classes = self.data.shared["classes"]
        shares = self._scores(model, self.input_tensor(inputs)).double().softmax(dim=1)
        return [
            {"class": classes[best], "probabilities": dict(zip(classes, row, strict=True))}
            for best, row in zip(shares.argmax(dim=1).tolist(), shares.tolist(), strict=True)
        ]

    def line(self, prediction: Mapping[str, Any]) -> str:
        """The class, a tab, and the three most likely classes with their probabilities."""
        ranked = sorted(prediction["probabilities"].items(), key=lambda item: -item[1])[:3]
        shares = ", ".join(f"{one_line(name)} {share:.4f}" for name, share in ranked)
        return f"{one_line(prediction['class'])}\t{shares}"


class TextCNNSettings(ClassifierSettings):
    vocabulary: PositiveInt  # words, including padding and <unk>
    length: PositiveInt  # words that are read of each text
    embedding: PositiveInt
    maps: PositiveInt  # feature maps of each window
    windows: Sizes = (3, 4, 5)  # widths of the convolutions
    embedding_scale: PositiveFloat = 1.0  # standard deviation of the initial embeddings
    embedding_dropout: Share = 0.0  # the probability that a number of an embedding is dropped

    encoding: ClassVar[tuple[str, ...]] = ("rows", "vocabulary", "length")

    def space(self) -> dict[str, Any]:
        return super().space() | {"embedding_scale": "0.02..0.5,log", "embedding_dropout": "0..0.6"}


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

    def input_tensor(self, inputs: Sequence[Any]) -> Tensor:
        return token_numbers(inputs, self.vocabulary, self.settings.length)


class TextCNN(nn.Module):
    """Embeddings, convolutions of several widths, the maximum over time of each feature map, and a linear layer."""

    def __init__(self, words: int, classes: int, settings: TextCNNSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, settings.embedding, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.mul_(settings.embedding_scale)  # torch draws them with a standard deviation of 1
        # Two-dimensional, on a text of height 1, because torch can then read the embeddings in their memory layout.
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
    """The numbers of the first `length` words of each text, padded with zeros."""
    tokens = torch.zeros(len(texts), length, dtype=torch.int32)
    for row, text in enumerate(texts):
        numbers = vocabulary.encode(words(text)[:length])
        tokens[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
    return tokens


def words(text: str) -> list[str]:
    return WORD.findall(BREAK.sub(" ", text).lower())
