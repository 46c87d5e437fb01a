"""How much the tests notice: planted bugs in the core, and which of them fail a test.

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

WALK = "tests/core/test_walk.py tests/core/test_properties.py tests/core/test_size.py"
RESTORE = "tests/core/test_restore.py tests/core/test_exchange.py tests/core/test_faults.py tests/core/test_sparse.py"
FOLD = "tests/core/test_backward.py tests/core/test_optimizer.py tests/core/test_loops.py tests/core/test_schedule.py"
PRECISION = "tests/core/test_precision.py"
SCHEDULE = "tests/core/test_schedule.py"
FAMILY = "tests/core/test_family.py"
CHEAP = "tests/core/test_cheap.py"


class Mutant(NamedTuple):
    """`before` stands exactly once in the file."""

    file: str
    before: str
    after: str
    tests: str


MUTANTS = (
    # The walk
    Mutant("walk.py", "pow_(1 / (p - 1))", "pow_(1 / p)", WALK),
    Mutant("walk.py", "length.clamp(min=1.0).reciprocal()", "length.reciprocal()", WALK),
    Mutant("walk.py", "self._factor * min(1.0, stride)", "self._factor * stride", WALK),
    Mutant("walk.py", "groups.spread(self._factor * stride)", "groups.spread(self._factor)", WALK),
    Mutant("walk.py", "position.clamp_(-1.0, 1.0)", "position", WALK),
    Mutant("walk.py", "self.size * inverse(dual_norm / self._gradient_scale)", "self._one * self.size", WALK),
    Mutant("walk.py", "plan.size * strength", "plan.size", WALK + " " + SCHEDULE),
    Mutant("walk.py", "norms > limits", "norms < limits", WALK),
    Mutant("walk.py", "factor * self._shrink, self._lengths", "factor, self._lengths", WALK),
    Mutant("walk.py", "self._one) / self._gradient_scale**2", "self._one)", WALK + " tests/core/test_loops.py"),
    Mutant("walk.py", "rescale(excess * lengths.sum() ** (1 / p))", "rescale(lengths.sum() ** (1 / p))", WALK),
    Mutant("walk.py", "self._normalise(self._measure())", "pass", WALK),
    Mutant("walk.py", "torch.where(torch.as_tensor(finite), self._epsilon * self._T * factor, 0.0)", "self._epsilon * self._T * factor", PRECISION),
    # The scales
    Mutant("scales.py", "(group.size / group.total).sqrt()", "(group.size / group.total)", WALK),
    Mutant("scales.py", "return group.weight * group.inverse_gradient", "return group.inverse_gradient", WALK),
    Mutant("scales.py", "group.weight / group.size.clamp(min=1).sqrt()", "group.weight", WALK),
    Mutant("scales.py", "masked_fill_(gradient == 0, 0.0)", "masked_fill_(gradient == 0, 1.0)", PRECISION),
    Mutant("scales.py", "torch.maximum(gradient,", "torch.minimum(gradient,", WALK),
    Mutant("scales.py", "least * sizes.sqrt() * rms_weight", "SMALLEST_WEIGHTS * rms_weight", WALK),
    Mutant("scales.py", "torch.where(value > 0, 1 / value, 0.0)", "1 / value", WALK + " " + PRECISION),
    # The exchange of pointers and the restore
    Mutant("weights.py", "self._point(self._own)", "pass", RESTORE),
    Mutant("weights.py", "self._point(self._away)", "pass", WALK),
    Mutant("weights.py", "copy_all(*self._written)", "pass", RESTORE),
    Mutant("weights.py", "copy_all(self._copies, self._copied)", "pass", RESTORE),
    Mutant("weights.py", "operand.memory.copy_(operand.source)", "pass", RESTORE),
    Mutant("weights.py", "increment_version(self._unsharded)", "pass", RESTORE),
    Mutant("weights.py", "            self.walking = False\n            self.home()", "            self.walking = False", RESTORE),
    Mutant("weights.py", "known.stride() != memory.stride()", "False", RESTORE),
    Mutant("weights.py", "        if changed:\n", "        if False:\n", RESTORE),
    Mutant("passes.py", "signal.signal(signal.SIGINT, self._arrived)", "pass", RESTORE),
    # The fold
    Mutant("fold.py", "[0.0] * (steps - 1)", "[1.0] * (steps - 1)", FOLD + " " + WALK),
    Mutant("fold.py", "(k == 0 and self._weight != 1)", "False", FOLD),
    Mutant("fold.py", "own.detach().add_(total)", "own.detach().copy_(total)", FOLD),
    Mutant("fold.py", "gradient.clone() if factor == 1", "gradient if factor == 1", FOLD + " " + RESTORE),
    Mutant("fold.py", "self._shares[k] / self._factors[k]", "self._shares[k]", PRECISION + " " + FOLD),
    Mutant("fold.py", "own.mul_(ratio) if _can_be_written(own) else own * ratio", "own", FOLD),
    Mutant("fold.py", "return total.add_(gradient, alpha=factor)", "return total", FOLD + " " + WALK),
    Mutant("fold.py", "own.detach().copy_(copy)", "pass", RESTORE),
    # The family
    Mutant("family/gsam.py", "-self.alpha", "self.alpha", FAMILY),
    Mutant("family/wsam.py", "self.gamma / (1 - self.gamma)", "self.gamma", FAMILY),
    Mutant("family/friendly_sam.py", "-self.sigma", "self.sigma", FAMILY),
    Mutant("family/look_sam.py", "self.alpha * strength", "self.alpha", FAMILY),
    # Cheaper walks
    Mutant("fold.py", "[0.0, *[1 / steps] * steps]", "[0.0, *[1 / (steps + 1)] * steps]", CHEAP),
    Mutant("backward.py", "scale if self._scale is None else self._scale + scale", "scale", CHEAP),
    Mutant("family/momentum_sam.py", "self.decay * (squares > 0).to(squares)", "self.decay", CHEAP),
    Mutant("family/random_offsets.py", "self.seed + kept.step", "self.seed", CHEAP),
    Mutant("contexts.py", "        if k > 0:\n", "        if True:\n", CHEAP),
    Mutant("walk.py", "self.groups.split(self.groups.gradients()), False", "self.groups.split(self.groups.gradients()), self._is_noise", CHEAP),
    # The schedule
    Mutant("schedule.py", 'self._in_steps("start") + 1)', 'self._in_steps("start"))', SCHEDULE),
    Mutant("schedule.py", "self.state.step % self._options.every != 0", "self.state.step % self._options.every == 0", SCHEDULE),
    Mutant("schedule.py", "SMOOTHING * smoothed + (1 - SMOOTHING)", "SMOOTHING * smoothed + SMOOTHING", SCHEDULE),
    Mutant("schedule.py", "progress * abs(state.initial)", "progress", SCHEDULE),
    Mutant("schedule.py", "state.calls < self.accumulation", "state.calls <= self.accumulation", SCHEDULE),
    Mutant("schedule.py", "losses=torch.zeros_like(sums)", "losses=state.losses", SCHEDULE),
    Mutant("schedule.py", "step // BLOCK != state.step // BLOCK", "step // BLOCK != (state.step - 1) // BLOCK", SCHEDULE),
)  # fmt: skip


def main(wanted: str = "") -> int:
    chosen = [mutant for mutant in MUTANTS if wanted in mutant.file]
    stale = [m for m in chosen if (ROOT / "src" / "gasam" / m.file).read_text(encoding="utf-8").count(m.before) != 1]
    for mutant in stale:
        print(f"not once in {mutant.file}: {mutant.before!r}")
    if stale:
        return 2
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
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.before, mutant.after), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()]
        environment = {**os.environ, "PYTHONPATH": f"{source}:{ROOT}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
        return done.returncode == 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
