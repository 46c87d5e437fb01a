"""Hugging Face Trainer: use another class, first for a classifier and then for a translation model."""

import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainingArguments,
    TrainingArguments,
)

from gasam import SharpBackward, ga_sam, recommended, same_noise
from gasam.integrations.transformers import SharpnessAwareSeq2SeqTrainer, SharpnessAwareTrainer

torch.manual_seed(0)
small = {"vocab_size": 50, "max_position_embeddings": 16, "pad_token_id": 0}
classifier = BertForSequenceClassification(
    BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=3, **small)
)
sentences = [{"input_ids": torch.randint(50, (8,)), "labels": torch.randint(3, ())} for _ in range(32)]
folder = tempfile.mkdtemp()
options = {"per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 1, "save_strategy": "no"}
options |= {"report_to": [], "use_cpu": True, "disable_tqdm": True}

trainer = SharpnessAwareTrainer(
    model=classifier,
    args=TrainingArguments(folder, gradient_accumulation_steps=2, max_grad_norm=1.0, **options),
    train_dataset=sentences,
    perturbation=ga_sam(budget=0.1, cap=0.01),
)
trainer.train()
logged = trainer.state.log_history[-2]  # has the clean loss, sharpness and perturbation_norm

cheaper = SharpnessAwareTrainer(
    model=classifier,
    args=TrainingArguments(folder, **options),
    train_dataset=sentences,
    perturbation=recommended(passes=1.25),
    ascent_fraction=0.25,
)
cheaper.train()


class SameMasks(SharpnessAwareSeq2SeqTrainer):
    """Use the same dropout masks in all passes of a step."""

    def create_sharp_backward(self):
        return SharpBackward(self.model, self.perturbation, schedule=self.schedule, around=same_noise())


translator = MarianMTModel(
    MarianConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=1,
        **small,
    )
)  # fmt: skip
pairs = [{"input_ids": torch.randint(2, 50, (8,)), "labels": torch.randint(2, 50, (8,))} for _ in range(32)]
translating = SameMasks(
    model=translator,
    args=Seq2SeqTrainingArguments(folder, **options),
    train_dataset=pairs,
    perturbation=ga_sam(budget=0.1, cap=0.01, steps=2),
)
translating.train()

assert {"loss", "sharpness", "perturbation_norm"} <= logged.keys()
assert trainer.sharp.last.climbed
assert translating.sharp.last.climbed
assert cheaper.sharp.last is not None
