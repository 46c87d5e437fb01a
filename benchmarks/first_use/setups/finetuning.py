"""Fine-tuning: a small GPT-2, pretrained here on technical prose, learns the docstrings of one more library."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import AdamW, Optimizer

from benchmarks.first_use import data
from benchmarks.first_use.data import END, START, Vocabulary
from benchmarks.first_use.setups.language import CausalLanguage
from benchmarks.first_use.training import Split, shuffled

NEW_LIBRARY = "networkx"


class FineTuning(CausalLanguage):
    """All weights are trained. The pretrained model is the same for all seeds; each process trains it once."""

    name = "finetuning"
    title = "fine-tuning of a small GPT-2, all weights"
    epochs = 10

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return AdamW(weights, lr=3e-4, weight_decay=0.01)

    def text(self) -> dict[Split, Tensor]:
        return {split: self._words.stream(texts) for split, texts in new_prose().items()}

    @cached_property
    def _words(self) -> Vocabulary:
        return Vocabulary([*known_prose(), *new_prose()["train"]], 5000)

    def model(self) -> nn.Module:
        model = self._new_model()
        model.load_state_dict(self._pretrained)
        return model

    def _new_model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=5000, n_positions=self.length, n_embd=96, n_layer=2, n_head=4,
            bos_token_id=START, eos_token_id=END, use_cache=False,
        )  # fmt: skip
        return GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]

    def logits(self, model: nn.Module, words: Tensor) -> Tensor:
        scores: Tensor = model(input_ids=words).logits
        return scores

    @cached_property
    def _pretrained(self) -> dict[str, Any]:
        """The weights after 12 epochs of other prose; the global random state stays as it is."""
        rows = self._rows(self._words.stream(known_prose()))
        order = Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self._new_model().train()
            optimizer = AdamW(model.parameters(), lr=1e-3)
            for _ in range(12):
                for chosen in shuffled(len(rows), self.batch, order):
                    optimizer.zero_grad()
                    self.loss(model, rows[chosen], None)[0].backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return model.state_dict()


class LoRA(FineTuning):
    """The pretrained weights are frozen; only low-rank matrices beside the attention's projections are trained."""

    name = "finetuning-lora"
    title = "fine-tuning of a small GPT-2, LoRA"

    def optimizer(self, weights: Iterator[nn.Parameter]) -> Optimizer:
        return AdamW(weights, lr=3e-3, weight_decay=0.01)

    def model(self) -> nn.Module:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        )  # fmt: skip
        return get_peft_model(super().model(), config)


def known_prose() -> list[list[str]]:
    """The texts of the pretraining, docstrings of six libraries and Python's reference, as lists of words."""
    corpus = data.corpus("docstrings")
    new = corpus.classes.index(NEW_LIBRARY)
    docstrings = [text for text, label in [*corpus.train, *corpus.valid, *corpus.test] if label != new]
    return [text.split() for text in [*docstrings, *data.corpus("pydoc").train]]


def new_prose() -> dict[Split, list[list[str]]]:
    """The docstrings of the new library as lists of words."""
    corpus = data.corpus("docstrings")
    new = corpus.classes.index(NEW_LIBRARY)
    splits: dict[Split, list[Any]] = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    return {split: [text.split() for text, label in rows if label == new] for split, rows in splits.items()}
