"""Searches: the paper's order on made-up responses, real trials in a journal that survives a kill, and the choice."""

import json
import math
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from killed_processes import InThisProcess, exit_code, search_killed_at
from optuna.distributions import FloatDistribution, IntDistribution
from refusals import refusal
from synthetic import record

from gasam.lab.errors import InputError, checked
from gasam.lab.families.images import ImageClassification
from gasam.lab.record import read as read_record
from gasam.lab.search import Search, choose, distribution, paper_order, read, tune, with_tuned_walk
from gasam.lab.storage import Checkpoints
from gasam.lab.tasks import TASKS
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

EPSILONS = FloatDistribution(1e-6, 8.0, log=True)


def asked(**changes):
    return checked(Search, **{"task": "digits", "size": "tiny"} | changes)


def settings_search(folder, **changes):
    return tune(asked(**{"quantity": "settings", "method": "baseline", "trials": 3} | changes), folder, InThisProcess())


def replayed(gain, noise=0.0, sizes=EPSILONS):
    """The sizes that a search would try, in their order."""
    known = {}
    while wanted := paper_order(known, sizes, noise):
        known |= {size: gain(size) for size in wanted}
    return known


def hill(peak, collapse, height=0.05):
    """A gain that rises to `height` at 10^peak and is lost at 10^collapse."""

    def gain(size):
        x = math.log10(size)
        return height * math.exp(-((x - peak) ** 2)) if x < collapse else -math.inf

    return gain


@given(peak=st.floats(-5, -0.5), beyond=st.floats(0.1, 0.9))
def test_the_papers_order_finds_the_best_of_the_decade_below_the_collapse(peak, beyond):
    gain = hill(peak, peak + beyond)
    known = replayed(gain)
    grid = [float(f"{m}e{k}") for k in range(-6, 1) for m in (5, 2, 8, 1)]
    largest = max(size for size in grid if f"{size:e}".startswith("1.") and gain(size) > -math.inf)
    assert max(known.values()) >= max(gain(size) for size in grid if largest <= size < 9.5 * largest)
    assert len(known) <= 7, "three or four for the order of magnitude, three for the grid"


def test_noise_bounds_what_counts_as_a_collapse():
    slightly_worse = lambda size: -0.03 if size >= 1e-2 else 0.01  # noqa: E731
    known = replayed(slightly_worse, noise=0.0)
    assert known[5e-3] == 0.01, "the largest size that does not collapse is in the grid"
    assert 5.0 in replayed(slightly_worse, noise=0.05)


def test_order_ends_when_everything_collapses_and_goes_down_where_a_decade_only_harms():
    assert replayed(lambda size: -math.inf) == {1e-3: -math.inf, 1e-5: -math.inf, 1e-6: -math.inf}
    harmful = replayed(lambda size: 0.01 if size < 1e-3 else -0.01, noise=0.005)
    assert max(harmful, key=harmful.get) < 1e-3
    listed = distribution("epsilon", [0.1, 0.5], None)
    assert list(replayed(lambda size: -math.inf, sizes=listed)) == [0.1, 0.5]


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_has_ranges_that_its_settings_allow(task):
    for size in TASKS[task].sizes:
        assert asked(task=task, size=size, quantity="joint").ranges  # which makes a plan of the ends of each range


def test_ranges_are_read_as_they_are_written():
    assert distribution("x", "0.001..0.1,log", 0.0) == FloatDistribution(0.001, 0.1, log=True)
    assert distribution("x", "1..4", 2) == IntDistribution(1, 4)
    assert isinstance(distribution("x", "0..1", 0.5), FloatDistribution)
    assert distribution("x", ["a", "b"], None).choices == ("a", "b")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"quantity": "settngs"}, "quantity must be one of 'budget', 'epsilon', 'settings' or 'joint'"),
        ({"method": "magic"}, "method must be one of baseline, sam"),
        ({"method": "baseline", "quantity": "budget"}, "the baseline does not walk"),
        ({"task": "numerals", "method": "freelb", "quantity": "budget"}, "freelb moves embeddings, not weights"),
        ({"space": {"dropout": "0..0.5"}}, "dropout is not searched: a search for budget has norm, budget, cap"),
        ({"space": {"cap": "0.01..0.1"}}, "cap must be a list of choices in this search"),
        ({"quantity": "settings", "space": {"dropout": "0.1..2"}}, "dropout must be < 1, got 2.0"),
        ({"quantity": "settings", "space": {"dropout": "1..x"}}, "the range of dropout must be LOW..HIGH"),
        ({"quantity": "settings", "space": {"epochs": "1.5..3"}}, "in whole numbers, got '1.5..3'"),
        ({"quantity": "settings", "space": {"depth": [1]}}, "there is no setting 'depth'"),
    ],
)
def test_what_cannot_be_searched_is_told_in_one_sentence(changes, told):
    assert told in refusal(asked, **changes)


