"""Tiny models built from configs, their data, and the Trainer's training written as a plain loop."""

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    TrainingArguments,
)

from gasam import SharpBackward, ga_sam

# Keys' biases have no gradient but rounding; the floor keeps them from being sent far away.
GA_SAM = replace(ga_sam(0.02, steps=2), floor=1e-4)
# Where transformers computes the loss in float32, a sign of a gradient near zero may go either way.
SMOOTH = replace(ga_sam(0.5, norm=2.0, steps=2), floor=1e-4)


def classifier(dropout=0.0):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return BertForSequenceClassification(config).double()


def language_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=30, hidden_size=12, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).double()


def translator():
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=30, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=8, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=1, dropout=0.0, use_cache=False,
    )  # fmt: skip
    return MarianMTModel(config).double()


def sentences(count):
    """For the classifier."""
    random = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(30, (6,), generator=random), "labels": torch.randint(3, (), generator=random)}
        for _ in range(count)
    ]


def texts(count):
    """For the language model: of each another number of words counts."""
    random = torch.Generator().manual_seed(1)
    rows = []
    for i in range(count):
        words = torch.randint(2, 30, (7,), generator=random)
        rows.append({"input_ids": words, "labels": words.where(torch.arange(7) < 2 + i % 6, -100)})
    return rows


def pairs(count):
    """For the translator; whoever smooths labels gives the decoder's input with them."""
    targets = texts(count)
    return [
        {"input_ids": row["input_ids"].flip(0), "decoder_input_ids": row["input_ids"], "labels": row["labels"]}
        for row in targets
    ]


def arguments(folder, accumulate=1, kind=TrainingArguments, **options):
    return kind(
        str(folder), gradient_accumulation_steps=accumulate, report_to=[], use_cpu=True,
        train_sampling_strategy="sequential", disable_tqdm=True,
        **{"max_steps": 5, "save_strategy": "no", "logging_steps": 1, "learning_rate": 0.02, "optim": "adamw_torch",
            "per_device_train_batch_size": 4}
        | options,
    )  # fmt: skip


def stacked(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def own_mean(model, batch):
    """The classifier's loss; with accumulation the Trainer adds up such means, for BERT does not divide by items."""
    return cross_entropy(model(batch["input_ids"]).logits, batch["labels"])


def next_word(model, batch):
    """In float32, as transformers does it for every language model."""
    logits = model(batch["input_ids"]).logits[:, :-1].float()
    return cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())


def smoothed(model, batch):
    logits = model(batch["input_ids"], decoder_input_ids=batch["decoder_input_ids"]).logits
    return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)


def words_of(batch, shift=1):
    return int((batch["labels"][:, shift:] != -100).sum())


def plain_loop(
    model, rows, loss, perturbation=GA_SAM, *, accumulate=1, clip=1.0, count=None, autocast=nullcontext, around=None,
    base=torch.optim.AdamW, schedule=None, part=None,
):  # fmt: skip
    """Five steps without the Trainer: micro-batches of four, weighted by their words where `count` is given."""
    batches = [stacked(rows[i : i + 4]) for i in range(0, 20 * accumulate, 4)]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = base(trained, lr=0.02, weight_decay=0.0)
    sharp = SharpBackward(model.parameters(), perturbation, around=around, schedule=schedule, accumulation=accumulate)
    traces = []

    def function(rows=slice(None)):
        with autocast():
            return loss(model, {name: each[rows] for name, each in batch.items()})

    model.train()
    for step in range(5):
        micro_batches = batches[step * accumulate : (step + 1) * accumulate]
        for batch in micro_batches:
            weight = 1.0 if count is None else count(batch) / sum(map(count, micro_batches))
            sharp.backward = lambda backed, weight=weight: (backed * weight).backward()
            sharp(function, ascent=part and (lambda: function(part)))
            traces.append((weight, sharp.last))
        if clip:
            nn.utils.clip_grad_norm_(trained, clip)
        optimizer.param_groups[0]["lr"] = 0.02 * (5 - step) / 5
        optimizer.step()
        optimizer.zero_grad()
    return traces
