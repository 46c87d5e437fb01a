"""A comparison: the runs of one task, size and data, a row for each configuration beside plain training."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from gasam.lab.methods import METHODS, Walk, find_method, in_words
from gasam.lab.output import FEW, Chart, Table, intervals, lines
from gasam.lab.record import AnalysisRecord, Metric, Record

Standing = Literal["better", "worse", "no clear difference", "too few seeds", "undecided"]
DURATION = {"epochs", "halve_after"}
"""The settings that change with the length of training."""
NEAR = 0.1
"""How far two costs may be apart, as a share, to count as equal."""
COLLAPSED = 0.1
"""A method that loses more than this share of what plain training has learnt, and more than twice the noise of the test
split, has collapsed."""
LISTED = ("name", "task", "size", "method", "seed", "valid", "test", "gradient_evaluations", "seconds")
WALKS = {
    "ratio": "Displacement |a| / |w|",
    "strength": "Strength of the schedule",
    "rise": "Rise of the loss in a walk",
}
"""The means over an epoch's walks that records hold."""


class Difference(NamedTuple):
    """A mean difference and its 95% interval, which is None with fewer than three pairs."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def width(self) -> float:
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def standing(self, higher_is_better: bool) -> Standing:
        if self.low is None or self.high is None:
            return "too few seeds"
        if self.low <= 0 <= self.high:
            return "no clear difference"
        return "better" if (self.mean > 0) == higher_is_better else "worse"

    def text(self, metric: Metric) -> str:
        ends = [metric.difference(end) for end in (self.low, self.high) if end is not None]
        return metric.difference(self.mean) + (f" [{', '.join(ends)}]" if ends else "")


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """The mean of ours - theirs over their common seeds, with Student's 95% interval; None without a common seed.

    Pairing by seed cancels the effects that a seed has on both.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    if len(seeds) < FEW:
        return Difference(mean, None, None, len(seeds))
    from scipy import stats  # type: ignore[import-untyped]  # a second that most commands do not need

    # `stats.ttest_rel` gives the same interval, and a warning if the differences are nearly equal.
    reach = float(stats.t.ppf(0.975, len(seeds) - 1)) * statistics.stdev(differences) / math.sqrt(len(seeds))
    return Difference(mean, mean - reach, mean + reach, len(seeds))


