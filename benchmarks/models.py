"""The paper's models at the paper's size, with a batch each; random tokens, since only time is of interest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class TextCNN(nn.Module):
    """Vocabulary 30,000, embedding 500, windows 3, 4 and 5 with 500 maps each; 64 reviews of 200 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30_000, 500)
        self.windows = nn.ModuleList(nn.Conv1d(500, 500, size) for size in (3, 4, 5))
        self.out = nn.Linear(1500, 2)

    def loss(self) -> Tensor:
        words = self.words(torch.randint(30_000, (64, 200))).transpose(1, 2)
        features = torch.cat([window(words).relu().amax(2) for window in self.windows], 1)
        return cross_entropy(self.out(features), torch.randint(2, (64,)))


class LanguageModel(nn.Module):
    """Two LSTM layers of 500, embeddings of 10,000 words tied with the output; 20 texts of 70 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10_000, 500)
        self.layers = nn.LSTM(500, 500, 2)
        self.bias = nn.Parameter(torch.zeros(10_000))

    def loss(self) -> Tensor:
        hidden, _ = self.layers(self.words(torch.randint(10_000, (70, 20))))
        logits = nn.functional.linear(hidden, self.words.weight, self.bias)
        return cross_entropy(logits.flatten(0, 1), torch.randint(10_000, (1400,)))


class Translator(nn.Module):
    """Six and six layers of 512, 8 heads, 2048 inside; 17,200 and 7,800 words; 32 pairs of 32 words.

    A quarter of the paper's 4,096 tokens a batch: the walk's share is the larger for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(17_200, 512), nn.Embedding(7_800, 512)
        self.layers = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        self.out = nn.Linear(512, 7_800, bias=False)

    def loss(self) -> Tensor:
        source, target = self.source(torch.randint(17_200, (32, 32))), self.target(torch.randint(7_800, (32, 32)))
        mask = nn.Transformer.generate_square_subsequent_mask(32)
        logits = self.out(self.layers(source, target, tgt_mask=mask, tgt_is_causal=True))
        return cross_entropy(logits.flatten(0, 1), torch.randint(7_800, (1024,)))


MODELS: dict[str, Callable[[], nn.Module]] = {"TextCNN": TextCNN, "LSTM": LanguageModel, "Transformer": Translator}


def classifier(width: int = 256) -> nn.Module:
    """BERT-mini: 4 layers of 256, 11 million weights; without dropout, so that all passes cost the same."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=width, num_hidden_layers=4, num_attention_heads=4, intermediate_size=4 * width, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = BertForSequenceClassification(config)
    return model.train()


def sentences(count: int = 8, words: int = 32) -> dict[str, Tensor]:
    """For the classifier; few and short, so that what is added to a step weighs the more."""
    return {"input_ids": torch.randint(30_000, (count, words)), "labels": torch.randint(2, (count,))}
