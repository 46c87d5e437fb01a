"""The page of ablations: rows like those of Tables 2 and 3, each beside GA-SAM with the same form of walk."""

import numpy as np
import pytest
from synthetic import record, records_of

from gasam.lab.methods import ABLATIONS, TABLE1
from gasam.lab.paper import studies
from gasam.lab.report import pages
from gasam.lab.report.ablation_questions import MASKS, SCALE, SIZE, STEPS, ablation_parts, ablations_among
from gasam.lab.report.contents import Contents
from gasam.lab.report.findings import of_ablations
from gasam.lab.report.frame import groups_of
from gasam.lab.report.notes import contrast
from gasam.lab.report.sections import every

SMALL = "small@3"
SOURCE = "tuned on validation, 4 tries"
SCORES = {
    "baseline": [84.0, 84.4, 84.2],
    "multi-step-defense": [84.9, 85.4, 85.3],
    "ga-sam": [86.0, 86.4, 86.2],
    "element-wise": [84.0, 84.5, 84.1],
    "scale-weight": [85.9, 86.4, 86.4],
}


def walks(scores, **walk):
    """Records of GA-SAM with options of its walk."""
    return [
        record("imdb", "ga-sam", score, size=SMALL, seed=seed, walk=walk, identity=f"{walk} {seed}")
        for seed, score in enumerate(scores, 1)
    ]


@pytest.fixture
def runs():
    return [
        *records_of("imdb", SCORES, size=SMALL),
        *walks([86.1, 86.5, 86.1], steps=3),
        *walks([85.0, 85.4, 85.3], budget=0.01),
        *walks([80.0, 81.4, 80.2], epsilon=1e-3),
        *walks([60.0, 61.4, 60.2], epsilon=1e-3, steps=2),
        *walks([86.0, 86.0, 86.0], walk_every=4),
    ]


def test_table_2_without_the_methods_of_table_1_are_the_ablations():
    assert {row.method for row in studies.load("table2").rows} - set(TABLE1) == set(ABLATIONS)


def test_rows_belong_to_the_question_that_they_ask(runs):
    found = {
        part.question: [part.full_name_of(group) for group in part.groups[1:]]
        for part in ablation_parts(Contents(runs))
    }
    assert found == {
        SCALE: ["T = 1", "GA-SAM", "Element-wise", "T = |w|"],
        STEPS: ["K = 1", "K = 3", "K = 1 (L-inf 0.001)", "K = 2 (L-inf 0.001)"],
        SIZE: ["GA-SAM (L-inf budget 0.01 with cap 0.01 and schedule)", "GA-SAM", "GA-SAM (L-inf 0.001)"],
    }
    assert all(part.groups[0].method == "baseline" for part in ablation_parts(Contents(runs)))


def test_rows_are_compared_with_the_recommended_walk(runs):
    steps = next(part for part in ablation_parts(Contents(runs)) if part.question == STEPS)
    plain, recommended, three, other_form, _ = steps.groups
    assert steps.lead is recommended
    assert steps.others == steps.groups[2:]
    assert steps.ablations == [three, steps.groups[-1]]
    assert [steps.versus_lead(group) for group in (plain, recommended)] == ["", "reference"]
    assert steps.versus_lead(other_form) == other_form.versus(recommended)
    two = [run for run in runs if run.seed < 3]
    told = list(of_ablations(Contents(two)))
    assert len(told) == 3
    assert all(sentence.endswith(" judged; nothing is decided.") for sentence in told), "two seeds decide nothing"


def test_the_sentences_are_corrected_for_the_number_of_rows(runs):
    """By the test of test_corrected.py. Groups that a table compares with GA-SAM share their variance."""
    assert list(of_ablations(Contents(runs))) == [
        f"imdb, size {SMALL}, {SCALE}: 3 of 3 rows judged; worse than GA-SAM: T = 1, Element-wise.",
        f"imdb, size {SMALL}, {STEPS}: 3 of 3 rows judged; worse than GA-SAM: K = 1 (L-inf 0.001), "
        "K = 2 (L-inf 0.001).",
        f"imdb, size {SMALL}, {SIZE}: 2 of 2 rows judged; worse than GA-SAM: GA-SAM (L-inf 0.001).",
    ]


def test_collapsed_and_undecided_rows_are_named():
    scores = {"baseline": [84.0, 84.4, 84.2], "ga-sam": [86.0, 86.4, 86.2], "scale-weight": [50.1, 50.0]}
    runs = records_of("imdb", scores, size=SMALL, worthless=50.0, test_error=0.5)
    [sentence] = of_ablations(Contents(runs))
    assert sentence.endswith(": 0 of 1 row judged; collapsed: T = |w|.")
    scores["scale-weight"] = [86.0, 86.1]
    [sentence] = of_ablations(Contents(records_of("imdb", scores, size=SMALL, worthless=50.0, test_error=0.5)))
    assert sentence.endswith("0 of 1 row judged; nothing is decided.")