def test_compare_uses_the_walk_that_a_search_chose(command, tmp_path):
    words = ("tune", "digits", "--size", "tiny", "--quantity", "epsilon", "--space", "norm=[2]", "--jobs", "1", "--cpu")
    ended = command(*words, "--trials", "2", "--out", tmp_path).done()
    [file] = (tmp_path / "search").glob("*.json")
    found = read(file)
    assert found.sentence in ended.out
    assert len(found.trials) == 2
    for trial in (tmp_path / "search" / "runs").glob("*.json"):
        assert read_record(trial).test is None, "a search never sees the test split"
    assert not list((tmp_path / "search" / "runs").glob("*/*.pt"))
    again = command(*words, "--trials", "2", "--out", tmp_path, "--json")
    assert json.loads(again.out)["trials"] == found.model_dump(mode="json")["trials"]
    assert "gradient evaluations" not in again.err, "nothing was run a second time"

    plan = make("digits", "ga-sam", "tiny")
    tuned = with_tuned_walk(plan, tmp_path).walk
    assert (tuned.epsilon, tuned.norm, tuned.budget, tuned.source) == (found.walk["epsilon"], 2.0, None, "tuned")
    assert with_tuned_walk(make("digits", "baseline", "tiny"), tmp_path).walk.method == "baseline"
    for unlike in (make("digits", "ga-sam", "tiny", seed=0), make("digits", "sam", "tiny"),
                   make("digits", "ga-sam", "tiny", settings={"epochs": 3})):  # fmt: skip
        with pytest.raises(InputError, match="has no finished search for the walk of"):
            with_tuned_walk(unlike, tmp_path)
    with Checkpoints(file.with_suffix("")).locked():
        assert "is being run by another process" in command(*words, "--trials", "2", "--out", tmp_path).err


def test_trials_are_made_with_the_test_split_withheld(tmp_path, monkeypatch):
    """In the process that trains: a family that looks at the test split fails the trial."""
    monkeypatch.setattr(ImageClassification, "validate", lambda self, model: self.measure(model, "test").value)
    with pytest.raises(KeyError):
        run(make("digits", "baseline", "tiny"), tmp_path, cpu=True, test=False)


def test_settings_are_chosen_by_the_mean_and_train_takes_them(command, tmp_path):
    found = settings_search(tmp_path, seeds=2)
    assert len(found.trials) == 3
    assert found.seeds == [0, 1_000_000]
    repeated = [each for each in found.trials if len(each["valid"]) == 2]
    assert repeated
    assert len(found.plain) == 2
    chosen = [each for each in found.trials if each["chosen"]]
    if chosen:  # else the task's own settings are better
        assert sum(chosen[0]["valid"]) == max(sum(each["valid"]) for each in repeated)
    file = tmp_path / "search" / f"{found.name}.json"
    assert read(file) == found
    common = ("--settings-from", file, "--cpu", "--out", tmp_path, "--json")
    settings = json.loads(command("train", "digits", "--size", "tiny", *common).done().out)["settings"]
    assert {name: settings[name] for name in found.changes} == found.changes
    assert "has the settings of digits" in command("train", "docstrings", *common).refused()


def test_a_search_continues_as_if_it_had_never_ended(tmp_path):
    whole = settings_search(tmp_path / "whole", trials=7)
    settings_search(tmp_path / "parts", trials=6)
    assert settings_search(tmp_path / "parts", trials=7).model_dump() == whole.model_dump()


@pytest.mark.timeout(1800)  # three processes import everything, which takes minutes beside other work
def test_a_killed_search_goes_on_and_a_torn_journal_is_cut(tmp_path):
    """It is killed in plain training, and again in a trial."""
    words = {"task": "digits", "size": "tiny", "settings": {"epochs": 4}, "trials": 2}
    for step in (3, 40):
        assert exit_code(search_killed_at, tmp_path, step, words) == -signal.SIGKILL
    [journal] = (tmp_path / "search").glob("*.journal")
    with journal.open("ab") as stream:
        stream.write(b'{"op_code": 4, "wor')  # as if it had been killed in the middle of a line
    continued = tune(asked(**words), tmp_path, InThisProcess(), cpu=True)
    assert continued == tune(asked(**words), tmp_path / "whole", InThisProcess(), cpu=True)


def choice(plain, *others, error=0.5, quantity="budget"):
    """The chosen values, the gain and the sentence for finalists; each has a score by seed."""

    def records(scores, method):
        return [
            record("imdb", method, score, seed=seed, valid=score, valid_error=error / math.sqrt(2))
            for seed, score in enumerate(scores)
        ]

    finalists = [({"budget": 0.1 * place, "cap": 0.1}, records(each, "ga-sam")) for place, each in enumerate(others, 1)]
    return choose(checked(Search, task="imdb", quantity=quantity), records(plain, "baseline"), finalists)


def test_best_mean_over_seeds_is_chosen_and_the_sentence_says_how_far_to_trust_it():
    values, gain, sentence = choice([80.0, 80.2, 80.1], [82.0, 80.0, 80.2], [81.0, 81.2, 81.1])
    assert values["budget"] == 0.2
    assert gain == pytest.approx(1.0)
    assert "more than twice the standard error" in sentence
    assert "over 3 seeds" in sentence
    assert "more than twice the standard error (0.50% of the split" in choice([80.0], [82.0])[2]
    assert "less than twice the standard error" in choice([80.0], [80.3])[2]
    assert choice([80.0, 80.0], [90.0, None], [81.0, 81.0])[0]["budget"] == 0.2, "the other diverged with a seed"


def test_sentence_says_if_nothing_was_found():
    values, gain, sentence = choice([80.0], [79.0])
    assert "no budget improved on plain training; the best was budget=0.1, cap=0.1" in sentence
    assert (values["budget"], gain) == (0.1, -1.0), "`--tuned` says what it uses"
    assert "every trial of budget diverged" in choice([80.0])[2]
    values, _, sentence = choice([80.0], [79.0], quantity="settings")
    assert "no settings improved on the task's own settings" in sentence
    assert values == {}


@pytest.mark.parametrize("task", ["digits", "imdb", "ptb", "en-vi"])
def test_withheld_data_raises_in_every_family(task):
    plan = make(task, "baseline", "tiny")
    family = plan.family(plan.data().without_test())
    model = family.model().eval()
    assert math.isfinite(family.measure(model, "valid").value)
    for touch in (lambda: family.measure(model, "test"), lambda: family.examples("test", 4)):
        with pytest.raises(LookupError, match="test"):
            touch()
