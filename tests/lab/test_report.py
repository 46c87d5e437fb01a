"""Tables and figures from records: numbers against numpy and scipy, and nothing that was not measured."""

import json
import re

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats
from synthetic import STEPS, record, records_of

from gasam.lab.errors import InputError
from gasam.lab.paper import studies
from gasam.lab.record import AnalysisRecord, Summary
from gasam.lab.record import as_json as as_record
from gasam.lab.report.comparison import comparison
from gasam.lab.report.frame import group_runs
from gasam.lab.report.labels import configuration_labels, label
from gasam.lab.report.paper_tables import study_table
from gasam.lab.report.pictures import GA_SAM, comparison_figures, draw, spread
from gasam.lab.statistics import paired_difference, summary
from gasam.lab.tables import Cell, Column, Table, as_json, markdown, of_texts, tabulated

SCORES = {
    "baseline": [84.4, 84.5, 84.2, 84.6],
    "sam": [84.7, 84.9, 84.1, 84.8],
    "ga-sam": [86.0, 86.2, 85.8, 86.1],
}
FLOATS = some.floats(-1e6, 1e6)


def values(table):
    """JSON's rows by label, after a journey through JSON itself."""
    return {row["label"]: row for row in json.loads(json.dumps(as_json(table), allow_nan=False))["rows"]}


def texts(table):
    """What people read, by label."""
    shown = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return dict(zip(labels(table), shown, strict=True))


def labels(table):
    return [row["label"] for row in table.values]


@given(some.lists(FLOATS, min_size=2, max_size=8))
def test_summary_is_mean_and_sample_deviation(numbers):
    found = summary(numbers)
    assert found.mean == pytest.approx(numpy.mean(numbers), rel=1e-9, abs=1e-6)
    assert found.std == pytest.approx(numpy.std(numbers, ddof=1), rel=1e-6, abs=1e-6)
    assert found.seeds == len(numbers)


def test_few_numbers_have_no_spread_and_no_numbers_have_nothing():
    assert summary([3.0]) == (3.0, None, 1)
    assert summary([]) is None
    assert paired_difference({1: 2.0}, {2: 1.0}) is None
    assert paired_difference({1: 2.0, 2: 9.0}, {1: 1.5}) == (0.5, None, None, 1)


@given(
    some.lists(some.tuples(FLOATS, FLOATS), min_size=2, max_size=6), some.floats(0.5, 0.99), some.floats(-100.0, 100.0)
)
def test_difference_is_paired_with_students_interval(pairs, confidence, shift):
    ours, theirs = (dict(enumerate(side)) for side in zip(*pairs, strict=True))
    found = paired_difference(ours, theirs | {99: shift}, confidence)
    differences = numpy.subtract(*zip(*pairs, strict=True))
    with numpy.errstate(all="ignore"):
        low, high = stats.t.interval(
            confidence, len(pairs) - 1, loc=differences.mean(), scale=differences.std(ddof=1) / len(pairs) ** 0.5
        )
    assert found.pairs == len(pairs)
    assert found.mean == pytest.approx(differences.mean(), rel=1e-9, abs=1e-6)
    if differences.std(ddof=1) > 1e-6:
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6, abs=1e-5)


def test_comparison_shows_result_difference_paper_and_cost():
    table = comparison(records_of("imdb", SCORES), "imdb", "small")
    assert labels(table) == ["Baseline", "SAM", "GA-SAM"]
    ours = values(table)["GA-SAM"]
    assert ours["method"] == "ga-sam"
    assert ours["test"]["mean"] == pytest.approx(numpy.mean(SCORES["ga-sam"]))
    assert ours["test"]["std"] == pytest.approx(numpy.std(SCORES["ga-sam"], ddof=1))
    assert ours["test"]["seeds"] == {"1": 86.0, "2": 86.2, "3": 85.8, "4": 86.1}
    paired = stats.ttest_rel(SCORES["ga-sam"], SCORES["baseline"]).confidence_interval(0.95)
    assert (ours["difference"]["low"], ours["difference"]["high"]) == pytest.approx((paired.low, paired.high))
    assert ours["paper"] == {"mean": 86.11, "std": 0.22}
    assert ours["paper_difference"] == 1.69
    epochs = record("imdb").settings["epochs"]
    assert ours["gradient_evaluations"] == {"mean": 2 * STEPS * epochs, "relative": 2.0}
    shown = texts(table)["GA-SAM"]
    assert shown["accuracy, % (higher is better)"] == "86.03 ± 0.17 (4 seeds)"
    assert shown["vs baseline, points [95% interval]"].startswith("+1.60 [+1.")
    assert shown["paper, %"] == "86.11 ± 0.22"
    assert shown["gradient evaluations"].endswith("(2.00x)")


