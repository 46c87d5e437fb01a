"""The set-ups by name. To add one, write a subclass of `Setup` and list it here."""

from __future__ import annotations

from benchmarks.first_use.setups import classification, finetuning, language
from benchmarks.first_use.training import Setup

SETUPS: dict[str, Setup] = {
    setup.name: setup
    for setup in (
        classification.DigitsCNN(),
        classification.DigitsDropoutCNN(),
        classification.DigitsTransformer(),
        classification.MnistMLP(),
        classification.DocstringsCNN(),
        classification.ReviewsCNN(),
        classification.ReviewsBERT(),
        language.PydocLSTM(),
        language.TreebankTransformer(),
        language.NumeralsMarian(),
        finetuning.FineTuning(),
        finetuning.LoRA(),
    )
}
