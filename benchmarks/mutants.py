"""How much the tests notice: planted bugs in the core, the search and the statistics, and which of them fail a test.

    python -m benchmarks.mutants            every mutant
    python -m benchmarks.mutants fold       those in files whose path contains this text

Each mutant changes one place of a copy of the source, and runs the tests that are responsible for it. A mutant is
killed if a test fails. The last line counts them; the exit code is 1 if less than 95% are killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GOAL = 0.95

WALK = "tests/core/test_walk.py tests/core/test_properties.py tests/core/test_size.py tests/core/test_restore.py"
FOLD = "tests/core/test_backward.py tests/core/test_optimizer.py tests/core/test_schedule.py"
SCHEDULE = "tests/core/test_schedule.py"
SEARCH = "tests/lab/test_search.py"
STATISTICS = "tests/lab/test_report.py tests/lab/test_verdicts.py tests/lab/test_results_page.py"


class Mutant(NamedTuple):
    """`before` stands exactly once in the file."""

    file: str
    before: str
    after: str
    tests: str


MUTANTS = (
    # The ball
    Mutant("ball.py", "pow_(1 / (p - 1))", "pow_(1 / p)", WALK),
    Mutant("ball.py", "y.clamp(-1.0, 1.0)", "y.clamp(-0.9, 0.9)", "tests/core/test_embeddings.py tests/core/test_properties.py"),
    Mutant("ball.py", "length.clamp(min=1.0).reciprocal()", "length.reciprocal()", WALK),
    Mutant("ball.py", "torch.where(value > 0, 1 / value, 0.0)", "1 / value", WALK + " tests/core/test_precision.py"),
    # The scales
    Mutant("scales.py", "(group.size / group.total).sqrt()", "(group.size / group.total)", WALK),
    Mutant("scales.py", "return group.weight * group.inverse_gradient", "return group.inverse_gradient", WALK),
    Mutant("scales.py", "group.weight / group.size.clamp(min=1).sqrt()", "group.weight", WALK),
    Mutant("scales.py", "masked_fill_(gradient == 0, 0.0)", "masked_fill_(gradient == 0, 1.0)", WALK),
    Mutant("scales.py", "torch.maximum(gradient,", "torch.minimum(gradient,", WALK),
    Mutant("scales.py", "torch.where(group.dimensions < 2", "torch.where(group.dimensions < 3", "tests/core/test_odd_models.py"),
    # The walk
    Mutant("ascent.py", "self._direction.factor * min(1.0, stride)", "self._direction.factor * stride", WALK),
    Mutant("ascent.py", "self._direction.factor * stride, 0.0)", "self._direction.factor, 0.0)", WALK),
    Mutant("ascent.py", "position.clamp_(-1.0, 1.0)", "position", WALK),
    Mutant("ascent.py", "size * ball.inverse(slope)", "size", WALK),
    Mutant("ascent.py", "self.perturbation.size * strength", "self.perturbation.size", WALK + " tests/core/test_schedule.py"),
    Mutant("ascent.py", "norms > self._limits", "norms < self._limits", WALK),
    Mutant("ascent.py", "factor, norms = factor * shrinking, norms * shrinking", "norms = norms * shrinking", WALK),
    Mutant("ascent.py", "torch.where(seen.finite, self._with_group_scale(factor), 0.0)", "self._with_group_scale(factor)", "tests/core/test_precision.py"),
    Mutant("ascent.py", "self.seen.gradient_squares.sqrt() / self.seen.gradient_scale", "self.seen.gradient_squares.sqrt()", WALK + " tests/core/test_loops.py"),
    Mutant("ascent.py", "factor = excess * rescale(excess * length)", "factor = rescale(excess * length)", WALK),
    Mutant("walk.py", "if k > 1:\n                ascent.read_gradient(seen)", "if k > 2:\n                ascent.read_gradient(seen)", WALK),
    Mutant("walk.py", "run_again_if_interrupted(weights.restore)", "None", WALK),
    # The fold
    Mutant("fold.py", "self._take(keep=self._mean)", "self._take(keep=True)", FOLD),
    Mutant("fold.py", "self._mean or weight != 1", "self._mean", FOLD),
    Mutant("fold.py", "own.detach().add_(total)", "own.detach().copy_(total)", FOLD),
    Mutant("fold.py", "return gradient.detach().clone()", "return gradient.detach()", FOLD + " tests/core/test_restore.py"),
    Mutant("fold.py", "clean * (1 / self.first)", "clean", "tests/core/test_precision.py " + FOLD),
    Mutant("fold.py", "parameter.grad = _multiplied(parameter.grad, rescale)", "pass", FOLD),
    Mutant("fold.py", "return total.add_(gradient.detach())", "return total", FOLD),
    Mutant("fold.py", "share.rescale / weight if by_closure", "share.rescale if by_closure", FOLD),
    # The schedule
    Mutant("schedule.py", "(step - start + 1) / (warmup + 1)", "(step - start) / (warmup + 1)", SCHEDULE),
    Mutant("schedule.py", "self.step % self._options.every != 0", "self.step % self._options.every == 0", SCHEDULE),
    Mutant("schedule.py", "SMOOTHING * self._smoothed + (1 - SMOOTHING)", "SMOOTHING * self._smoothed + SMOOTHING", SCHEDULE),
    Mutant("schedule.py", "self._options.progress * abs(self._initial)", "self._options.progress", SCHEDULE),
    Mutant("schedule.py", "self._calls >= self.accumulation", "self._calls > self.accumulation", SCHEDULE),
    Mutant("schedule.py", "self._step_sum.zero_()\n        self._calls = 0", "self._calls = 0", SCHEDULE),
    Mutant("schedule.py", "self._steps_in_block == BLOCK", "self._steps_in_block == BLOCK + 1", SCHEDULE),
    Mutant("schedule.py", 'state["initial"], state["smoothed"]', 'state["smoothed"], state["smoothed"]', SCHEDULE),
    # The search
    Mutant("lab/search/question.py", "if gain < -max(TOLERANCE, noise)", "if gain < -TOLERANCE", SEARCH),
    Mutant("lab/search/question.py", "if clear_loss and exponent > low", "if clear_loss", SEARCH),
    Mutant("lab/search/finding.py", "better <= 2 * run.valid_error", "better <= 0", SEARCH),
    Mutant("lab/search/finding.py", "plan.seed not in found.seeds", "True", SEARCH),
    Mutant("lab/search/study.py", "patience <= ended < update.epochs", "ended < update.epochs", SEARCH),
    Mutant("lab/search/study.py", 'stream.truncate(whole.rfind(b"\\n") + 1)', "pass", SEARCH),
    Mutant("lab/search/study.py", "cpu=cpu, test=False)", "cpu=cpu)", SEARCH),
    # The statistics
    Mutant("lab/statistics.py", "stats.t.ppf((1 + confidence) / 2, found.seeds - 1)", "stats.norm.ppf((1 + confidence) / 2)", STATISTICS),
    Mutant("lab/statistics.py", "found.std / math.sqrt(found.seeds)", "found.std", STATISTICS),
    Mutant("lab/statistics.py", "(self.low > 0) == higher_is_better", "self.low > 0", STATISTICS),
    Mutant("lab/statistics.py", "if a + b == 0:", "if a * b == 0:", STATISTICS),
    Mutant("lab/statistics.py", "each.std or 0.0) ** 2 / each.seeds", "each.std or 0.0) ** 2", STATISTICS),
)  # fmt: skip


def main(wanted: str = "") -> int:
    chosen = [mutant for mutant in MUTANTS if wanted in mutant.file]
    survivors = []
    for number, mutant in enumerate(chosen, 1):
        killed = is_killed(mutant)
        print(
            f"{number}/{len(chosen)} {'killed' if killed else 'SURVIVED'} {mutant.file}: {mutant.after!r}", flush=True
        )
        if not killed:
            survivors.append(mutant)
    share = 1 - len(survivors) / len(chosen)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants are killed ({share:.0%})")
    return 0 if share >= GOAL else 1


def is_killed(mutant: Mutant) -> bool:
    """Run the tests on a copy of the source with the bug in it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        file = source / "gasam" / mutant.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.before) != 1:
            raise SystemExit(f"{mutant.file} has {mutant.before!r} {text.count(mutant.before)} times, not once")
        file.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()]
        environment = {**os.environ, "PYTHONPATH": f"{source}:{ROOT}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
        return done.returncode == 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