class Row:
    """The runs of one configuration, by seed."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = sorted(records, key=lambda record: record.seed)
        self.first = self.records[0]
        self.title = find_method(self.first.method).title
        self.key, self.method, self.metric = self.first.key, self.first.method, self.first.metric
        self.walk = Walk.model_validate(self.first.walk)
        self.lasting_settings = {name: value for name, value in self.first.settings.items() if name not in DURATION}
        self.scores = {record.seed: record.test for record in self.records if record.test is not None}
        self.lost = {record.seed for record in self.records} - self.scores.keys()
        self.mean = statistics.fmean(self.scores.values()) if self.scores else None
        self.spread = statistics.stdev(self.scores.values()) if len(self.scores) > 1 else None
        self.label = ""  # the method, and what sets it apart from the other rows
        self.baseline: Row | None = None  # plain training with the same settings, or for another one the first row
        self.equal_cost: Row | None = None  # plain training that cost as much, mostly because it had more epochs

    def cost(self, name: str = "gradient_evaluations") -> float:
        """A mean over the runs that gave a number, if any did: one that diverged stopped early and looks cheap."""
        ended = [record for record in self.records if record.test is not None] or self.records
        return statistics.fmean(getattr(record, name) for record in ended)

    @property
    def relative_cost(self) -> float | None:
        if self.baseline is None or not self.baseline.scores:
            return None
        return self.cost() / self.baseline.cost()

    def difference(self, other: Row | None) -> Difference | None:
        return None if other is None else paired(self.scores, other.scores)

    def standing(self, other: Row | None) -> Standing:
        """Undecided where runs diverged, because the seeds that did not are no sample."""
        found = self.difference(other)
        if found is None or other is None:
            return "undecided"
        standing = found.standing(self.metric.higher_is_better)
        return "undecided" if (self.lost or other.lost) and standing != "too few seeds" else standing

    def versus(self, other: Row | None) -> str:
        """The difference in words: with the number of common seeds where some are missing."""
        found = self.difference(other)
        if found is None:
            return ""
        seeds = "" if found.pairs == len(self.scores) else f" ({counted(found.pairs, 'common seed')})"
        return found.text(self.metric) + seeds

    @property
    def score(self) -> str:
        """Mean and standard deviation on the test split, or the scores of few seeds, and how many runs diverged."""
        late = sum(record.diverged for record in self.records if record.test is not None)
        told = [
            self.numbers,
            f"{late} diverged later" if late else "",
            f"{len(self.lost)} diverged" if self.lost and self.scores else "",
            "collapsed" if self.collapsed else "",
        ]
        return ", ".join(filter(None, told))

    @property
    def numbers(self) -> str:
        digits = self.metric.decimals
        if self.mean is None or self.spread is None or len(self.scores) < FEW:
            return ", ".join(f"{score:,.{digits}f}" for score in self.scores.values()) or "diverged"
        return f"{self.mean:,.{digits}f} ± {self.spread:.{digits}f}"

    @property
    def test_error(self) -> float:
        """The standard error of the test score, from the choice of the split's examples."""
        return max((record.test_error or 0.0 for record in self.records), default=0.0)

    @property
    def collapsed(self) -> bool:
        """Whether a method ends clearly below plain training."""
        plain = self.baseline
        if self.method == "baseline" or plain is None or plain.mean is None or not plain.test_error:
            return False
        if self.mean is None:
            return True
        learnt = abs(plain.mean - (plain.first.worthless or 0.0) * self.metric.higher_is_better)
        loss = self.metric.gain(plain.mean, self.mean)
        return loss > max(COLLAPSED * learnt, 2 * math.sqrt(2) * plain.test_error)

    def warnings(self) -> Iterator[str]:
        guess, error = self.first.worthless, 2 * self.test_error
        if self.mean is not None and guess is not None and error and self.metric.gain(self.mean, guess) <= error:
            yield f"{self.label} is no better than guessing ({self.metric.shown(guess)})."
        waits = self.walk.walk_progress is not None and not self.walk.one_pass
        if waits and all(record.gradient_evaluations == record.updates for record in self.records):
            yield f"{self.label} never walked: its loss did not fall enough for the schedule. Train longer."
        if self.collapsed:
            yield f"{self.label} collapsed."

    def values(self) -> dict[str, Any]:
        found = {"difference": self.difference(self.baseline), "at_equal_cost": self.difference(self.equal_cost)}
        return {
            "key": self.key,
            "label": self.label,
            "method": self.method,
            "test": {"mean": self.mean, "std": self.spread, "seeds": self.scores, "diverged": len(self.lost)},
            **{name: None if each is None else each._asdict() for name, each in found.items()},
            "gradient_evaluations": {"mean": self.cost(), "relative": self.relative_cost},
            "seconds": self.cost("seconds"),
        }


