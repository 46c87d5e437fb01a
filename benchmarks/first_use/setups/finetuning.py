"""Fine-tuning: a small GPT-2, pretrained here on technical prose, learns the docstrings of one more library."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from benchmarks.first_use import data
from benchmarks.first_use.data import END, START, Vocabulary
from benchmarks.first_use.setups.language import CausalLanguage
from benchmarks.first_use.training import Split, shuffled

NEW_LIBRARY = "networkx"
PRETRAINING_SEED = 0


@dataclass(frozen=True, kw_only=True)
class FineTuning(CausalLanguage):
    """All weights are trained. The pretrained model is the same for all seeds; each process trains it once.

    Args:
        pretraining_epochs: Epochs on the docstrings of six libraries and on Python's language reference.
        pretraining_rate: Learning rate of the pretraining, with AdamW.
    """

    name = "finetuning"
    title = "fine-tuning of a small GPT-2, all weights"

    epochs: int = 10
    batch: int = 16
    learning_rate: float = 3e-4
    optimizer: Literal["adam", "adamw", "sgd"] = "adamw"
    weight_decay: float = 0.01
    clip: float | None = 1.0
    vocabulary: int = 5_000
    width: int = 96
    layers: int = 2
    heads: int = 4
    pretraining_epochs: int = 12
    pretraining_rate: float = 1e-3

    def text(self) -> dict[Split, Tensor]:
        return {split: self._words.stream(texts) for split, texts in new_prose().items()}

    @cached_property
    def _words(self) -> Vocabulary:
        return Vocabulary([*known_prose(), *new_prose()["train"]], self.vocabulary)

    def model(self) -> nn.Module:
        model = self._new_model()
        model.load_state_dict(self._pretrained)
        return model

    def _new_model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=self.length,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            bos_token_id=START,
            eos_token_id=END,
            use_cache=False,
        )
        return GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]

    def logits(self, model: nn.Module, words: Tensor) -> Tensor:
        scores: Tensor = model(input_ids=words).logits
        return scores

    @cached_property
    def _pretrained(self) -> dict[str, Any]:
        """The pretrained weights; the global random state stays as it is."""
        rows = self._rows(self._words.stream(known_prose()))
        order = Generator().manual_seed(PRETRAINING_SEED)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(PRETRAINING_SEED)
            model = self._new_model().train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=self.pretraining_rate)
            for _ in range(self.pretraining_epochs):
                for chosen in shuffled(len(rows), self.batch, order):
                    optimizer.zero_grad()
                    self.loss(model, rows[chosen], None)[0].backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return model.state_dict()


@dataclass(frozen=True, kw_only=True)
class LoRA(FineTuning):
    """The pretrained weights are frozen; only low-rank matrices beside the attention's projections are trained."""

    name = "finetuning-lora"
    title = "fine-tuning of a small GPT-2, LoRA"

    learning_rate: float = 3e-3
    rank: int = 8

    def model(self) -> nn.Module:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=self.rank,
            lora_alpha=2 * self.rank,
            lora_dropout=self.dropout,
            target_modules=["c_attn", "c_proj"],
            fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        )
        return get_peft_model(super().model(), config)


def known_prose() -> list[list[str]]:
    """The texts of the pretraining as lists of words."""
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
