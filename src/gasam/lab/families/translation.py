"""Translation by a Transformer with label smoothing and beam search, measured by BLEU; its tokenisers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from tokenizers import Tokenizer
from tokenizers.decoders import BPEDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from gasam.analysis.objective import CrossEntropy, Objective
from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.errors import InputError
from gasam.lab.families.family import UNKNOWN, Family, Recipe, Sampling, Score, Share, Vocabulary, drawn, one_line
from gasam.lab.record import Metric

TRANSLATED_AT_ONCE = 64
POSITIONS = 2048
"""Maximum number of tokens of a sentence."""
PADDING, START, END = "<pad>", "<s>", "</s>"
SPECIALS = (PADDING, START, END, UNKNOWN)
PAD, BEGIN, FINISH, UNKNOWN_NUMBER = range(len(SPECIALS))
WORD_END = "</w>"
LONGEST_WORD = 1000
"""Letters of the longest word to learn from. The time of the trainer grows with the square of a word's length."""


class TransformerSettings(Recipe):
    vocabularies: tuple[PositiveInt, PositiveInt] = Field(strict=False)  # including special tokens
    units: Literal["words", "bpe"]
    dropout: Share
    width: PositiveInt = 512
    layers: PositiveInt = 6  # of the encoder and of the decoder
    heads: PositiveInt = 8
    feedforward: PositiveInt = 2048
    smoothing: Share = 0.1
    length: PositiveInt = 175  # training pairs with more tokens are left out
    beam: PositiveInt = 5
    judged: PositiveInt | None = None  # maximum number of sentences of validation and of test; None for all

    encoding: ClassVar[tuple[str, ...]] = ("rows", "vocabularies", "units", "length", "judged")

    @model_validator(mode="after")
    def _width_fits(self) -> Self:
        if self.width % self.heads or self.width % 2:
            raise ValueError(f"width must be even and a multiple of heads ({self.heads}), got {self.width}")
        return self

    def space(self) -> dict[str, Any]:
        return super().space() | {"dropout": "0.1..0.5", "smoothing": "0..0.2", "weight_decay": "1e-5..1e-2,log"}