class Comparison:
    """Records of one task, size and data: a row for each configuration, in the order of the methods."""

    def __init__(self, records: Sequence[Record]) -> None:
        first = records[0]
        self.records, self.metric = records, first.metric
        self.title = ", ".join([first.task, f"size {first.size}", *first.data.files])
        groups: dict[str, dict[int, Record]] = {}
        for record in records:
            groups.setdefault(record.key, {}).setdefault(record.seed, record)
        # The settings that most runs have.
        self.settings = json.loads(statistics.mode(json.dumps(each.settings, sort_keys=True) for each in records))
        self.rows = sorted((Row(group.values()) for group in groups.values()), key=self._place)
        for row in self.rows:
            row.baseline = self._baseline(row)
            row.equal_cost = self._equal_cost(row)
            row.label = self._label(row)

    @classmethod
    def of(cls, records: Iterable[Any]) -> list[Comparison]:
        """A comparison for each task, size and data, in the order of the records."""
        kinds: dict[tuple[str, str, str], list[Any]] = {}
        for record in records:
            kinds.setdefault((record.task, record.size, record.data.hash), []).append(record)
        return [cls(some) for some in kinds.values()]

    def _changed(self, row: Row) -> dict[str, Any]:
        """The settings that differ from those of most runs."""
        return dict(item for item in row.first.settings.items() if item not in self.settings.items())

    def _place(self, row: Row) -> tuple[Any, ...]:
        """In the order of methods; first the settings of most runs, and the usual walk."""
        walk, sources = row.walk, ("none", "recommended", "tuned", "paper", "given")
        odd = len(self._changed(row)), sources.index(walk.source), walk.same_noise, walk.every, walk.steps
        return list(METHODS).index(row.method), *odd, -walk.ascent_fraction, walk.size

    def _baseline(self, row: Row) -> Row | None:
        plain = [other for other in self.rows if other.method == "baseline"]
        if row.method == "baseline":
            return plain[0] if plain[0] is not row else None
        alike = [other for other in plain if other.first.settings == row.first.settings]
        return min(alike, key=lambda other: other.walk.same_noise != row.walk.same_noise, default=None)

    def _equal_cost(self, row: Row) -> Row | None:
        """Of the plain training that cost about as much the one that validation prefers."""
        equal = [
            other
            for other in self.rows
            if other.method == "baseline" != row.method
            and other.scores
            and other.lasting_settings == row.lasting_settings
            and abs(other.cost() / row.cost() - 1) <= NEAR
        ]
        return self.metric.best(equal, lambda other: other.cost("valid")) if equal else None

    def _label(self, row: Row) -> str:
        """The title of the method, whether its walk was tuned, and what differs from the other rows."""
        walks = {str(other.walk) for other in self.rows if other.method == row.method}
        walk = str(row.walk) if len(walks) > 1 else ""
        tuned = "tuned" if row.walk.source == "tuned" else ""
        settings = [in_words(name, value) for name, value in self._changed(row).items()]
        parts = ", ".join(filter(None, [tuned, walk, *settings]))
        return f"{row.title} ({parts})" if parts else row.title

    @property
    def lead(self) -> Row | None:
        """The row that the answer is about: GA-SAM's first, or else that of the first method."""
        walking = [row for row in self.rows if row.method != "baseline"]
        return min(walking, key=lambda row: (not row.scores, row.method != "ga-sam"), default=None)

    @property
    def standing(self) -> Standing:
        return self.lead.standing(self.lead.baseline) if self.lead else "undecided"

    @property
    def answer(self) -> str:
        lead, metric = self.lead, self.metric
        scored = f"Test {_with_unit(metric)}"
        if lead is None:
            return f"Only plain training was run. {scored}: {self.rows[0].score}."
        found, plain = lead.difference(lead.baseline), lead.baseline
        if found is None or plain is None:
            missing = "has no baseline with a common seed" if lead.scores else "diverged with every seed"
            return f"{lead.label} {missing}. {scored}: {lead.score}."
        if found.pairs < FEW:
            both = f"{lead.label} {lead.numbers}, {plain.label} {plain.numbers}"
            return f"{scored}: {both}. Fewer than {FEW} seeds decide nothing; use --seeds 4."
        told = f"{lead.label} is {self.standing} than {plain.label}"
        if self.standing == "no clear difference":
            told = f"No clear difference between {lead.label} and {plain.label}"
        elif self.standing == "undecided":
            told = f"Undecided, because runs of {lead.label} or {plain.label} diverged"
        told += f": {lead.versus(plain)} {metric.unit_of_differences} over {found.pairs} seeds."
        if lead.relative_cost is not None:
            told += f" It took {lead.relative_cost:.2f} times as many gradient evaluations."
        if (longer := lead.equal_cost) not in (None, plain):
            told += f" At equal cost, compared with {longer.label}: {lead.standing(longer)}, {lead.versus(longer)}."
        return told

    def notes(self) -> list[str]:
        """The answer, warnings about rows, and what readers must know of the data."""
        data = dict.fromkeys(note.rstrip(".") for record in self.records for note in record.data.notes)
        return [
            self.answer,
            *(warning for row in self.rows for warning in row.warnings()),
            *(f"Data: {note}." for note in data),
        ]

    def table(self) -> Table:
        shown, values = [], []
        for row in self.rows:
            cost, longer = row.relative_cost, row.equal_cost
            text = {
                "method": row.label,
                _with_unit(self.metric): row.score,
                "seeds": str(len(row.records)),
                f"minus baseline, {self.metric.unit_of_differences} [95%]": row.versus(row.baseline),
                "at equal cost": f"{row.versus(longer)}, epochs {longer.first.settings['epochs']}" if longer else "",
                "passes": "" if cost is None else f"{cost:.2f}x",
            }
            shown.append(text)
            values.append(row.values())
        return Table(f"{self.title}: test {described(self.metric)}", shown, self.notes(), values)

    def charts(self) -> list[Chart]:
        """Learning curves over their cost, and differences to plain training."""
        methods = {row.label: row.method for row in self.rows}
        curves = lines(
            self._points("gradient_evaluations", "valid"),
            methods,
            title="Validation",
            x="gradient evaluations",
            y=f"validation {_with_unit(self.metric)}",
            log="" if self.metric.higher_is_better else "y",
        )
        differences = intervals(
            self._differences(),
            methods,
            title="Test: difference to plain training",
            x=f"difference, {self.metric.unit_of_differences}; "
            f"{'right' if self.metric.higher_is_better else 'left'} of 0 is better",
        )
        return [curves, differences] if differences.values else [curves]

    def walks(self) -> list[Chart]:
        methods, found = {row.label: row.method for row in self.rows}, []
        for name, title in WALKS.items():
            points = self._points("epoch", name)
            found.append(lines(points, methods, title=title, x="epoch", y="", height=170))
        return [chart for chart in found if chart.values]

    def _points(self, x: str, y: str) -> Iterator[dict[str, Any]]:
        """A point for each epoch of each run, with numbers of its curve or of the epoch's walks."""
        for row in self.rows:
            for record in row.records:
                for point in record.curve:
                    found = point | (point.get("walk") or {})
                    step = {"label": row.label, "seed": record.seed, "step": point["epoch"]}
                    yield step | {"x": found.get(x), "y": found.get(y)}

    def _differences(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            found, base = row.difference(row.baseline), row.baseline
            if found is None or base is None:
                continue
            text = row.versus(base)
            mean = {"kind": "mean", "value": found.mean, "text": text, "told": f"{text}, minus {base.label}"}
            ends = {} if found.low is None else {"low": found.low, "high": found.high}
            yield {"label": row.label, **mean, **ends}
            for seed in sorted(row.scores.keys() & base.scores.keys()):
                value = row.scores[seed] - base.scores[seed]
                told = f"{self.metric.difference(value)} (seed {seed})"
                yield {"label": row.label, "kind": "seed", "value": value, "told": told}


def run_list(records: Sequence[Record], title: str) -> Table:
    """A row for each run: texts for people, all values for JSON and CSV."""
    rows, values = [], []
    for run in records:
        walk, epochs = str(Walk.model_validate(run.walk)), run.settings["epochs"]
        valid, test = ("diverged" if each is None else run.metric.shown(each) for each in (run.valid, run.test))
        rows.append({"run": run.name, "walk": walk, "epochs": str(epochs), "valid": valid, "test": test})
        more = {"data": ", ".join(run.data.files), "walk": walk, "epochs": epochs, "metric": run.metric.name}
        values.append({name: getattr(run, name) for name in LISTED} | more)
    return Table(title, rows, values=values)


def configuration_labels(found: Sequence[AnalysisRecord]) -> dict[str, str]:
    """The label of each configuration of analysed runs, by the key of the run."""
    return {row.key: row.label for each in Comparison.of([a.run for a in found]) for row in each.rows}


def described(metric: Metric) -> str:
    return f"{_with_unit(metric)} ({'higher' if metric.higher_is_better else 'lower'} is better)"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _with_unit(metric: Metric) -> str:
    return f"{metric.name}, {metric.unit}" if metric.unit else metric.name
