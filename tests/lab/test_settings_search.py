"""The search for settings: ranges, Optuna's proposals and pruner, and whole searches with real trials."""

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import log_softmax

from gasam.lab.api import settings_frame
from gasam.lab.errors import InputError
from gasam.lab.families.spaces import Span, around, parsed_span
from gasam.lab.record import Metric
from gasam.lab.report.settings_search import settings_conclusion
from gasam.lab.search.sampling import FIRST, PercentileRule, propose
from gasam.lab.search.settings_driver import tune_settings
from gasam.lab.search.settings_finding import SettingsFinding, SettingsTrial
from gasam.lab.search.settings_question import SettingsQuestion
from gasam.lab.search.worth import stops
from gasam.lab.tasks import TASKS
from gasam.lab.training.plan import make

ACCURACY, PERPLEXITY = Metric("accuracy", higher_is_better=True), Metric("perplexity", higher_is_better=False)
SPACE = {"learning_rate": Span(1e-4, 1e-1, log=True), "layers": Span(1, 4, whole=True), "optimizer": ("adam", "adamw")}


def trial(valid, curve=None, **values):
    measured = {"worthless": 10.0, "diverged": False, "gradient_evaluations": 8, "seconds": 1.0}
    return SettingsTrial(values=values, valid=valid, curve=(valid,) if curve is None else curve, **measured)


@given(st.floats(1e-6, 1e6), st.floats(1.5, 100))
def test_span_around_a_value_contains_it(value, factor):
    span = around(value, factor)
    assert span.low < value < span.high
    assert span.rounded(value) == pytest.approx(value, rel=0.06)


@given(st.floats(0.1, 0.7))
def test_rounded_values_stay_in_their_span(value):
    assert 0.1 <= Span(0.1, 0.7).rounded(value) <= 0.7


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("0.1..0.5", Span(0.1, 0.5)),
        ("1e-4..1,log", Span(1e-4, 1.0, log=True)),
        ("1..8", Span(1, 8)),
        (["a", "b"], ("a", "b")),
        (("constant", "linear"), ("constant", "linear")),
        ("linear", ("linear",)),
        (0.2, (0.2,)),
    ],
)
def test_range_is_read_from_text(text, span):
    assert parsed_span("x", text) == span


@pytest.mark.parametrize("text", ["0.5..0.1", "0..1,log", "a..b", "1..2..3", "1..2,linear"])
def test_wrong_range_is_refused_with_its_name(text):
    with pytest.raises(InputError, match=r"the range of dropout must be LOW\.\.HIGH"):
        parsed_span("dropout", text)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_has_ranges_that_its_settings_allow(task):
    for size in TASKS[task].sizes:
        settings = TASKS[task].settings(size)
        for name, span in settings.space().items():
            for value in (span.low, span.high) if isinstance(span, Span) else span:
                assert getattr(settings.changed(**{name: value}), name) == value


def test_proposals_lie_in_their_ranges_and_depend_on_seed_and_trials_only():
    known = [trial(50 + 10 * rate, learning_rate=rate, layers=2, optimizer="adam") for rate in (1e-3, 1e-2, 1e-1)]
    first = propose(known, SPACE, ACCURACY, 2, seed=0)
    assert first == propose(known, SPACE, ACCURACY, 2, seed=0)
    assert first != propose(known, SPACE, ACCURACY, 2, seed=1)
    assert first != propose(known[:2], SPACE, ACCURACY, 2, seed=0)
    for values in first:
        assert 1e-4 <= values["learning_rate"] <= 1e-1
        assert float(f"{values['learning_rate']:.2g}") == values["learning_rate"]
        assert values["layers"] in (1, 2, 3, 4)
        assert values["optimizer"] in SPACE["optimizer"]


@pytest.mark.parametrize(("metric", "sign"), [(ACCURACY, 1), (PERPLEXITY, -1)])
def test_proposals_learn_from_the_trials(metric, sign):
    """A smooth score with its best at 0.01: after 25 trials the sampler proposes near it, for both directions."""
    known: list[SettingsTrial] = []
    space = {"learning_rate": SPACE["learning_rate"]}
    for _ in range(25):
        [values] = propose(known, space, metric, 1, seed=3)
        known.append(trial(-sign * abs(math.log10(values["learning_rate"]) + 2), **values))
    late = [abs(math.log10(one.values["learning_rate"]) + 2) for one in known[15:]]
    early = [abs(math.log10(one.values["learning_rate"]) + 2) for one in known[:10]]
    assert sum(late) / len(late) < 0.5 * sum(early) / len(early)


