"""Accelerate with a LoRA model: accumulation, clipping and a saved state."""

import tempfile

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from gasam import SharpBackward, ga_sam

torch.manual_seed(0)
config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
before = {name: p.detach().clone() for name, p in model.named_parameters()}
data = DataLoader(torch.randint(50, (32, 8)), batch_size=4)

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), data)
sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), backward=accelerator.backward, accumulation=2)

for words in data:
    with accelerator.accumulate(model):
        loss = sharp(lambda: model(input_ids=words, labels=words).loss)  # instead of accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

accelerator.save_state(tempfile.mkdtemp())  # this schedule has no state, so there is nothing else to save

assert sharp.last.climbed
assert all(("lora" in name) != torch.equal(p, before[name]) for name, p in model.named_parameters())
