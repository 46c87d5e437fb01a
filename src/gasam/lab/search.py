"""Searches by Optuna on the validation split, for the size of a method's walk or for settings of training."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal, Self

import optuna
from filelock import FileLock
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from pydantic import BaseModel, NonNegativeInt, PositiveInt, model_validator

from gasam import recommended
from gasam.lab.engines.engine import Engine, OnEvent, do_all, prepare, raise_failed, train
from gasam.lab.errors import InputError
from gasam.lab.families.family import STRICT
from gasam.lab.methods import Walk, find_method
from gasam.lab.output import Table
from gasam.lab.record import Metric, Record, read_as
from gasam.lab.storage import Checkpoints, write_json
from gasam.lab.tasks import Origin
from gasam.lab.training import plan as plans
from gasam.lab.training.plan import Plan

FOLDER = "search"
"""The folder of searches in a folder of records. It has the runs of all trials in `runs`."""
SEED_STEP = 1_000_000
"""The best trials are repeated with the search's seed + 1,000,000, + 2,000,000 and so on; results have other seeds."""
TOLERANCE = 0.005
"""A size is too large if it loses more than this share of plain training's worth, and more than the split's noise."""
BUDGETS, EPSILONS, CAPS = "0.01..0.8,log", "1e-6..8,log", "0.003..0.1,log"
CAP = 0.1
"""Ten times the recommended cap. A search can try it because validation decides."""
FINALISTS, TRIALS, SHOWN = 3, 20, 5
"""The most trials that are repeated, the trials of a search for settings, and the most that a table shows."""
WALK = frozenset({"norm", "budget", "epsilon", "cap"})
"""What is searched of a walk."""
Quantity = Literal["budget", "epsilon", "settings", "joint"]
PLAIN: Mapping[str, str] = {"budget": "plain training", "epsilon": "plain training"}
"""What the size of a walk is compared with; settings are compared with the task's own ones."""
OWN = "the task's own settings"
Values = Mapping[str, Any]