def test_the_page_of_the_task_leaves_them_out_and_links_them(runs):
    shown = every(Contents(runs))
    [section] = shown["ablations"]
    assert section.title == f"imdb, size {SMALL}"
    [task] = shown["imdb"]
    assert "walk every 4" in task.parts[0], "another variant of GA-SAM is no part of the paper's"
    for name in ("Element-wise", "K = 3", "budget 0.01 ", "epsilon 0.001"):
        assert name not in task.parts[0]
        assert name not in task.parts[2]
    assert "T = 1" in section.parts[1]
    texts = {file.stem: text for file, text in pages.pages(Contents(runs), shown).items()}
    assert "[other forms of GA-SAM](ablations.md)" in texts["imdb"]
    assert "[ablations](results/ablations.md)" in texts["results"]
    assert "ablations" not in every(Contents(records_of("imdb", {"baseline": [1.0], "ga-sam": [2.0]})))


def hidden(runs):
    """The ablations, as their method and what differs in their walk."""
    groups = groups_of(runs, "imdb", SMALL)
    keys = ablations_among(groups)
    return [(group.method, group.other_walk()) for group in groups if group.key in keys]


BASE = {"baseline": [84.0, 84.4, 84.2], "ga-sam": [86.0, 86.4, 86.2]}


def test_what_changes_two_parts_or_another_option_stays_on_the_page_of_the_task():
    runs = records_of("imdb", BASE, size=SMALL)
    kept = [
        *walks([85.0] * 3, steps=2, budget=1.0),
        *walks([85.0] * 3, walk_progress=0.5),
        *walks([85.0] * 3, same_noise=True),
        *records_of("imdb", {"element-wise": [85.0]}, size=SMALL, walk={"same_noise": True}),
        *records_of("imdb", {"scale-weight": [85.0]}, size=SMALL, walk={"steps": 2}),
        *records_of("imdb", {"scale-weight": [85.0]}, size=SMALL, settings={"epochs": 7}),
    ]
    assert hidden(runs + kept) == []
    assert hidden([*runs, *walks([85.0] * 3, steps=2)]) == [("ga-sam", {"steps": 2})]


def test_the_recommended_walk_is_the_reference_also_beside_a_smaller_tuned_one():
    tuned = [
        record("imdb", "ga-sam", 87.0, size=SMALL, seed=seed, walk={"budget": 0.03, "cap": 0.1}, epsilon_source=SOURCE)
        for seed in (1, 2, 3)
    ]
    runs = [*records_of("imdb", BASE, size=SMALL), *tuned, *walks([85.0] * 3, budget=0.3)]
    [part] = ablation_parts(Contents(runs))
    assert part.lead.other_walk() == {}
    assert [part.name_of(group) for group in part.groups] == ["Baseline", "GA-SAM", "GA-SAM", "GA-SAM"]
    assert [part.versus_lead(group) for group in part.groups].index("reference") == 2, "sorted by the budget"


def test_a_tuned_budget_is_no_row_of_table_2():
    tuned = [
        record("imdb", "multi-step-defense", 80.0, size=SMALL, seed=seed, walk={"budget": 0.01}, epsilon_source=SOURCE)
        for seed in (1, 2, 3)
    ]
    part = next(iter(ablation_parts(Contents([*records_of("imdb", SCORES, size=SMALL), *tuned]))))
    assert [group.tuned for group in part.groups] == [False] * 5


def test_a_second_table_of_t_has_ga_sam_with_the_same_size_of_the_walk(runs):
    """The rows of another cap are compared with GA-SAM under that cap, and no other question shows them."""
    wide = {"budget": 0.1, "cap": 0.1}
    scores = {"scale-weight": [85.0, 85.5, 85.4], "multi-step-defense": [84.0, 84.6, 84.3]}
    found = [*runs, *walks([86.6, 87.0, 86.9], **wide), *records_of("imdb", scores, size=SMALL, walk=wide)]
    parts = {part.question: part for part in ablation_parts(Contents(found))}
    second = parts[f"{SCALE} at L-inf budget 0.1 with cap 0.1"]
    assert list(parts) == [SCALE, second.question, STEPS, SIZE]
    assert [second.name_of(group) for group in second.groups] == ["Baseline", "T = 1", "GA-SAM", "T = |w|"]
    assert second.lead is second.groups[2]
    differences = np.subtract(scores["scale-weight"], [86.6, 87.0, 86.9])
    assert second.versus_lead(second.groups[3]).startswith(f"{differences.mean():.2f} [")
    elsewhere = {group.key for part in parts.values() if part is not second for group in part.groups}
    assert not {group.key for group in second.ablations} & elsewhere
    keys = ablations_among(groups_of(found, "imdb", SMALL))
    assert {group.key for group in second.ablations} <= keys, "the page of the task leaves them out"


