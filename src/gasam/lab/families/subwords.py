"""Tokenisers for translation: whole words, or byte-pair encoding, learnt from the training text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import BPEDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from torch import Tensor

from gasam.lab.families.vocabulary import UNKNOWN, Vocabulary

PADDING, START, END = "<pad>", "<s>", "</s>"
SPECIALS = (PADDING, START, END, UNKNOWN)
WORD_END = "</w>"
LONGEST_WORD = 1000
"""Letters of the longest word to learn from. The time of the trainer grows with the square of a word's length."""
END_NUMBER, UNKNOWN_NUMBER = SPECIALS.index(END), SPECIALS.index(UNKNOWN)
SILENT = frozenset(SPECIALS.index(special) for special in (PADDING, START, END))


class Subwords:
    """The tokeniser of one language; `saved` is its JSON from the tokenizers library, as text or parsed."""

    def __init__(self, saved: str | Mapping[str, Any]) -> None:
        self.saved = saved if isinstance(saved, str) else json.dumps(saved)
        self.tokenizer = Tokenizer.from_str(self.saved)

    @classmethod
    def learn(
        cls, lines: Sequence[str], units: Literal["words", "bpe"], size: int, shipped: Sequence[str] = ()
    ) -> Subwords:
        """Learn a tokeniser.

        Args:
            lines: The training text.
            units: Whole words, or byte-pair encoding.
            size: Maximum number of tokens, including special ones.
            shipped: The words that may be used, if a word list comes with the data.
        """
        tokenizer = _words(lines, size, shipped) if units == "words" else _byte_pairs(lines, size)
        tokenizer.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=[(END, SPECIALS.index(END))])
        return cls(tokenizer.to_str())

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, lines: Sequence[str]) -> list[Tensor]:
        """The token numbers of each line, with END as the last. Special tokens spelled in the text become <unk>."""
        found = [line.ids[:-1] for line in self.tokenizer.encode_batch(list(lines))]
        numbers = ([UNKNOWN_NUMBER if n in SILENT else n for n in line] for line in found)
        return [torch.tensor([*line, END_NUMBER], dtype=torch.int32) for line in numbers]

    def decode(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        """Words separated by blanks, with <unk> for unknown tokens, without start, end and padding."""
        spoken = [[n for n in line if n not in SILENT] for line in numbers]
        return self.tokenizer.decode_batch(spoken, skip_special_tokens=False)


def _words(lines: Sequence[str], size: int, shipped: Sequence[str]) -> Tokenizer:
    if shipped and size >= len({*shipped, *SPECIALS}):
        vocabulary = Vocabulary(shipped, SPECIALS)
    else:
        allowed = set(shipped)
        texts = (line.split() for line in lines)
        known = ([word for word in words if not allowed or word in allowed] for words in texts)
        vocabulary = Vocabulary.most_frequent(known, size, SPECIALS)
    tokenizer = Tokenizer(WordLevel(vocabulary.numbers, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def _byte_pairs(lines: Sequence[str], size: int) -> Tokenizer:
    """Learn a byte-pair encoding that is the same in every process.

    The trainer numbers the last letters of words in the order of a hash table, which varies, and breaks ties by these
    numbers. Declaring them as special tokens fixes their numbers, and so all tokens.
    """
    lines = [
        line for line in lines if len(line) <= LONGEST_WORD or max(map(len, line.split()), default=0) <= LONGEST_WORD
    ]
    endings = sorted({f"{word[-1]}{WORD_END}" for line in lines for word in line.split()})
    trainer = BpeTrainer(
        vocab_size=size, special_tokens=[*SPECIALS, *endings], end_of_word_suffix=WORD_END, show_progress=False
    )
    learner = Tokenizer(BPE(unk_token=UNKNOWN, end_of_word_suffix=WORD_END))
    learner.pre_tokenizer = WhitespaceSplit()
    learner.train_from_iterator(lines, trainer)
    learnt = json.loads(learner.to_str())["model"]
    merges = [(first, second) for first, second in learnt["merges"]]
    tokenizer = Tokenizer(BPE(learnt["vocab"], merges, unk_token=UNKNOWN, end_of_word_suffix=WORD_END))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.decoder = BPEDecoder(suffix=WORD_END)
    return tokenizer