def test_trial_with_the_own_settings_is_ignored_by_the_sampler():
    assert len(propose([trial(90.0)], SPACE, ACCURACY, 1, seed=0)) == 1


@pytest.mark.parametrize(("metric", "sign"), [(ACCURACY, 1), (PERPLEXITY, -1)])
def test_worst_quarter_is_stopped_in_the_second_half_and_no_earlier(metric, sign):
    curves = tuple(tuple(sign * (level + epoch) for epoch in range(4)) for level in range(10, 90, 10))
    rule = PercentileRule(metric, curves)
    assert rule.hopeless([sign * 5.0, sign * 6.0, sign * 7.0], epochs=4)
    assert not rule.hopeless([sign * 5.0, sign * 6.0], epochs=4), "in the first half"
    assert not rule.hopeless([sign * 45.0, sign * 46.0, sign * 47.0], epochs=4)
    few = PercentileRule(metric, curves[: FIRST - 1])
    assert not few.hopeless([sign * 5.0] * 3, epochs=4), "too few to compare with"


def test_trials_are_compared_after_the_same_share_of_their_epochs():
    """Four epochs that end with a low rate, and eight of which the fifth still has a high one."""
    short = tuple((60.0, 61.0, level, 90.0) for level in (70.0, 71.0, 72.0, 73.0, 74.0, 75.0))
    rule = PercentileRule(ACCURACY, short)
    slow = [50.0, 55.0, 60.0, 65.0, 69.0]
    assert not rule.hopeless([*slow, 71.5], epochs=8), "the others had 70 to 75 after 6/8 of their training, in epoch 3"
    assert rule.hopeless([*slow[:5], 69.0], epochs=8)
    assert not rule.hopeless([*slow, 71.5, 72.0], epochs=8), "after 7/8 they are still in their last epoch"
    assert rule.hopeless([*slow, 71.5, 80.0, 80.0], epochs=8), "in the end the others had 90"


@pytest.mark.parametrize(("epochs", "halve_after", "stopped"), [(8, 2, True), (8, 4, False), (8, 6, False)])
def test_a_trial_at_its_full_rate_is_not_stopped(epochs, halve_after, stopped):
    """After five of eight epochs its rate must have been halved twice."""
    settings = TASKS["ptb"].settings("small", epochs=epochs, halve_after=halve_after)
    rule = PercentileRule(PERPLEXITY, ((200.0,) * 8,) * FIRST)
    assert stops(rule, [300.0] * 5, settings) is stopped
    assert stops(rule, [300.0] * 8, settings)
    constant = TASKS["imdb"].settings("small", epochs=8)
    assert stops(PercentileRule(ACCURACY, ((80.0,) * 8,) * FIRST), [50.0] * 5, constant)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_is_the_mean_over_the_smoothed_label(smoothing, data_dir):
    plan = make("digits", "baseline", "tiny", settings={"smoothing": smoothing})
    family = plan.family(plan.data())
    torch.manual_seed(0)
    model = family.model().double()
    inputs, labels = family.batch(torch.arange(6))
    inputs = inputs.double()
    found, _ = family.loss(model, (inputs, labels), None)
    logarithms = log_softmax(model(inputs), dim=1)
    own = logarithms[torch.arange(6), labels]
    expected = -((1 - smoothing) * own + smoothing * logarithms.mean(dim=1)).mean()
    assert torch.allclose(found, expected, rtol=1e-12)


def test_embedding_dropout_drops_numbers_of_embeddings_in_training_only():
    plan = make("imdb", "baseline", "tiny", settings={"embedding_dropout": 0.5})
    family = plan.family(plan.data())
    model = family.model()
    seen = []
    model.embedding_dropout.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    tokens, _ = family.batch(torch.arange(8))
    model.train()(tokens)
    model.eval()(tokens)
    (before, dropped), (same, kept) = seen
    words = before.abs().sum(dim=2) > 0
    assert 0.4 < (dropped[words] == 0).double().mean() < 0.6
    assert torch.equal(same, kept)


def question(**changes):
    return SettingsQuestion(**{"task": "digits", "size": "tiny", "trials": 3, "seeds": 2} | changes)


def without_times(finding):
    found = json.loads(json.dumps(finding.as_json()))
    for one in (*found["trials"], *found["repeats"]):
        del one["seconds"]
    return found


