"""The Transformer for translation: its settings and its model, an untrained Marian of the transformers library."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from gasam.lab.families.family import Recipe, Share
from gasam.lab.families.spaces import Space, Span
from gasam.lab.families.subwords import END, PADDING, SPECIALS, START

POSITIONS = 2048
"""Maximum number of tokens of a sentence."""
PAD, BEGIN, FINISH = (SPECIALS.index(special) for special in (PADDING, START, END))


class TransformerSettings(Recipe):
    """Settings of a Transformer.

    Args:
        vocabularies: Sizes of the two vocabularies, including special tokens.
        units: Whole words, or byte-pair encoding.
        dropout: The dropout probability.
        width: Size of the embeddings and hidden states.
        layers: Number of layers of the encoder and of the decoder.
        heads: Number of attention heads.
        feedforward: Size of the feed-forward layers.
        smoothing: Label smoothing.
        length: Training pairs with more tokens than this are left out.
        beam: Number of beams when translating.
        judged: Maximum number of sentences of validation and of test; None for all.
    """

    vocabularies: tuple[PositiveInt, PositiveInt] = Field(strict=False)
    units: Literal["words", "bpe"]
    dropout: Share
    width: PositiveInt = 512
    layers: PositiveInt = 6
    heads: PositiveInt = 8
    feedforward: PositiveInt = 2048
    smoothing: Share = 0.1
    length: PositiveInt = 175
    beam: PositiveInt = 5
    judged: PositiveInt | None = None

    encoding: ClassVar[tuple[str, ...]] = ("rows", "vocabularies", "units", "length", "judged")

    @model_validator(mode="after")
    def _width_fits(self) -> Self:
        if self.width % self.heads or self.width % 2:
            raise ValueError(f"width must be even and a multiple of heads ({self.heads}), got {self.width}")
        return self

    def space(self) -> Space:
        regularised = {
            "dropout": Span(0.1, 0.5),
            "smoothing": Span(0.0, 0.2),
            "weight_decay": Span(1e-5, 1e-2, log=True),
        }
        return {**super().space(), **regularised}


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
