"""The set-ups by name. To add one, write a subclass of `Setup` and list it here."""

from __future__ import annotations

from benchmarks.first_use.setups.classification import (
    DigitsCNN,
    DigitsDropoutCNN,
    DigitsTransformer,
    DocstringsCNN,
    MnistMLP,
    ReviewsBERT,
    ReviewsCNN,
)
from benchmarks.first_use.setups.finetuning import FineTuning, LoRA
from benchmarks.first_use.setups.language import NumeralsMarian, PydocLSTM, TreebankTransformer
from benchmarks.first_use.training import Setup

SETUPS: dict[str, Setup] = {
    setup.name: setup
    for setup in (
        DigitsCNN(),
        DigitsDropoutCNN(),
        DigitsTransformer(),
        MnistMLP(),
        DocstringsCNN(),
        ReviewsCNN(),
        ReviewsBERT(),
        PydocLSTM(),
        TreebankTransformer(),
        NumeralsMarian(),
        FineTuning(),
        LoRA(),
    )
}
