"""Tables: a row per method and variant, a cell per figure, and notes that say what the figures are."""

from pathlib import Path
from statistics import mean, stdev

import pytest

from fedclass.errors import FedclassError
from fedclass.report.tables import Figure, figure, results_table
from fedclass.runs.results import Result


def result(method="fedclass", seed=0, *, last=(40.0, 80.0), overall=60.0, forgetting=20.0, **other):
    summary = {
        "method": method,
        "variant": "paper",
        "dataset": "synnum",
        "official_data": True,
        "tasks": [5] * len(last),
        "seed": seed,
        "accuracy_matrix": [list(last)[: t + 1] if t == len(last) - 1 else [90.0] * (t + 1) for t in range(len(last))],
        "accuracy_last": overall,
        "forgetting_fedclass": forgetting,
    }
    return Result(Path("runs") / f"{method}-s{seed}", summary | other)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((), "-"),
        ((61.26,), "61.3"),
        ((0.0,), "0.0"),
        ((40.0, 60.0), "50.0 ± 14.1"),
        ((1.0, 2.0, 3.0), "2.0 ± 1.0"),
        ((50.0, 50.0), "50.0 ± 0.0"),
        ((-1.5, -2.5), "-2.0 ± 0.7"),
    ],
)
def test_a_figure_is_a_mean_and_the_deviation_of_a_sample(values, text):
    """Divided by n - 1: three seeds are a sample of all seeds."""
    assert str(Figure(values)) == text


def test_a_figure_leaves_out_what_has_no_value():
    assert figure([result(forgetting=None)], "forgetting_fedclass") == "-"
    assert figure([result(forgetting=None), result(forgetting=4.0)], "forgetting_fedclass") == "4.0"
    assert figure([result(forgetting=0.0)], "forgetting_fedclass") == "0.0"


def test_a_table_of_one_run():
    table = results_table([result(last=(40.0, 80.0, 70.04), overall=63.35, forgetting=-2.5)])
    assert table.title == "synnum {5,5,5}, seed 0"
    assert table.columns == ("method (variant)", "task 1", "task 2", "task 3", "global", "forgetting")
    assert table.rows == (("fedclass (paper)", "40.0", "80.0", "70.0", "63.4", "-2.5"),)


def test_accuracies_are_those_after_the_last_task():
    matrix = [[91.0], [92.0, 93.0], [11.0, 22.0, 33.0]]
    (row,) = results_table([result(last=(0, 0, 0), accuracy_matrix=matrix)]).rows
    assert row[1:4] == ("11.0", "22.0", "33.0")


def test_seeds_of_a_method_become_one_row_with_mean_and_deviation():
    firsts, totals, lost = (40.0, 44.0, 45.0), (60.0, 61.0, 65.0), (20.0, 10.0, 30.0)
    runs = [
        result(seed=seed, last=(first, 80.0), overall=overall, forgetting=forgetting)
        for seed, first, overall, forgetting in zip((2, 0, 1), firsts, totals, lost, strict=True)
    ]
    table = results_table(runs)
    assert table.title == "synnum {5,5}, seeds 0, 1, 2: mean ± deviation"
    assert table.rows == (
        (
            "fedclass (paper)",
            f"{mean(firsts):.1f} ± {stdev(firsts):.1f}",
            "80.0 ± 0.0",
            f"{mean(totals):.1f} ± {stdev(totals):.1f}",
            "20.0 ± 10.0",
        ),
    )


def test_methods_and_variants_are_rows_of_their_own_in_order_of_appearance():
    runs = [
        result("fedavg", overall=50.0),
        result("icarl", variant="released", overall=40.0),
        result("icarl", overall=70.0),
        result("fedavg", 1, overall=52.0),
    ]
    rows = results_table(runs).rows
    assert [row[0] for row in rows] == ["fedavg (paper)", "icarl (released)", "icarl (paper)"]
    assert [row[-2] for row in rows] == ["51.0 ± 1.4", "40.0", "70.0"]


def test_with_one_task_there_is_no_forgetting():
    table = results_table([result(last=(88.0,), forgetting=None), result(last=(90.0,), forgetting=None, seed=1)])
    assert table.title.startswith("synnum {5}, seeds 0, 1")
    assert table.columns == ("method (variant)", "task 1", "global", "forgetting")
    assert table.rows == (("fedclass (paper)", "89.0 ± 1.4", "60.0 ± 0.0", "-"),)


def test_every_row_has_a_cell_for_every_column():
    table = results_table([result("a", last=(1.0, 2.0, 3.0)), result("b", last=(4.0, 5.0, 6.0))])
    assert {len(row) for row in table.rows} == {len(table.columns)} == {6}


def test_notes_say_what_the_figures_are():
    notes = " ".join(results_table([result()]).notes)
    assert "percent" in notes
    assert "class-balanced" in notes
    assert "per image" in notes
    assert "forgetting_fedclass" in notes
    assert "UNOFFICIAL" not in notes


def test_unofficial_data_is_named_as_such():
    notes = results_table([result(official_data=False, dataset="cifar10")]).notes
    assert notes[-1] == "UNOFFICIAL DATA: the files of cifar10 do not have the published checksums."


def test_one_run_on_unofficial_data_is_enough_for_the_note():
    notes = results_table([result(seed=0), result(seed=1, official_data=False)]).notes
    assert any("UNOFFICIAL DATA" in note for note in notes)


@pytest.mark.parametrize("other", [{"dataset": "cifar10"}, {"tasks": [7, 3]}, {"last": (1.0, 2.0, 3.0)}])
def test_runs_on_other_data_or_tasks_are_not_averaged(other):
    """Refused, or told apart: no cell may be the mean of 20 and 60."""
    try:
        table = results_table([result(overall=20.0), result(seed=1, **{"overall": 60.0} | other)])
    except FedclassError:
        return
    assert not any(cell.startswith("40.0") for row in table.rows for cell in row[-2:])