def test_baseline_is_not_compared_with_itself():
    table = comparison(records_of("imdb", SCORES), "imdb", "small")
    assert values(table)["Baseline"]["difference"] is None
    assert texts(table)["Baseline"]["vs baseline, points [95% interval]"] == ""


def test_lower_is_better_is_said_and_the_sign_stays_a_sign():
    table = comparison(records_of("ptb", {"baseline": [90.0], "ga-sam": [88.0]}), "ptb", "small")
    shown = texts(table)["GA-SAM"]
    assert shown["perplexity (lower is better)"] == "88.00 (1 seed)"
    assert shown["vs baseline, perplexity [95% interval]"] == "-2.00"
    assert shown["paper's difference, perplexity"] == "-2.18"


def test_what_nobody_measured_is_absent():
    table = comparison(records_of("imdb", {"ga-sam": [86.0]}), "imdb", "small")
    assert values(table)["GA-SAM"]["difference"] is None
    assert values(table)["GA-SAM"]["gradient_evaluations"]["relative"] is None
    assert values(table)["GA-SAM"]["test"]["std"] is None
    assert not comparison([], "imdb", "small").rows
    mnist = comparison(records_of("mnist", {"baseline": [97.0], "sam": [97.5]}), "mnist", "small")
    assert "paper" not in mnist.columns
    assert values(mnist)["SAM"]["paper"] is None


def test_diverged_runs_are_counted_and_left_out_of_the_mean():
    table = comparison(
        records_of("imdb", {"baseline": [84.0, 85.0, 86.0], "sam": [None, None], "ga-sam": [87.0, None, 88.0]}),
        "imdb",
        "small",
    )
    metric = table.columns[1]
    assert "diverged" in texts(table)["SAM"][metric]
    assert texts(table)["GA-SAM"][metric].startswith("87.00, 88.00 (2 seeds, 1 ")
    found = values(table)
    assert found["SAM"]["test"] == {"mean": None, "std": None, "seeds": {}, "diverged": 2}
    assert found["SAM"]["difference"] is None
    assert found["GA-SAM"]["test"]["diverged"] == 1
    assert found["GA-SAM"]["difference"]["mean"] == pytest.approx(((87 - 84) + (88 - 86)) / 2)
    assert found["GA-SAM"]["gradient_evaluations"]["relative"] == 2.0
    late = comparison([record("imdb", "sam", 80.0, diverged=True)], "imdb", "small")
    assert late.values[0]["test"]["diverged"] == 1


def test_other_configurations_of_a_method_are_rows_of_their_own():
    runs = records_of("imdb", SCORES, size="paper")
    runs += [
        record("imdb", "ga-sam", 70.0, size="paper", walk={"epsilon": 3e-4}),
        record("imdb", "ga-sam", 71.0, size="paper", walk={"steps": 2, "norm": 2.0}),
        record("imdb", "ga-sam", 72.0, size="paper", walk={"same_noise": True}),
        record("imdb", "ga-sam", 73.0, size="paper", settings={"epochs": 40, "dropout": 0.25}),
        record("imdb", "baseline", 85.4, size="paper", settings={"epochs": 40}),
    ]
    table = comparison(runs, "imdb", "paper")
    assert values(table)["GA-SAM"]["test"]["mean"] == pytest.approx(numpy.mean(SCORES["ga-sam"]))
    assert set(labels(table)) == {
        "Baseline",
        "Baseline (epochs 40)",
        "SAM",
        "GA-SAM",
        "GA-SAM (epsilon 0.0003)",
        "GA-SAM (L2, K = 2)",
        "GA-SAM (same noise)",
        "GA-SAM (epochs 40, dropout 0.25)",
    }
    assert values(table)["Baseline (epochs 40)"]["difference"]["mean"] == pytest.approx(1.0)
    assert values(table)["Baseline (epochs 40)"]["paper"] is None
    assert values(table)["GA-SAM (epochs 40, dropout 0.25)"]["difference"] is None
    assert values(table)["GA-SAM (epsilon 0.0003)"]["paper"]["mean"] == 86.11