class InThisProcess:
    """An engine without the start of a process, which takes longer than a tiny trial."""

    parallel = 1

    def __init__(self):
        self.ended = []

    @property
    def running(self):
        return len(self.ended)

    def start(self, job, folder, work):
        self.ended.append((job, ("done", work(job, folder, lambda update: None))))

    def events(self):
        ended, self.ended = self.ended, []
        return ended

    def stop(self):
        assert not self.ended


def search(folder, **changes):
    return tune_settings(question(**changes), folder, engine=InThisProcess(), cpu=True)


@pytest.fixture(scope="module")
def searched(tmp_path_factory, shared, data_dir):
    folder = tmp_path_factory.mktemp("settings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GASAM_CACHE", str(shared / "cache"))
        return folder, search(folder)


def test_search_begins_with_the_own_settings_and_chooses_by_the_mean_over_seeds(searched):
    folder, found = searched
    assert found.own.values == {}
    assert len(found.trials) == 3
    assert found.chosen() in found.finalists() or found.chosen() is found.own
    means = [found.mean(one) for one in found.ranked() if len(found.scores(one)) > 1]
    assert found.mean(found.chosen()) == max(means)
    [file] = (folder / "settings").glob("*.json")
    assert without_times(SettingsFinding.read(file)) == without_times(found)
    assert found.gradient_evaluations == sum(one.gradient_evaluations for one in (*found.trials, *found.repeats))


def test_finished_search_runs_nothing_again_and_goes_on_with_more_trials(searched):
    folder, found = searched
    assert search(folder).as_json() == found.as_json(), "with the same times, because nothing was run"
    more = search(folder, trials=4, seeds=1)
    assert more.trials[:3] == found.trials
    assert len(more.trials) == 4
    assert all(len(more.scores(one)) == 2 for one in more.finalists()), (
        "new finalists have as many seeds as earlier ones"
    )


def test_values_that_give_the_own_settings_are_the_own_settings(tmp_path):
    asked = question(space={name: None for name in question().ranges() if name != "epochs"} | {"epochs": (2,)})
    assert asked.ranges() == {"epochs": (2,)}
    assert asked.distinct({"epochs": 2}) == {}
    found = tune_settings(asked, tmp_path, engine=InThisProcess(), cpu=True)
    assert [one.values for one in found.trials] == [{}, {}, {}]
    assert found.chosen() is found.own


def test_whole_numbers_are_searched_for_whole_settings_only():
    ranges = question(space={"weight_decay": Span(0, 1), "epochs": Span(1, 4)}).ranges()
    assert not ranges["weight_decay"].whole
    assert ranges["epochs"].whole


def test_noise_is_known_though_the_own_settings_diverged(searched):
    _, found = searched
    diverged = found.own.model_copy(update={"valid": None, "error": None, "diverged": True})
    changed = replace(found, trials=(diverged, *found.trials[1:]), repeats=())
    assert changed.error > 0
    assert changed.chosen() in changed.trials[1:]
    assert "compared with" not in settings_conclusion(changed, "file")


