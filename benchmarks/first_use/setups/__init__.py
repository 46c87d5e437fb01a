"""The set-ups by name. To add one, write a subclass of `Setup` and list it here."""

from __future__ import annotations

from benchmarks.first_use.setup import Setup
from benchmarks.first_use.setups.finetuning import FineTuning, LoRA
from benchmarks.first_use.setups.images import DigitsCNN, DigitsDropoutCNN, DigitsTransformer, MnistMLP
from benchmarks.first_use.setups.language import PydocLSTM, TreebankTransformer
from benchmarks.first_use.setups.texts import DocstringsCNN, ReviewsBERT, ReviewsCNN
from benchmarks.first_use.setups.translation import NumeralsMarian

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
