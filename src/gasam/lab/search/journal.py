"""The memory of a search: an Optuna study in a journal file, which survives whatever kills the process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from gasam.lab.search.strategy import MANTISSAS, Candidate

if TYPE_CHECKING:
    from gasam.lab.search.trial import Worth

optuna.logging.set_verbosity(optuna.logging.WARNING)
SPACE = {
    "norm": CategoricalDistribution(["2", "inf"]),
    "exponent": FloatDistribution(-30, 30, step=1),
    "mantissa": CategoricalDistribution(MANTISSAS),
    "cap": FloatDistribution(0, 1e9),
}
BASELINE = "baseline"
TOLERANCE = "tolerance"


@dataclass(frozen=True)
class Journal:
    """A study, opened anew by every process; `prune` None tries everything to its end, else it is the tolerance."""

    file: Path
    name: str
    prune: float | None

    def study(self, pruner: optuna.pruners.BasePruner | None = None) -> optuna.Study:
        """Made if it is not there; reading it does not write."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        place = str(self.file)
        storage = JournalStorage(JournalFileBackend(place, lock_obj=JournalFileOpenLock(place)))
        options: dict[str, Any] = {"study_name": self.name, "pruner": pruner or optuna.pruners.NopPruner()}
        try:
            return optuna.load_study(storage=storage, **options)
        except KeyError:
            return optuna.create_study(storage=storage, **options)

    def mend(self) -> None:
        """A last line that a full disk or a power cut left incomplete is cut off; nobody else writes meanwhile."""
        if self.file.exists():
            written = self.file.read_bytes()
            os.truncate(self.file, written.rfind(b"\n") + 1)

    @property
    def baseline(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.study().user_attrs.get(BASELINE)
        return found

    def tries(self) -> dict[Candidate, dict[str, Any]]:
        """What was tried to its end, or given up as it would be now, with its outcome; in the order of the tries."""
        ended = self._trials(TrialState.COMPLETE, TrialState.PRUNED)
        return {candidate(trial): trial.user_attrs["outcome"] for trial in ended if self._settled(trial)}

    def _settled(self, trial: FrozenTrial) -> bool:
        """Not what a smaller tolerance gave up."""
        if trial.state is TrialState.COMPLETE or trial.user_attrs["outcome"]["diverged"] or self.prune is None:
            return True
        return bool(trial.user_attrs.get(TOLERANCE, self.prune) >= self.prune)

    def forget_unfinished(self) -> list[Candidate]:
        """Tries whose process died are failed, so that they are proposed again."""
        left = list(self._trials(TrialState.RUNNING))
        for trial in left:
            self.study().tell(trial.number, state=TrialState.FAIL)
        return [candidate(trial) for trial in left]

    def begin(self, chosen: Candidate) -> int:
        """A new try; its number."""
        norm = "inf" if math.isinf(chosen.norm) else f"{chosen.norm:g}"
        params = {"norm": norm, "exponent": float(chosen.exponent), "mantissa": chosen.mantissa}
        params |= {} if chosen.cap is None else {"cap": chosen.cap}
        study = self.study()
        under, space = {TOLERANCE: self.prune}, {name: SPACE[name] for name in params}
        study.add_trial(
            optuna.create_trial(state=TrialState.RUNNING, params=params, distributions=space, user_attrs=under)
        )
        return study.get_trials(deepcopy=False)[-1].number

    def trial(self, number: int, worth: Worth) -> optuna.Trial:
        """To report to, from the process that tries."""
        from gasam.lab.search.trial import BehindBaseline

        pruner = None
        if self.prune is not None and self.baseline is not None:
            pruner = BehindBaseline(worth, self.baseline["curve"], self.prune)
        study = self.study(pruner)
        return optuna.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)

    def tell(self, trial: optuna.Trial | None, outcome: dict[str, Any]) -> None:
        if trial is None:
            self.study().set_user_attr(BASELINE, outcome)
            return
        trial.set_user_attr("outcome", outcome)
        state = TrialState.PRUNED if outcome["valid"] is None else TrialState.COMPLETE
        trial.study.tell(trial, outcome["valid"], state=state)

    def _trials(self, *states: TrialState) -> Iterator[FrozenTrial]:
        return iter(self.study().get_trials(deepcopy=False, states=states))


def candidate(trial: FrozenTrial) -> Candidate:
    given = trial.params
    return Candidate(float(given["norm"]), int(given["exponent"]), int(given["mantissa"]), given.get("cap"))
