"""BLEU of translated lines, and its standard error."""

from __future__ import annotations


def bleu(lines: list[str], references: list[str]) -> tuple[float, str]:
    """BLEU of tokenised text by sacrebleu, and sacrebleu's signature."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", force=True)
    score = float(metric.corpus_score(lines, [references]).score)
    return score, str(metric.get_signature())


def bleu_error(lines: list[str], references: list[str], draws: int = 1000) -> float | None:
    """The standard error of BLEU, by sacrebleu's bootstrap over sentences; None for a single sentence."""
    if len(lines) < 2:
        return None
    from sacrebleu.metrics.bleu import BLEU

    score = BLEU(tokenize="none", force=True).corpus_score(lines, [references], n_bootstrap=draws)
    return float(score._ci) / 1.96  # half of the 95% interval