class Search(BaseModel):
    """What to tune. The fields are the arguments of `gasam.lab.tune`, which describes them."""

    model_config = STRICT

    task: str
    method: str = "ga-sam"
    size: str | None = None
    quantity: Quantity | None = None
    space: dict[str, Any] = {}
    trials: PositiveInt | None = None
    seeds: PositiveInt = 1
    seed: NonNegativeInt = 0
    settings: dict[str, Any] = {}
    origin: Origin = Origin()

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse what cannot be searched, before anything is run."""
        usual = self._usual()
        unknown = {name for name, value in self.space.items() if value is None or self.of_walk} - usual.keys()
        if unknown:
            raise InputError(f"{min(unknown)} is not searched: a search for {self.what} has {', '.join(usual)}")
        if not self.ranges:
            raise InputError("nothing is left to search: add --space, or fix fewer settings")
        first = {name: values_of(kind)[0] for name, kind in self.ranges.items()}
        for name, kind in self.ranges.items():
            if self.of_walk and name != self.what and not isinstance(kind, CategoricalDistribution):
                raise InputError(f"{name} must be a list of choices in this search, such as [0.1], got a range")
            for value in values_of(kind):
                self.plan(first | {name: value})  # raises for one that is not allowed
        return self

    @property
    def what(self) -> Quantity:
        usual: dict[str, Quantity] = {"nothing": "settings", "embeddings": "epsilon", "weights": "budget"}
        return self.quantity or usual[find_method(self.method).moved]

    @property
    def of_walk(self) -> bool:
        """Whether the size of a walk is searched, and compared with plain training."""
        return self.what in PLAIN

    def plan(self, values: Values = MappingProxyType({}), repetition: int = 0) -> Plan:
        """The plan of a trial; without values, of plain training or of the task's own settings."""
        rounded = {name: float(f"{v:.2g}") if isinstance(v, float) else v for name, v in values.items()}
        walk: dict[str, Any] = {name: rounded.pop(name) for name in WALK & rounded.keys()}
        if "budget" in walk:
            walk["walk_progress"] = recommended(2)[1].progress
        method = "baseline" if self.of_walk and not values else self.method
        seed, settings = self.seed + repetition * SEED_STEP, {**self.settings, **rounded}
        return plans.make(self.task, method, self.size, seed, origin=self.origin, settings=settings, walk=walk)

    @cached_property
    def ranges(self) -> dict[str, BaseDistribution]:
        """What to search: the usual ranges without the settings that are fixed, and the user's own."""
        texts = {name: each for name, each in self._usual().items() if name not in self.settings} | self.space
        own = dict(self.plan().settings)
        return {name: distribution(name, each, own.get(name, 0.0)) for name, each in texts.items() if each is not None}

    def _usual(self) -> dict[str, Any]:
        if self.what == "budget":
            norm = find_method(self.method).preset.norm
            norms = ["inf" if math.isinf(norm) else norm]  # JSON has no infinity
            return {"norm": norms, "budget": BUDGETS, "cap": [CAP, recommended(2)[0].cap]}
        if self.what == "epsilon":
            return {"norm": ["inf", 2.0], "epsilon": EPSILONS}
        return self.plan().settings.space() | ({"budget": BUDGETS, "cap": CAPS} if self.what == "joint" else {})

    def name(self, data_hash: str) -> str:
        plan, space = self.plan(), {name: str(each) for name, each in self.ranges.items()}
        text = json.dumps([plan.config(), self.method, space, data_hash, self.seed], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{plan.task_name}-{plan.size}-{self.method}-{self.what}-{self.seed}-{digest}"


def distribution(name: str, value: Any, own: Any) -> BaseDistribution:
    """What to draw from: "0.001..0.1", "1..100,log", a list or one value; whole numbers if the setting is one now."""
    if not isinstance(value, str) or ".." not in value:
        choices = list(value) if isinstance(value, tuple | list) else [value]
        if not choices:
            raise InputError(f"the choices of {name} must not be empty")
        return CategoricalDistribution(choices)
    text, _, kind = value.partition(",")
    try:
        if kind not in ("", "log"):
            raise ValueError
        if type(own) is int or (own is None and text.replace("..", "").isdigit()):
            least, most = map(int, text.split(".."))
            return IntDistribution(least, most, log=bool(kind))
        low, high = map(float, text.split(".."))
        return FloatDistribution(low, high, log=bool(kind))
    except ValueError:
        allowed = "LOW..HIGH, or LOW..HIGH,log with LOW > 0, or a list such as [0,0.1]"
        whole = " in whole numbers" if type(own) is int else ""
        raise InputError(f"the range of {name} must be {allowed}{whole}, got {value!r}") from None


def values_of(kind: BaseDistribution) -> tuple[Any, ...]:
    """The choices, or the ends of a range."""
    if isinstance(kind, CategoricalDistribution):
        return kind.choices
    assert isinstance(kind, FloatDistribution | IntDistribution)
    return kind.low, kind.high


def in_words(values: Values) -> str:
    return ", ".join(f"{name}={v:.2g}" if isinstance(v, float) else f"{name}={v}" for name, v in values.items())


def paper_order(known: Mapping[float, float], sizes: BaseDistribution, noise: float) -> list[float]:
    """The sizes of one norm to try next, in the paper's two stages; none if the search has ended.

    A bisection finds the largest power of ten that is not clearly worse than plain training. Then 5, 2 and 8 times this
    power are tried. `known` has the gain of each size that was tried, as a share of the worth of plain training, and
    -inf if it was lost. `noise` is the standard error of a gain.
    """
    if isinstance(sizes, CategoricalDistribution):
        return [float(size) for size in values_of(sizes) if size not in known]
    low, high = values_of(sizes)
    fine, too_large = math.ceil(math.log10(low) - 1e-9) - 1, math.floor(math.log10(high) + 1e-9) + 1
    while too_large - fine > 1:
        middle = (fine + too_large) // 2
        gain = known.get(float(f"1e{middle}"))
        if gain is None:
            return [float(f"1e{middle}")]
        if gain < -max(TOLERANCE, noise):
            too_large = middle
        else:
            fine = middle
    grid = [float(f"{mantissa}e{fine}") for mantissa in (5, 2, 8)]
    return [size for size in grid if low <= size <= high and size not in known]


class Finding(BaseModel):
    """What a search has found: the content of its JSON file.

    `settings` are those that were searched around, `changes` the chosen ones, for `--settings-from`, and `walk` the
    options of the chosen walk, for `--tuned`. `plain` has the validation scores by seed of what trials are compared
    with. `gain` is positive if the choice is better than that, and None if nothing was chosen.
    """

    name: str
    task: str
    size: str
    method: str
    quantity: Quantity
    seeds: list[int]
    settings: dict[str, Any]
    changes: dict[str, Any] = {}
    walk: dict[str, Any] = {}
    data: str
    plain: list[float | None]
    trials: list[dict[str, Any]]
    gain: float | None = None
    sentence: str

    def table(self) -> Table:
        """The best trials beside plain training; those without a score are only counted."""
        scored = sorted((each for each in self.trials if each["valid"]), key=lambda each: not each["chosen"])
        plain = {"values": {}, "valid": [score for score in self.plain if score is not None], "chosen": False}
        rows = [
            {
                "tried": in_words(each["values"]) or PLAIN.get(self.quantity, OWN),
                "validation": f"{fmean(each['valid']):.4g}" if each["valid"] else "diverged",
                "seeds": str(len(each["valid"])),
                "chosen": "yes" if each["chosen"] else "",
            }
            for each in [plain, *scored[:SHOWN]]
        ]
        note = f"{len(self.trials)} trials, of which {len(self.trials) - len(scored)} diverged."
        return Table(f"{self.task}, size {self.size}: {self.quantity} of {self.method} on validation", rows, [note])


def read(file: Path) -> Finding:
    return read_as(Finding, "a file that `gasam tune` wrote", file)


def gains(plain: Sequence[Record], runs: Sequence[Record]) -> list[float]:
    """How much better the runs are than plain training, by seed; without the seeds with which one of both diverged."""
    pairs = [(ours.valid, other.valid) for ours, other in zip(runs, plain, strict=False)]
    return [plain[0].metric.gain(ours, other) for ours, other in pairs if ours is not None and other is not None]


def noise_of(plain: Record) -> float:
    """The standard error of a difference of two scores on the split, if they were of different examples."""
    return math.sqrt(2) * (plain.valid_error or 0.0)


def choose(
    asked: Search, plain: Sequence[Record], finalists: Sequence[tuple[Values, Sequence[Record]]]
) -> tuple[Values, float | None, str]:
    """The values to use, their gain over plain training, and a sentence that says how far to trust it.

    The best finalist has the best mean difference to plain training, paired by seed, and diverged with no seed. A
    search for settings gives no values if the task's own settings are better.
    """
    name, other, metric = f"{asked.method} on {asked.plan().task_name}", PLAIN.get(asked.what, OWN), plain[0].metric
    kept = [(values, runs) for values, runs in finalists if all(run.valid is not None for run in runs)]
    if not kept:
        return {}, None, f"{name}: every trial of {asked.what} diverged: give another range with --space"
    values, runs = max(kept, key=lambda each: fmean(gains(plain, each[1]) or [0.0]))
    score = f"{metric.name} {metric.shown(fmean(run.valid or 0.0 for run in runs))} on validation"
    differences = gains(plain, runs)
    if not differences:
        return values, None, f"{name}: use {in_words(values)}: {score}; {other} diverged"
    gain, error, of = fmean(differences), noise_of(plain[0]), "of the split; --seeds 3 repeats the best"
    if len(differences) > 1:
        error, of = stdev(differences) / math.sqrt(len(differences)), f"over {len(differences)} seeds"
    advice = f"use {in_words(values)}"
    if gain <= 0:
        advice = f"no {asked.what} improved on {other}; the best was {in_words(values)}"
    shown = f"{metric.difference(metric.gain(gain, 0.0))} {metric.unit_of_differences}"
    cost = f"{runs[0].gradient_evaluations / plain[0].gradient_evaluations:.1f} times its gradients"
    trust = f"{'more' if abs(gain) > 2 * error else 'less'} than twice the standard error ({metric.shown(error)} {of})"
    sentence = f"{name}: {advice}: {score}, {shown} compared with {other}, for {cost}; that is {trust}"
    return values if asked.of_walk or gain > 0 else {}, gain, sentence


def with_tuned_walk(plan: Plan, folder: Path) -> Plan:
    """The plan with the size of walk that was tuned for its method, settings and data; a baseline is unchanged."""
    if plan.walk.moved == "nothing":
        return plan
    if plan.walk.source == "given":
        raise InputError(f"{plan.walk.method} has a given radius and --tuned: leave out one of the two")
    planned = plan.task_name, plan.walk.method, plan.settings.model_dump(mode="json"), plan.data().hash
    found = [
        each
        for each in map(read, sorted((folder / FOLDER).glob("*.json")))
        if each.walk and (each.task, each.method, each.settings, each.data) == planned
        if each.quantity in PLAIN and plan.seed not in each.seeds
    ]
    best = max(found, key=lambda each: (each.quantity == "budget", each.gain or -math.inf), default=None)
    if best is None:
        words = f"tune {plan.task} --method {plan.walk.method} --size {plan.size} --out {folder}"
        raise InputError(
            f"{folder / FOLDER} has no finished search for the walk of {plan.walk.method} with these settings and this "
            f"data: run `gasam {words}` first, with the same --epochs, --set and files and another --seed"
        )
    size = {"budget": None, "epsilon": None, **best.walk}
    return replace(plan, walk=Walk(**dict(plan.walk) | size | {"source": "tuned"}))


def tune(
    search: Search, out: Path, engine: Engine, watch: OnEvent = lambda job, event: None, cpu: bool = False
) -> Finding:
    """Search, or continue a search that was interrupted: its trials are in `out/search/NAME.journal`.

    Raises `RunFailedError` if a trial fails; the same search repeats it.
    """
    plan = search.plan()
    data_hash, metric = plan.data().hash, plan.definition.family.metric
    file = out / FOLDER / f"{search.name(data_hash)}.json"
    with Checkpoints(file.with_suffix("")).locked():
        file.unlink(missing_ok=True)  # a search that continues may yet choose another walk
        study = opened(file.with_suffix(".journal"), metric)
        finding = Driver(search, study, file.parent / "runs", data_hash, engine, watch, cpu).search()
        write_json(file, finding.model_dump(mode="json"))
        return finding


def opened(journal: Path, metric: Metric) -> optuna.Study:
    """The study in a journal, without the torn last line of a killed process, which would make it unreadable."""
    if journal.exists():
        with journal.open("r+b") as stream:
            stream.truncate(stream.read().rfind(b"\n") + 1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    backend = JournalFileBackend(str(journal), lock_obj=JournalFileOpenLock(str(journal), grace_period=5))
    return optuna.create_study(
        storage=JournalStorage(backend),
        study_name=journal.stem,
        load_if_exists=True,
        direction="maximize" if metric.higher_is_better else "minimize",
    )


@dataclass
class Driver:
    """Runs the trials of a study in rounds. `folder` has the runs of all searches, which share equal ones."""

    asked: Search
    study: optuna.Study
    folder: Path
    data_hash: str
    engine: Engine
    watch: OnEvent
    cpu: bool

    def search(self) -> Finding:
        """Run plain training, or the task's own settings, then trials until there are no more, then more seeds."""
        if self.plain.valid is None and self.asked.of_walk:
            raise InputError(f"the baseline of {self.asked.task} diverged: change its settings before you tune a walk")
        while trials := self.next_trials():
            records = self.trained([(trial.params, 0) for trial in trials])
            for trial, record in zip(trials, records, strict=True):
                state = TrialState.FAIL if record.valid is None else TrialState.COMPLETE
                self.study.tell(trial.number, record.valid, state=state)
        return self.conclude()

    @cached_property
    def plain(self) -> Record:
        return self.with_seeds({}, 1)[0]

    def with_seeds(self, values: Values, count: int) -> list[Record]:
        """The records of a trial, or of plain training, with the first `count` seeds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Plain training serves the searches of all methods: they wait for it here, and then read its records.
        with FileLock(self.folder / f"{self.asked.plan().task_name}.lock"):
            return self.trained([(values, repetition) for repetition in range(count)])

    def trained(self, wanted: Sequence[tuple[Values, int]]) -> list[Record]:
        """The records of values and repetitions, read from files or trained now, without the test split."""
        planned = [self.asked.plan(*each) for each in wanted]
        jobs = {job.name: job for job in prepare(planned, self.folder)}
        names = [plan.name(self.data_hash) for plan in planned]
        for name, (values, _) in zip(names, wanted, strict=True):
            jobs[name].detail = in_words(values)
        do_all([*jobs.values()], self.folder, self.engine, self.watch, partial(train, cpu=self.cpu, test=False))
        raise_failed(jobs.values())
        return [jobs[name].record for name in names]

    def next_trials(self) -> Sequence[optuna.Trial | FrozenTrial]:
        """The trials that a killed search left, or else new ones; none when the search has ended."""
        if left := self.study.get_trials(states=(TrialState.RUNNING,)):
            return left
        begun = sum(trial.state != TrialState.WAITING for trial in self.study.get_trials(deepcopy=False))
        count, limit = self.engine.parallel, self.asked.trials or TRIALS
        if self.asked.of_walk:
            for values in self._proposed():
                self.study.enqueue_trial(dict(values), skip_if_exists=True)
            count = len(self.study.get_trials(states=(TrialState.WAITING,)))
            limit = self.asked.trials or begun + count
        # The storage keeps no state of the sampler, so its seed says how far the search is.
        self.study.sampler = TPESampler(seed=self.asked.seed + begun, n_startup_trials=5, constant_liar=True)
        return [self.study.ask(dict(self.asked.ranges)) for _ in range(min(count, limit - begun))]

    def _proposed(self) -> list[Values]:
        """The walks to try next: the recommended one, and the sizes of each norm in the paper's order."""
        what, ranges, usual = self.asked.what, self.asked.ranges, recommended(2)[0]
        norms, found = values_of(ranges["norm"]), list[Values]()
        if what == "budget" and norms == ("inf",) and not self.asked.space:
            found = [{"norm": "inf", "budget": usual.budget, "cap": usual.cap}]
        guessing = (self.plain.worthless or 0.0) * self.plain.metric.higher_is_better
        worth = max(abs((self.plain.valid or 0.0) - guessing), 1e-12)
        ended = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()]
        for norm in norms:
            fixed = {"norm": norm} | ({"cap": values_of(ranges["cap"])[0]} if what == "budget" else {})
            same = [trial for trial in ended if fixed.items() <= trial.params.items()]
            known = {trial.params[what]: self.gain(trial) / worth for trial in same}
            found += [fixed | {what: size} for size in paper_order(known, ranges[what], noise_of(self.plain) / worth)]
        return found

    def gain(self, trial: FrozenTrial) -> float:
        """How much better a trial is than plain training, in units of the metric; -inf if it diverged."""
        return -math.inf if trial.value is None else self.plain.metric.gain(trial.value, self.plain.valid or 0.0)

    def conclude(self) -> Finding:
        """Repeat the best trials with more seeds, choose one of them, and say what was found."""
        asked, plain = self.asked, self.with_seeds({}, self.asked.seeds)
        ended = self.study.get_trials(states=(TrialState.COMPLETE, TrialState.FAIL))
        unlike = {in_words(trial.params): trial for trial in ended}  # equal trials have equal scores
        best = sorted(unlike.values(), key=self.gain, reverse=True)
        least = self.gain(best[0]) - noise_of(plain[0])
        close = [trial.params for trial in best if trial.value is not None and self.gain(trial) >= least]
        finalists = [(params, self.with_seeds(params, asked.seeds)) for params in close[:FINALISTS]]
        values, gain, sentence = choose(asked, plain, finalists)
        scores = {name: [trial.value] for name, trial in unlike.items()}
        scores |= {in_words(params): [run.valid for run in runs] for params, runs in finalists}
        trials: list[dict[str, Any]] = []
        for trial in best:
            valid = [score for score in scores[in_words(trial.params)] if score is not None]
            trials.append({"values": trial.params, "valid": valid, "chosen": trial.params == values})
        plan, changed = asked.plan(values), {**asked.settings, **values}
        walk = {*WALK & values.keys()} | ({"walk_progress"} if "budget" in values else set())
        return Finding(
            name=self.study.study_name,
            task=plan.task_name,
            size=plan.size,
            method=asked.method,
            quantity=asked.what,
            seeds=[record.seed for record in plain],
            settings=asked.plan().settings.model_dump(mode="json"),
            changes={name: v for name, v in plan.settings.model_dump(mode="json").items() if name in changed},
            walk=plan.walk.model_dump(mode="json", include=walk),
            data=self.data_hash,
            plain=[record.valid for record in plain],
            trials=trials,
            gain=gain,
            sentence=f"{sentence} ({len(trials)} trials)",
        )
