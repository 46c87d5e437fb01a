"""The page of ablations: rows like those of Tables 2 and 3, each beside GA-SAM with the same form of walk."""

import numpy as np
import pytest
from scipy import stats
from synthetic import record, records_of

from gasam.lab.methods import ABLATIONS, TABLE1
from gasam.lab.paper import studies
from gasam.lab.report import pages
from gasam.lab.report.ablation_sections import SCALE, SIZE, STEPS, ablation_parts, is_ablation
from gasam.lab.report.contents import Contents
from gasam.lab.report.findings import of_ablations
from gasam.lab.report.frame import groups_of
from gasam.lab.report.notes import contrast
from gasam.lab.report.sections import every

SMALL = "small@3"
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
    found = {part.question: [part.full_name_of(group) for group in part.groups[1:]] for part in ablation_parts(runs)}
    budget = "L-inf budget 0.1 with cap 0.01"
    assert found == {
        SCALE: [f"T = 1 ({budget})", f"GA-SAM ({budget})", f"Element-wise ({budget})", f"T = |w| ({budget})"],
        STEPS: [f"K = 1 ({budget})", f"K = 3 ({budget})", "K = 2 (L-inf 0.001)"],
        SIZE: ["GA-SAM (L-inf budget 0.01 with cap 0.01)", f"GA-SAM ({budget})", "GA-SAM (L-inf 0.001)"],
    }
    assert all(part.groups[0].method == "baseline" for part in ablation_parts(runs))


def test_a_row_is_compared_with_ga_sam_of_the_same_form(runs):
    steps = next(part for part in ablation_parts(runs) if part.question == STEPS)
    _, recommended, three, other_form = steps.groups
    assert steps.lead_of(three) is recommended
    assert steps.lead_of(other_form) is None, "no epsilon was tuned"
    assert steps.others == [three, other_form]
    assert steps.standing(other_form) is None


def test_the_sentences_are_corrected_for_the_number_of_rows(runs):
    scale = next(part for part in ablation_parts(runs) if part.question == SCALE)
    defense = next(group for group in scale.groups if group.method == "multi-step-defense")
    differences = np.subtract(SCORES["multi-step-defense"], SCORES["ga-sam"])
    reach = stats.t.ppf(1 - 0.05 / 6, 2) * np.std(differences, ddof=1) / np.sqrt(3)
    assert differences.mean() + reach < 0, "worse also if it is one of three rows"
    assert scale.standing(defense, 3) == "worse"
    budget = "L-inf budget 0.1 with cap 0.01"
    assert list(of_ablations(Contents(runs))) == [
        f"imdb, size {SMALL}, {SCALE}, corrected for 3 rows: worse than GA-SAM: T = 1 ({budget}), "
        f"Element-wise ({budget}).",
        f"imdb, size {SMALL}, {STEPS}, corrected for 1 row: none is clearly better or worse than GA-SAM.",
        f"imdb, size {SMALL}, {SIZE}, corrected for 1 row: worse than GA-SAM: GA-SAM "
        "(L-inf budget 0.01 with cap 0.01).",
    ]


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
    assert "[another](ablations.md)" in texts["imdb"]
    assert "[ablations](results/ablations.md)" in texts["results"]
    assert "ablations" not in every(Contents(records_of("imdb", {"baseline": [1.0], "ga-sam": [2.0]})))


def test_another_method_is_what_ga_sam_is_compared_with_and_an_ablation_is_not(runs):
    groups = groups_of(runs, "imdb", SMALL)
    lead = next(group for group in groups if group.method == "ga-sam")
    assert [other.method for other, _ in contrast(groups, lead)] == ["multi-step-defense"]
    assert {group.method for group in groups if is_ablation(group)} == {"ga-sam", "element-wise", "scale-weight"}


def test_runs_with_other_settings_are_no_ablations():
    runs = records_of("imdb", SCORES, size=SMALL)
    runs += records_of("imdb", {"scale-weight": [85.0, 85.1, 85.2]}, size=SMALL, settings={"epochs": 7})
    other = [group for group in groups_of(runs, "imdb", SMALL) if group.settings["epochs"] == 7]
    assert len(other) == 1
    assert not is_ablation(other[0])