def test_what_all_rows_share_is_said_once():
    runs = [record("imdb", method, settings={"epochs": 3}) for method in ("baseline", "sam")]
    table = comparison(runs, "imdb", "small")
    assert labels(table) == ["Baseline", "SAM"]
    usual = record("imdb").settings["epochs"]
    assert any("epochs 3" in note and f"epochs {usual}" in note for note in table.notes)
    assert values(table)["SAM"]["paper"]["mean"] == 84.75


def test_other_data_is_never_averaged_in():
    runs = [record("classify", seed=1), record("classify", seed=2, data={"hash": "another0", "notes": []})]
    assert sorted(map(label, group_runs(runs))) == ["Baseline (data another0)", "Baseline (data classify)"]
    walked = record("classify", "sam", 81.0, data={"hash": "another0", "notes": []})
    table = comparison([runs[0], walked], "classify", "small")
    assert values(table)["SAM (data another0)"]["difference"] is None


@given(some.permutations(records_of("imdb", SCORES)))
def test_order_and_repetition_of_records_do_not_matter(runs):
    usual = comparison(records_of("imdb", SCORES), "imdb", "small")
    assert comparison([*runs, *runs[:3]], "imdb", "small") == usual


def test_notes_say_what_differs_from_the_paper():
    runs = [record("imdb", size="tiny", data={"hash": "x", "notes": ["two classes instead of three"]})]
    notes = comparison(runs, "imdb", "tiny").notes
    assert "Data: two classes instead of three." in notes
    [ours] = [note for note in notes if note.startswith("These runs: ")]
    [paper] = [note for note in notes if note.startswith("Our size paper: ")]
    assert "epochs 2," in ours
    assert "epochs 10," in paper
    assert "learning rate" not in ours + paper
    assert not any("the paper has" in note for note in notes), "it does not state every setting"
    assert not comparison([record("imdb", size="paper")], "imdb", "paper").notes
    [twin] = comparison([record("docstrings")], "docstrings", "small").notes
    assert "no evidence" in twin


def test_study_table_has_every_row_and_says_what_was_not_run():
    runs = [*records_of("imdb", SCORES, size="paper"), record("imdb", "ga-sam", 85.0, size="paper", walk={"steps": 2})]
    table = study_table(studies.load("table3"), runs, "paper")
    assert len(table.rows) == len(studies.load("table3").rows)
    found = values(table)
    assert {row["task"] for row in found.values()} == {"imdb"}
    assert found["K = 1"]["test"] == found["L-inf, 1 x (epsilon 0.0001)"]["test"]
    assert found["K = 2"]["test"]["mean"] == 85.0
    assert found["K = 2"]["paper_difference"] == 1.41
    assert found["K = 3"]["test"] is None
    assert texts(table)["K = 3"]["test"] == "not run"
    assert "ptb" in table.notes[-1]


def test_study_table_without_records_shows_the_paper_alone():
    table = study_table(studies.load("table5"), [], "paper")
    assert {row["test"] for row in texts(table).values()} == {"not run"}
    assert table.columns == ("task", "row", "test", "paper", "paper's difference", "verdict")


def test_study_takes_other_radii_of_its_methods_but_no_other_tables_rows():
    runs = [
        record("imdb", size="paper"),
        record("imdb", "ga-sam", 86.0, size="paper"),
        record("imdb", "ga-sam", 85.0, size="paper", walk={"epsilon": 3e-4}),
        record("imdb", "ga-sam", 84.0, size="paper", walk={"epsilon": 2e-4}),
        record("imdb", "ga-sam", 83.0, size="paper", walk={"steps": 2}),
        record("imdb", "freelb", 82.0, size="paper"),
    ]
    one = values(study_table(studies.load("table1"), runs, "paper"))
    assert {label for label, row in one.items() if row["test"]} == {"Baseline", "GA-SAM", "GA-SAM (epsilon 0.0003)"}
    three = values(study_table(studies.load("table3"), runs, "paper"))
    assert {label for label, row in three.items() if row["test"]} == {
        "Baseline",
        "K = 1",
        "K = 2",
        "L-inf, 1 x (epsilon 0.0001)",
        "L-inf, 2 x (epsilon 0.0002)",
    }