def test_a_walk_that_moves_nothing_is_the_control_and_no_size(runs):
    """It has a table of its own, with validation, and with shared masks beside it."""
    last = {"epoch": 1, "walk": {"predicted_rise": 1e-6, "rise": 0.002}}
    control = [
        run.model_copy(update={"valid": 80.0, "curve": [last]}) for run in walks([85.1, 85.5, 85.3], budget=1e-6)
    ]
    found = [*runs, *control, *walks([84.2, 84.6, 84.4], same_noise=True)]
    parts = {part.question: part for part in ablation_parts(Contents(found))}
    assert list(parts) == [SCALE, STEPS, SIZE, MASKS]
    part = parts[MASKS]
    assert [part.full_name_of(group) for group in part.groups[1:]] == ["Control", "Shared masks", "GA-SAM"]
    assert not any(group.is_control for group in parts[SIZE].groups)
    told = f"imdb, size {SMALL}, {MASKS}: 2 of 2 rows judged; worse than GA-SAM: Control, Shared masks."
    assert told in of_ablations(Contents(found))
    [section] = every(Contents(found))["ablations"]
    table = section.parts[section.parts.index(f"### {part.heading}") + 1]
    [row] = [line for line in table.splitlines() if line.startswith("| Control")]
    cells = dict(zip(table.splitlines()[0].split("|"), row.split("|"), strict=True))
    assert "no displacement (budget 1e-06)" in row
    assert float(cells[" validation "]) == pytest.approx(80.0)
    assert cells[" predicted rise "].strip() == "0.0000"
    assert cells[" measured rise "].strip() == "0.0020"


def test_shared_masks_may_have_another_budget(runs):
    """A budget with the measured rise of new masks: it stands in the same table, with its size in its name."""
    control, shared = walks([85.1, 85.5, 85.3], budget=1e-6), walks([84.2, 84.6, 84.4], same_noise=True, budget=0.05)
    *_, part = ablation_parts(Contents([*runs, *control, *shared]))
    assert [part.full_name_of(group) for group in part.groups[1:]] == [
        "Control",
        "Shared masks (L-inf budget 0.05 with cap 0.01 and schedule)",
        "GA-SAM",
    ]


def test_another_start_of_the_walk_is_no_second_table(runs):
    """The start follows the number of epochs, so it asks no question. The recommended walk stays on its page."""
    later = walks([86.5, 86.7, 86.6], start_epoch=2)
    assert [part.question for part in ablation_parts(Contents([*runs, *later]))] == [SCALE, STEPS, SIZE]
    assert ("ga-sam", {}) not in hidden([*runs, *later])


def test_a_reference_that_collapsed_is_named():
    scores = {"baseline": [84.0, 84.4, 84.2], "ga-sam": [50.0, 50.4, 50.2], "scale-weight": [84.1, 84.0, 84.3]}
    [told] = of_ablations(Contents(records_of("imdb", scores, size=SMALL, worthless=50.0, test_error=0.5)))
    assert told.endswith("; GA-SAM itself collapsed.")


def test_runs_on_other_data_are_left_out():
    runs = records_of("imdb", SCORES, size=SMALL)
    other = records_of("imdb", SCORES, size=SMALL, data={"hash": "other", "notes": []})
    [part] = ablation_parts(Contents(runs + other))
    assert len({group.data for group in part.groups}) == 1


def test_in_a_comparison_ga_sam_stands_beside_its_ablations(runs):
    groups = groups_of(runs, "imdb", SMALL)
    lead = next(group for group in groups if group.method == "ga-sam")
    assert [other.method for other, _ in contrast(groups, lead)] == [
        "multi-step-defense",
        "element-wise",
        "scale-weight",
    ]


def test_the_page_shows_how_far_walks_went_after_the_cap():
    """The mean over seeds, of the last epoch; records without it have an empty cell."""
    runs = records_of("imdb", SCORES, size=SMALL)
    for run in runs:
        if run.method == "scale-weight":
            run.curve[0]["walk"] = {"predicted_rise": 9.0}
            run.curve[-1]["walk"] = {"predicted_rise": run.seed / 100}
    [section] = every(Contents(runs))["ablations"]
    rows = [line.split(" | ") for line in section.parts[1].splitlines()]
    assert "predicted rise" in rows[0]
    assert [row[-2] for row in rows if row[0].startswith(r"| T = \|w\|")] == ["0.0200"]
    assert [row[-2] for row in rows if row[0] == "| Element-wise"] == [""]