class Translation(Family[TransformerSettings]):
    metric = Metric("BLEU", higher_is_better=True)
    followed = Metric("perplexity", higher_is_better=False)
    settings_type = TransformerSettings
    layers = ("word embeddings", "normalisation layers")
    inputs_at_once = 20 * TRANSLATED_AT_ONCE  # sorted by length

    @staticmethod
    def select(split: Split, examples: list[Any], settings: Any) -> list[Any]:
        """The examples to use: of validation and test only the first `judged`."""
        return Family.select(split, examples, settings) if split == "train" else examples[: settings.judged]

    @staticmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        """Learn the tokenisers of both languages, limited to the word lists that come with the data, if any."""
        found = []
        for side, size in enumerate(settings.vocabularies):
            text = [pair[side] for pair in training.train]
            shipped = training.vocabularies[side] if training.vocabularies else ()
            found.append(Subwords.learn(text, settings.units, size, shipped).saved)
        return {"subwords": found}

    @staticmethod
    def encode(split: Split, examples: list[Any], shared: dict[str, Any], settings: Any) -> dict[str, Any]:
        """The token numbers of both sides. Pairs that are too long are dropped from the training split only.

        Validation and test also keep the text, because BLEU is computed from text.
        """
        encoders = [Subwords(saved) for saved in shared["subwords"]]
        sides = (encoder.encode(text) for encoder, text in zip(encoders, zip(*examples, strict=True), strict=True))
        pairs = list(zip(*sides, strict=True))
        if split == "train":
            pairs = [pair for pair in pairs if max(map(len, pair)) <= settings.length]
        else:
            _check_lengths(f"the {split} split", chain(*pairs))
        if not pairs:
            raise InputError(f"no training pair has at most {settings.length} tokens in both languages: raise length")
        sources, targets = zip(*pairs, strict=True)
        text = [] if split == "train" else examples
        return {"source": joined(sources), "target": joined(targets), "text": text}

    @staticmethod
    def notes(corpus: Corpus, splits: Mapping[Split, Any], settings: Any) -> list[str]:
        said = []
        if settings.judged is not None and settings.judged < max(len(corpus.valid), len(corpus.test)):
            said.append(f"BLEU is of the first {settings.judged:,} sentences of validation and test in this size")
        dropped = min(len(corpus.train), settings.rows or len(corpus.train)) - len(splits["train"]["source"][1])
        if dropped:
            said.append(f"{dropped:,} training pairs longer than {settings.length} pieces are left out")
        return said

    @cached_property
    def sides(self) -> dict[Split, list[tuple[Tensor, ...]]]:
        return {
            split: [torch.split(words, lengths.tolist()) for words, lengths in (part["source"], part["target"])]
            for split, part in self.data.splits.items()
        }

    @cached_property
    def subwords(self) -> tuple[Subwords, Subwords]:
        source, target = self.data.shared["subwords"]
        return Subwords(source), Subwords(target)

    def model(self) -> nn.Module:
        return marian(self.settings, len(self.subwords[0]), len(self.subwords[1]))

    def embeddings(self, model: nn.Module) -> list[nn.Embedding]:
        """The word embeddings, without the position embeddings."""
        return [model.get_encoder().embed_tokens, model.get_decoder().embed_tokens]  # type: ignore[operator]

    def count(self, split: Split) -> int:
        return len(self.sides[split][0])

    def read(self, split: Split, rows: Tensor) -> tuple[Tensor, Tensor]:
        source, target = (padded([lines[row] for row in rows.tolist()]) for lines in self.sides[split])
        return source, target

    def _packed(self, split: Split, rows: Tensor) -> list[Tensor]:
        """Batches of pairs of similar length, with at most `batch` tokens including padding."""
        part = self.data[split]
        lengths, order = torch.maximum(part["source"][1], part["target"][1])[rows].sort(stable=True)
        cuts, first = list[int](), 0
        for row, length in enumerate(lengths.tolist()):
            if row > first and length * (row - first + 1) > self.settings.batch:
                cuts.append(row)
                first = row
        return list(rows[order].tensor_split(cuts))

    def batches(self, order: Generator) -> Sequence[Tensor]:
        chosen = self._packed("train", torch.randperm(self.count("train"), generator=order))
        return [chosen[i] for i in torch.randperm(len(chosen), generator=order).tolist()]

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], carried: Any) -> tuple[Tensor, Any]:
        return cross_entropy(*self._scores(model, *batch), label_smoothing=self.smoothing), None

    @property
    def smoothing(self) -> float:
        """The value of torch's `label_smoothing` that gives fairseq's smoothing.

        fairseq gives the right word the probability 1 - smoothing, and the V - 1 others share the rest evenly. torch
        spreads it over all V words, including the right one, so it must be V / (V - 1) times as large.
        """
        words = len(self.subwords[1])
        return self.settings.smoothing * words / (words - 1)

    def objective(self) -> Objective:
        """An example is a sentence; its loss is the mean over its words. Training uses the mean over all words."""
        loss = CrossEntropy(ignored=PAD, label_smoothing=self.smoothing)
        return Objective(lambda model, batch: logits(model, *batch), loss)

    def examples(self, split: Split, rows: int) -> list[tuple[Tensor, ...]]:
        return [self.read(split, some) for some in self._packed(split, drawn(rows, self.count(split)))]

    def _scores(self, model: nn.Module, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's logits and the target words, without padding."""
        words = target != PAD
        return logits(model, source, target)[words], target[words]

    @torch.no_grad()
    def validate(self, model: nn.Module) -> float:
        """The perplexity without label smoothing. BLEU needs a beam search, so only the final weights get it."""
        device = next(model.parameters()).device
        total, count = 0.0, 0
        for rows in by_length(self.sides["valid"][0]):
            source, target = self.read("valid", torch.tensor(rows))
            scores, right = self._scores(model, source.to(device), target.to(device))
            total += float(cross_entropy(scores, right, reduction="sum"))
            count += len(right)
        return math.exp(min(total / count, 100.0))

    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        lines = self.translate(model, self.sides[split][0][:rows])
        return bleu(lines, [target for _, target in self.data[split]["text"][:rows]], draws=1000)[0]

    def remarks(self) -> dict[str, Any]:
        return {"bleu_signature": bleu(["a"], ["a"])[1]}

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Sampling) -> list[dict[str, Any]]:
        lines = self.subwords[0].encode(inputs)
        _check_lengths("the input", lines)
        return [{"translation": text} for text in self.translate(model, lines)]

    def line(self, prediction: Mapping[str, Any]) -> str:
        return one_line(prediction["translation"])

    @torch.no_grad()
    def translate(self, model: nn.Module, lines: Sequence[Tensor]) -> list[str]:
        """Translate source lines by beam search, in batches of similar length."""
        device = next(model.parameters()).device
        translations: dict[int, str] = {}
        for rows in by_length(lines):
            source = padded([lines[row] for row in rows]).to(device)
            found = model.generate(  # type: ignore[operator]
                input_ids=source,
                attention_mask=(source != PAD).long(),
                num_beams=self.settings.beam,
                max_new_tokens=min(source.shape[1] * 3 // 2 + 10, POSITIONS - 1),
                do_sample=False,
            )
            translations.update(zip(rows, self.subwords[1].decode(found.tolist()), strict=True))
        return [translations[row] for row in sorted(translations)]


def _check_lengths(where: str, lines: Iterable[Tensor]) -> None:
    longest = max(map(len, lines), default=0)
    if longest > POSITIONS:
        raise InputError(
            f"{where} has a text of {longest:,} tokens, but {POSITIONS:,} is the limit: split it into sentences"
        )


def marian(settings: TransformerSettings, source_pieces: int, target_pieces: int) -> nn.Module:
    """fairseq's transformer_wmt_en_de: post-norm, sinusoidal positions; decoder embedding and output are tied."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=source_pieces,
        decoder_vocab_size=target_pieces,
        share_encoder_decoder_embeddings=False,
        d_model=settings.width,
        encoder_layers=settings.layers,
        decoder_layers=settings.layers,
        encoder_attention_heads=settings.heads,
        decoder_attention_heads=settings.heads,
        encoder_ffn_dim=settings.feedforward,
        decoder_ffn_dim=settings.feedforward,
        dropout=settings.dropout,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=POSITIONS,
        pad_token_id=PAD,
        eos_token_id=FINISH,
        bos_token_id=BEGIN,
        decoder_start_token_id=BEGIN,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)


def logits(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """The decoder's logits for every position of the target, given the words before it."""
    before = torch.cat([torch.full_like(target[:, :1], BEGIN), target[:, :-1]], dim=1)
    output = model(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=before)
    return output.logits  # type: ignore[no-any-return]


def padded(lines: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(lines), batch_first=True, padding_value=PAD).long()


def by_length(lines: Sequence[Tensor]) -> list[list[int]]:
    """Batches of row numbers of similar length, to reduce padding."""
    order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
    return [order[start : start + TRANSLATED_AT_ONCE] for start in range(0, len(order), TRANSLATED_AT_ONCE)]


def joined(lines: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All words in one tensor, and the length of each line. One tensor per line would be slow to read from disk."""
    return torch.cat(list(lines)), torch.tensor([len(line) for line in lines])


def bleu(lines: Sequence[str], references: Sequence[str], draws: int = 1) -> tuple[Score, str]:
    """BLEU of tokenised text by sacrebleu with its bootstrapped standard error, and sacrebleu's signature."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", force=True)
    drawn_again = draws > 1 and len(lines) > 1
    found = metric.corpus_score(list(lines), [list(references)], n_bootstrap=draws if drawn_again else 1)
    error = float(found._ci) / 1.96 if drawn_again else None  # half of the 95% interval
    return Score(float(found.score), error), str(metric.get_signature())


class Subwords:
    """The tokeniser of one language; `saved` is the JSON object of the tokenizers library."""

    def __init__(self, saved: Mapping[str, Any]) -> None:
        self.saved = saved
        self.tokenizer = Tokenizer.from_str(json.dumps(saved))

    @classmethod
    def learn(
        cls, lines: Sequence[str], units: Literal["words", "bpe"], size: int, shipped: Sequence[str] = ()
    ) -> Subwords:
        """Learn a tokeniser with at most `size` tokens; if words are `shipped` with the data, only these are used."""
        tokenizer = _words(lines, size, shipped) if units == "words" else _byte_pairs(lines, size)
        tokenizer.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=[(END, FINISH)])
        return cls(json.loads(tokenizer.to_str()))

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, lines: Sequence[str]) -> list[Tensor]:
        """The token numbers of each line, with END as the last. Special tokens spelled in the text become <unk>."""
        found = [line.ids[:-1] for line in self.tokenizer.encode_batch(list(lines))]
        numbers = ([UNKNOWN_NUMBER if n in (PAD, BEGIN, FINISH) else n for n in line] for line in found)
        return [torch.tensor([*line, FINISH], dtype=torch.int32) for line in numbers]

    def decode(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        """Words separated by blanks, with <unk> for unknown tokens, without start, end and padding."""
        spoken = [[n for n in line if n not in (PAD, BEGIN, FINISH)] for line in numbers]
        return self.tokenizer.decode_batch(spoken, skip_special_tokens=False)


def _words(lines: Sequence[str], size: int, shipped: Sequence[str]) -> Tokenizer:
    if shipped and size >= len({*shipped, *SPECIALS}):
        vocabulary = Vocabulary(shipped, SPECIALS)
    else:
        allowed = set(shipped)
        known = ([word for word in line.split() if not allowed or word in allowed] for line in lines)
        vocabulary = Vocabulary.most_frequent(known, size, SPECIALS)
    tokenizer = Tokenizer(WordLevel(vocabulary.numbers, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def _byte_pairs(lines: Sequence[str], size: int) -> Tokenizer:
    """Learn a byte-pair encoding that is the same in every process.

    The trainer numbers the last letters of words in the order of a hash table, which varies, and breaks ties by these
    numbers. Declaring them as special tokens fixes their numbers, and so all tokens.
    """
    lines = [line for line in lines if max(map(len, line.split()), default=0) <= LONGEST_WORD]
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