def test_markdown_has_a_line_a_row_and_escapes_bars():
    table = study_table(studies.load("table2"), records_of("imdb", SCORES), "small")
    lines = markdown(table).splitlines()
    rows = [re.split(r"(?<!\\)\|", line) for line in lines if line.startswith("|")]
    assert len(rows) == len(table.rows) + 2
    assert {len(row) for row in rows} == {len(table.columns) + 2}
    assert any(r"T = \|w\| / \|g\|" in line for line in lines)
    assert lines[-len(table.notes) :] == [f"- {note}" for note in table.notes]


def test_json_of_a_plain_table_is_its_text():
    table = Table("Tasks", ("task", "metric"), (("imdb", "accuracy"),))
    assert as_json(table)["rows"] == [{"task": "imdb", "metric": "accuracy"}]


def test_a_column_is_defined_once_for_people_and_for_programs():
    columns = (
        Column("", lambda row: Cell("", row * 10), "tenfold"),
        Column("number", lambda row: Cell(f"{row:.1f}", row), "number"),
        Column("empty", lambda row: "", "nothing"),
        Column("odd", lambda row: "odd" if row % 2 else ""),
    )
    table = tabulated("Numbers", columns, [1, 2])
    assert (table.columns, table.rows) == (("number", "odd"), (("1.0", "odd"), ("2.0", "")))
    assert as_json(table)["rows"] == [
        {"tenfold": 10, "number": 1, "nothing": None},
        {"tenfold": 20, "number": 2, "nothing": None},
    ]
    texts = of_texts("Texts", [{"a": "1", "b": ""}, {"a": "2", "b": ""}])
    assert (texts.columns, texts.rows) == (("a",), (("1",), ("2",)))
    assert of_texts("None", []).rows == tabulated("None", columns, []).rows == ()


def test_analysed_runs_are_labelled_by_their_configuration():
    runs = [record("imdb"), record("imdb", "ga-sam"), record("imdb", "ga-sam", walk={"steps": 2}), record("ptb")]
    found = []
    for run in map(as_record, runs):
        summary = Summary.model_validate({key: run[key] for key in Summary.model_fields if key in run})
        found.append(AnalysisRecord(kind="attack", options={}, run=summary, found={}))
    labels = configuration_labels(found)
    assert [labels[each.run.key] for each in found] == ["Baseline", "GA-SAM", "GA-SAM (K = 2)", "Baseline"]


def test_records_of_an_unknown_method_are_refused():
    with pytest.raises(InputError, match="a record's method must be one of baseline"):
        comparison([record("imdb").model_copy(update={"method": "magic"})], "imdb", "small")


def test_figure_is_written_whole_with_every_method_in_its_legend(tmp_path):
    runs = records_of("imdb", SCORES | {"asam": [None]})
    comparison_figures(runs, tmp_path / "deep" / "figure.png")
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["figure.png"]
    png = (tmp_path / "deep" / "figure.png").read_bytes()
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000
    assert width > 1200
    assert height > 400


def test_figure_draws_means_over_seeds_and_every_seed():
    runs = records_of("imdb", SCORES | {"asam": [None]})
    left, right, _ = draw(runs).axes
    names = ["Baseline", "SAM", "ASAM", "GA-SAM"]
    assert [text.get_text() for text in left.get_legend().get_texts()] == names
    assert [tick.get_text() for tick in right.get_yticklabels()] == names
    ours = left.get_lines()[3]
    curves = [[row["valid"] for row in run.curve] for run in runs if run.method == "ga-sam"]
    assert ours.get_ydata() == pytest.approx(numpy.mean(curves, axis=0))
    assert ours.get_xdata()[0] == 2 * STEPS
    assert ours.get_color() == GA_SAM
    assert ours.get_linewidth() > max(line.get_linewidth() for line in left.get_lines()[:3])
    means = [
        line.get_xdata()[0] for line in right.get_lines() if line.get_marker() == "|" and line.get_markersize() > 10
    ]
    assert means == pytest.approx([numpy.mean(s) for s in SCORES.values()])
    dots = [line.get_xdata() for line in right.get_lines() if line.get_marker() == "o"]
    assert [list(found) for found in dots] == list(SCORES.values())
    assert any("diverged" in text.get_text() for text in right.texts)