@pytest.mark.slow
def test_killed_search_ends_as_one_that_was_never_killed(searched, tmp_path):
    _, found = searched
    words = ("tune", "digits", "--method", "baseline", "--size", "tiny", "--trials", "3", "--seeds", "2", "--jobs", "1")
    command = [sys.executable, "-m", "gasam", *words, "--cpu", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "settings").glob("*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ended = tune_settings(question(), tmp_path, cpu=True)
    assert without_times(ended) == without_times(found)


def test_search_ends_when_its_gradient_evaluations_are_spent(searched):
    folder, found = searched
    spent = search(folder, seed=7, trials=50, evaluations=1, seeds=1)
    assert len(spent.trials) == 1
    assert spent.gradient_evaluations == found.own.gradient_evaluations


def test_settings_of_another_task_or_size_are_refused(command, searched, tmp_path):
    folder, found = searched
    file = folder / "settings" / f"{found.name}.json"
    for words, sentence in (
        (("digits", "--size", "paper"), "changes size tiny: add --size tiny"),
        (("docstrings", "--size", "tiny"), "has the settings of digits: use it with that task"),
    ):
        ended = command("train", *words, "--settings-from", file, "--out", tmp_path)
        assert (ended.code, sentence in ended.err) == (2, True), ended.err


def test_joint_search_changes_the_walk_as_well():
    asked = question(method="ga-sam", joint=True)
    assert {"budget", "cap", "learning_rate"} <= asked.ranges().keys()
    plan = asked.plan({"budget": 0.3, "cap": 0.05, "learning_rate": 0.01})
    assert (plan.walk.budget, plan.walk.cap, plan.settings.learning_rate) == (0.3, 0.05, 0.01)
    trial_of_it = trial(80.0, budget=0.3, cap=0.05, learning_rate=0.01)
    found = SettingsFinding(schema=1, name="", task="digits", size="tiny", method="ga-sam", joint=True, seed=0,
                            settings={}, shared={}, data="", space={}, trials=(trial_of_it,))  # fmt: skip
    same = make("digits", "ga-sam", "tiny", 0, settings=found.settings_of(trial_of_it), walk=found.walk(trial_of_it))
    assert same.config() == plan.config(), "what the conclusion prints gives the same run"


def test_ranges_of_the_user_replace_those_of_the_task():
    asked = question(settings={"epochs": 3}, space={"dropout": None, "weight_decay": (0.0, 0.1)})
    assert asked.ranges()["weight_decay"] == (0.0, 0.1)
    assert not {"dropout", "epochs"} & asked.ranges().keys()
    assert asked.plan({"learning_rate": 0.5}).settings.epochs == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--method baseline --quantity joint", "baseline has no budget to search with the settings"),
        ("--method baseline --space dropout=0.1..2", "dropout must be < 1, got 2"),
        ("--method baseline --space nothing=0.1..2", "there is no setting 'nothing'"),
        ("--method baseline --space dropout=0..0.5 --set dropout=0.1", "dropout is fixed and searched: leave it out"),
        ("--method ga-sam --space dropout=0..0.5", "--space needs --quantity settings or joint"),
        ("--method baseline --evaluations 0", "--evaluations must be a whole number >= 1, got 0"),
        ("--method baseline --settings-from missing.json", "--settings-from must name a file of runs/settings"),
        ("--method baseline --norms 2", "--norms needs --quantity budget or epsilon"),
        ("--method baseline --cap 0.1", "--cap needs --quantity budget or epsilon"),
        ("--method ga-sam --quantity epsilon --cap 0.1", "--cap needs --quantity budget: leave out one of the two"),
        ("--method baseline --space dropout=[]", "the choices of dropout must not be empty"),
        ("--method baseline --space wieght_decay=null", "wieght_decay is not searched"),
        ("--method baseline --space epochs=1.5..3", "the range of epochs must be whole numbers, got 1.5..3"),
        ("--method sam --quantity settngs", "quantity must be budget, epsilon, settings or joint"),
    ],
)
def test_bad_input_is_answered_with_one_sentence(command, words, sentence, tmp_path):
    ended = command("tune", "digits", "--size", "tiny", *words.split(), "--out", tmp_path)
    assert ended.code == 2
    assert sentence in ended.err
    assert "Traceback" not in ended.err


def test_frame_of_a_search_has_a_row_for_each_trial_and_marks_the_chosen_one(searched):
    _, found = searched
    frame = settings_frame(found)
    assert list(frame["valid"]) == [found.mean(one) for one in found.trials]
    [chosen] = frame[frame["chosen"]].to_dict("records")
    assert chosen["valid"] == found.mean(found.chosen())
    assert all(chosen[name] == value for name, value in found.chosen().values.items())
    assert frame.attrs["settings"] == found.chosen().values
    make("digits", "baseline", "tiny", settings=frame.attrs["settings"])


def test_comparison_uses_the_settings_that_a_search_chose(command, searched, tmp_path):
    folder, found = searched
    [file] = [each for each in (folder / "settings").glob("*.json") if each.stem == found.name]
    chosen = SettingsFinding.read(file)
    shown = command("tune", "digits", "--size", "tiny", "--method", "baseline", "--trials", "3", "--seeds", "2",
                    "--out", folder)  # fmt: skip
    assert shown.code == 0, shown.err
    assert f"--settings-from {file}" in shown.out or "no settings are better than the task's own" in shown.out
    ended = command("train", "digits", "--size", "tiny", "--settings-from", file, "--out", tmp_path, "--json")
    assert ended.code == 0, ended.err
    settings = json.loads(ended.out)["settings"]
    for name, value in chosen.chosen().values.items():
        assert settings.get(name, 0.0) == value