def test_names_of_close_points_do_not_overlap():
    assert spread([1.0, 2.0, 5.0], [1.0, 1.0, 1.0]) == [1.0, 2.0, 5.0]
    assert spread([1.0, 1.0, 1.5, 9.0], [1.0, 1.0, 2.0, 1.0]) == pytest.approx([-1 / 3, 2 / 3, 13 / 6, 9.0])
    assert spread([], []) == []
    *_, costs = draw(records_of("imdb", {"baseline": [80, 80], "sam": [80.01, 80], "asam": [80, 80.02]})).axes
    heights = {name.get_text(): name.xyann[1] for name in costs.texts}
    low, high = costs.get_ylim()
    assert heights["ASAM"] - heights["SAM"] > 0.05 * (high - low)


def test_figure_has_a_row_of_panels_for_each_task_and_survives_odd_runs(tmp_path):
    never = record("ptb", "sam", None, curve=[])
    runs = [record("imdb"), record("ptb", test=90.0), never, record("en-vi", test=0.0), record("mnist", test=None)]
    assert len(draw(runs).axes) == 12
    comparison_figures([never], tmp_path / "nothing.png")
    files = comparison_figures(runs, tmp_path / "some.png")
    assert [file.name for file in files] == ["some.png", "some-2.png"], "at most six panels each"
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    with pytest.raises(InputError, match="nothing to draw"):
        draw([])


def test_the_papers_numbers_stand_beside_the_usual_ones_also_where_a_baseline_trained_longer():
    runs = [record("imdb"), record("imdb", "ga-sam"), record("imdb", settings={"epochs": 16})]
    notes = comparison(runs, "imdb", "small").notes
    [told] = [note for note in notes if note.startswith("These runs: ")]
    assert "epochs 4, " in told
    assert any(note.startswith("Our size paper: ") and "epochs 10, " in note for note in notes)


def test_ga_sam_is_compared_with_every_other_method_seed_by_seed():
    scores = {
        "baseline": [84.0, 84.1, 84.2],
        "sam": [84.0, 84.2, 84.1],
        "freelb": [80.0, 90.0, 85.0],
        "ga-sam": [86.0, 86.1, 86.2],
    }
    runs = [*records_of("imdb", scores), record("imdb", "asam", 87.0), *records_of("imdb", {"layer-sam": [80.0, 80.0]})]
    told = " ".join(note for note in comparison(runs, "imdb", "small").notes if "paired by seed" in note)
    low, high = stats.t.interval(0.95, 2, loc=2.0, scale=0.1 / 3**0.5)
    assert f"better (SAM: +2.00 [{low:+.2f}, {high:+.2f}])" in told
    assert "no clear difference (FreeLB: +1.10 [" in told
    assert "Layer-SAM" not in told, "two seeds decide nothing"
    assert "ASAM" not in told, "one common seed has no interval"
    worse = records_of("ptb", {"ga-sam": [90.0, 90.1, 90.2], "sam": [80.0, 80.1, 80.3]})
    [told] = [note for note in comparison(worse, "ptb", "small").notes if "paired by seed" in note]
    assert "worse (SAM: +9.97 [" in told


@pytest.mark.parametrize(
    "scores",
    [
        {"ga-sam": [None, 86.0, 86.1], "sam": [84.0, 84.1, 84.2]},
        {"ga-sam": [85.9, 86.0, 86.1], "sam": [None, 84.1, 84.2]},
    ],
)
def test_the_seeds_that_did_not_diverge_are_no_sample(scores):
    notes = comparison(records_of("imdb", scores), "imdb", "small").notes
    assert not any("paired by seed" in note for note in notes)
