"""Tables: a row per method and variant, a cell per figure, and notes that say what the figures are."""

from statistics import mean, stdev
from typing import get_args, get_type_hints

import pytest

from fedclass.data.schedule import StreamSettings, order_and_sizes
from fedclass.errors import RunError
from fedclass.report.formats import run_records
from fedclass.report.tables import OWN_ORDERS, MeanDeviation, comparison, mean_deviation, results_tables, row_records


def results_table(results):
    """The only one, where no run has validation images."""
    (table,) = results_tables(results)
    return table


def test_many_tasks_share_columns(result):
    """25 tasks: three a column, of which the last has one; a task without test images does not count."""
    last = tuple(float(task) for task in range(1, 26))
    run = result("fedavg", last=last)
    run.summary["accuracy_matrix"][-1][1] = None
    (table,) = results_tables([run])
    assert table.title.startswith("synnum {5,5,...,5} in 25 tasks")
    assert table.columns[1:3] == ("tasks 1 to 3", "tasks 4 to 6")
    assert table.columns[9:] == ("task 25", "global", "forgetting")
    assert table.rows[0][1:3] == ("2.0", "5.0")  # of 1 and 3; of 4, 5 and 6
    assert table.rows[0][9] == "25.0"
    assert "Columns of several tasks: the mean of their accuracies." in table.notes
    (few,) = results_tables([result("fedwa", last=last[:10])])
    assert few.columns[1:-2] == tuple(f"task {task}" for task in range(1, 11))
    assert not any("several tasks" in note for note in few.notes)


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
    assert str(MeanDeviation(values)) == text


def test_a_figure_leaves_out_what_has_no_value(result):
    assert mean_deviation([result(forgetting=None)], "forgetting_fedclass") == "-"
    assert mean_deviation([result(forgetting=None), result(forgetting=4.0)], "forgetting_fedclass") == "4.0"
    assert mean_deviation([result(forgetting=0.0)], "forgetting_fedclass") == "0.0"


def test_a_table_of_one_run(result):
    table = results_table([result(last=(40.0, 80.0, 70.04), overall=63.35, forgetting=-2.5)])
    assert table.title == "synnum {5,5,5}, seed 0"
    assert table.columns == ("method (variant)", "task 1", "task 2", "task 3", "global", "forgetting")
    assert table.rows == (("fedclass (paper)", "40.0", "80.0", "70.0", "63.4", "-2.5"),)


def test_accuracies_are_those_after_the_last_task(result):
    matrix = [[91.0], [92.0, 93.0], [11.0, 22.0, 33.0]]
    (row,) = results_table([result(last=(0, 0, 0), accuracy_matrix=matrix)]).rows
    assert row[1:4] == ("11.0", "22.0", "33.0")


def test_seeds_of_a_method_become_one_row_with_mean_and_deviation(result):
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


def test_methods_and_variants_are_rows_of_their_own_in_order_of_appearance(result):
    runs = [
        result("fedavg", overall=50.0),
        result("icarl", variant="released", overall=40.0),
        result("icarl", overall=70.0),
        result("fedavg", 1, overall=52.0),
    ]
    rows = results_table(runs).rows
    assert [row[0] for row in rows] == ["fedavg (paper)", "icarl (released), seed 0", "icarl (paper), seed 0"]
    assert [row[-2] for row in rows] == ["51.0 ± 1.4", "40.0", "70.0"]


def test_with_one_task_there_is_no_forgetting(result):
    table = results_table([result(last=(88.0,), forgetting=None), result(last=(90.0,), forgetting=None, seed=1)])
    assert table.title.startswith("synnum {5}, seeds 0, 1")
    assert table.columns == ("method (variant)", "task 1", "global", "forgetting")
    assert table.rows == (("fedclass (paper)", "89.0 ± 1.4", "60.0 ± 0.0", "-"),)


def test_every_row_has_a_cell_for_every_column(result):
    table = results_table([result("a", last=(1.0, 2.0, 3.0)), result("b", last=(4.0, 5.0, 6.0))])
    assert {len(row) for row in table.rows} == {len(table.columns)} == {6}


def test_notes_say_what_the_figures_are(result):
    notes = " ".join(results_table([result()]).notes)
    assert "percent" in notes
    assert "class-balanced" in notes
    assert "per image" in notes
    assert "forgetting_fedclass" in notes
    assert "UNOFFICIAL" not in notes


def test_unofficial_data_is_named_as_such(result):
    notes = results_table([result(official_data=False, dataset="cifar10")]).notes
    assert notes[-1] == "UNOFFICIAL DATA: the files of cifar10 do not have the published checksums."


def test_of_a_users_own_data_nothing_is_claimed(result):
    assert not [note for note in results_table([result(official_data=None)]).notes if "OFFICIAL" in note]


def test_one_run_on_unofficial_data_is_enough_for_the_note(result):
    notes = results_table([result(seed=0), result(seed=1, official_data=False)]).notes
    assert any("UNOFFICIAL DATA" in note for note in notes)


@pytest.mark.parametrize("other", [{"dataset": "cifar10"}, {"tasks": [7, 3]}, {"last": (1.0, 2.0, 3.0)}])
def test_runs_on_other_data_or_tasks_get_a_table_of_their_own(result, other):
    runs = [result(overall=20.0), result(seed=1, **{"overall": 60.0} | other)]
    with pytest.raises(RunError, match="separate tables"):
        results_table(runs)
    first, second = comparison(runs)
    assert [table.rows[0][-2] for table in (first, second)] == ["20.0", "60.0"]


def test_runs_that_differ_in_a_parameter_are_not_averaged(result):
    """Two values of beta are two rows, and say so."""
    runs = [result(seed=s, overall=50.0 + b, config={"method": {"beta": b}}) for b in (3.0, 8.0) for s in (0, 1)]
    rows = results_table(runs).rows
    assert [(row[0], row[-2]) for row in rows] == [
        ("fedclass (paper) beta=3", "53.0 ± 0.0"),
        ("fedclass (paper) beta=8", "58.0 ± 0.0"),
    ]


def test_differences_are_paired_by_seed_and_say_whether_they_are_more_than_chance(result):
    """The gap of 5 is certain although seeds scatter by 20; that of the third row is not."""
    totals = {"fedavg": (40.0, 60.0, 50.0), "fedclass": (45.0, 65.2, 54.8), "fedwa": (50.0, 55.0, 53.0)}
    runs = [
        result(method, seed, overall=value, forgetting=10.0 + seed)
        for method, values in totals.items()
        for seed, value in enumerate(values)
    ]
    _, differences = comparison(runs[::-1], against="fedavg")
    assert differences.title == "Differences from fedavg (paper), paired over seeds 0, 1, 2"
    assert differences.rows == (
        ("fedwa (paper)", "global", "+2.7", "[-16.0, +21.3]", "not distinguishable"),
        ("fedwa (paper)", "forgetting", "+0.0", "[+0.0, +0.0]", "not distinguishable"),
        ("fedclass (paper)", "global", "+5.0", "[+4.5, +5.5]", "higher"),
        ("fedclass (paper)", "forgetting", "+0.0", "[+0.0, +0.0]", "not distinguishable"),
    )


def test_without_a_reference_it_is_the_first_row_and_one_seed_has_no_interval(result):
    _, differences = comparison([result("fedavg", overall=50.0), result("fedwa", overall=42.5, forgetting=None)])
    assert differences.rows == (("fedwa (paper)", "global", "-7.5", "-", "one seed: no interval"),)
    assert "One seed ranks nothing" in differences.notes[0]


def test_one_row_has_nothing_to_differ_from(result):
    assert len(comparison([result(seed=0), result(seed=1)])) == 1


def test_seeds_that_differ_between_rows_are_named(result):
    runs = [result("fedavg", 0), result("fedavg", 2), result("fedwa", 0), result("fedwa", 1)]
    with pytest.raises(RunError) as error:
        comparison(runs)
    assert "fedavg (paper) lacks 1; fedwa (paper) lacks 2" in str(error.value)
    (table,) = comparison(runs, differences=False)
    assert comparison(runs, must=False) == [table]
    assert [row[0] for row in table.rows] == ["fedavg (paper), seeds 0, 2", "fedwa (paper), seeds 0, 1"]
    (table,) = comparison([*runs, result("fedwa", 2)], differences=False)
    assert [row[0] for row in table.rows] == ["fedavg (paper), seeds 0, 2", "fedwa (paper)"]


def test_rows_with_the_seeds_of_the_reference_are_compared_and_the_others_named(result):
    runs = [result("fedavg", 0), result("fedavg", 1), result("fedwa", 0), result("ewc", 0), result("ewc", 1)]
    table, differences = comparison(runs)
    assert [row[0] for row in table.rows] == ["fedavg (paper)", "fedwa (paper), seed 0", "ewc (paper)"]
    assert {row[0] for row in differences.rows} == {"ewc (paper)"}
    assert differences.notes[-1] == "Not compared, because their seeds are others: fedwa (paper)."
    compared = [record["label"] for record in row_records(runs) if "reference" in record]
    assert compared == ["ewc (paper)"]
    gaps = [record["method"] for record in run_records(runs) if "difference_accuracy_last" in record]
    assert gaps == ["fedavg", "fedavg", "ewc", "ewc"]


def validated(result, method, seed, validation, test, **other):
    figures = {"accuracy_matrix": [[90.0], [validation, 80.0]], "accuracy_last": validation, "forgetting_fedclass": 1.0}
    on_validation = {f"validation_{key}": value for key, value in figures.items()}
    return result(method, seed, overall=test, **on_validation, **other)


def test_with_validation_images_rows_are_compared_by_them_and_test_figures_told_of_the_best_alone(result):
    """fedavg would win on test images."""
    runs = [
        validated(result, "fedavg", 0, 50.0, 77.0),
        validated(result, "fedavg", 1, 52.0, 79.0),
        validated(result, "fedwa", 0, 61.0, 44.0),
        validated(result, "fedwa", 1, 55.0, 46.0),
    ]
    on_validation, differences, on_test = comparison(runs)
    assert on_validation.title == "synnum {5,5}, on validation images, seeds 0, 1: mean ± deviation"
    assert on_validation.columns == (
        "method (variant)",
        *(f"validation {name}" for name in ("task 1", "task 2", "global", "forgetting")),
    )
    assert [row[3] for row in on_validation.rows] == ["51.0 ± 1.4", "58.0 ± 4.2 *"]
    assert [row[1:3] for row in differences.rows] == [
        ("validation global", "+7.0"),
        ("validation forgetting", "+0.0"),
    ]
    assert on_test.title.startswith("synnum {5,5}, on test images")
    assert on_test.columns == ("method (variant)", "task 1", "task 2", "global", "forgetting")
    assert [(row[0], row[3]) for row in on_test.rows] == [("fedwa (paper)", "45.0 ± 1.4")]
    shown = " ".join(cell for table in (on_validation, differences, on_test) for row in table.rows for cell in row)
    assert "78" not in shown


def test_the_chosen_row_keeps_the_label_that_tells_it_apart(result):
    runs = [
        validated(result, "fedclass", 0, value, 40.0 + beta, config={"method": {"beta": beta}})
        for beta, value in ((1.0, 50.0), (3.0, 60.0))
    ]
    *_, on_test = comparison(runs)
    assert on_test.rows[0][0] == "fedclass (paper) beta=3"
    assert on_test.rows[0][3] == "43.0"


def test_nothing_is_chosen_as_long_as_runs_are_missing(result):
    runs = [validated(result, "fedavg", 0, 50.0, 77.0), validated(result, "fedwa", 0, 60.0, 44.0)]
    (only,) = comparison(runs, differences=False)
    assert [row[3] for row in only.rows] == ["50.0", "60.0"]
    (only,) = results_tables([*runs, validated(result, "fedwa", 1, 60.0, 44.0)])  # other seeds


def test_one_run_with_validation_images_has_both_tables(result):
    on_validation, on_test = comparison([validated(result, "fedavg", 0, 50.0, 77.0)])
    assert on_validation.rows[0][3] == "50.0"
    assert on_test.rows[0][3] == "77.0"


def test_runs_with_and_without_validation_images_never_share_a_table(result):
    plain, *others = comparison([result("fedavg", overall=33.0), validated(result, "fedwa", 0, 50.0, 77.0)])
    assert plain.columns[1] == "task 1"
    assert [row[0] for row in plain.rows] == ["fedavg (paper)"]
    assert [table.rows[0][0] for table in others] == ["fedwa (paper)"] * 2


def test_settings_of_one_method_on_test_images_are_told_how_to_choose(result):
    note = "Rows are compared on test images; to choose between them use data.validation=0.1"
    swept = [result(config={"method": {"beta": b}}) for b in (3.0, 8.0)]
    assert note in results_table(swept).notes
    assert note not in results_table([result("fedavg"), result("fedwa")]).notes


def test_a_table_says_how_much_of_the_data_was_used(result):
    counts = {"images_available": 943, "validation_images": 0, "test_images_used": 40, "test_images_available": 40}
    notes = results_table([result(images_used=92, **counts)]).notes
    assert "Each run trains on 92 of 943 images." in notes
    notes = results_table([result(images_used=92, **counts), result(seed=1, images_used=95, **counts)]).notes
    assert "Each run trains on 92 to 95 of 943 images." in notes
    assert not any("trains on" in note for note in results_table([result(images_used=943, **counts)]).notes)


def test_several_seeds_that_share_one_class_order_are_told(result):
    """Only orders that differ from seed to seed are in the deviation; without any, it is the natural one."""
    note = "One class order for all seeds: the deviation leaves out its variance (stream.class_order)."

    def notes(*orders):
        configs = [{"stream": {"class_order": order}} if order else {} for order in orders]
        return results_table([result("fedavg", seed, config=config) for seed, config in enumerate(configs)]).notes

    for order in (None, "natural", "released", [1, 0]):
        assert note in notes(order, order)
        assert note not in notes(order)
    for order in ("seeded", "released-by-seed"):
        assert note not in notes(order, order)


def test_the_orders_that_differ_from_seed_to_seed_are_those_of_streams():
    kinds = get_args(get_args(get_args(get_type_hints(StreamSettings, include_extras=True)["class_order"])[0])[0])
    assert "natural" in kinds
    for kind in kinds:
        orders = {tuple(order_and_sizes(StreamSettings(class_order=kind), 10, seed)[0]) for seed in (0, 1, 2)}
        assert len(orders) == (3 if kind in OWN_ORDERS else 1)


def test_rows_as_plain_values_say_what_the_tables_say(result):
    """Nothing is rounded; the reference has no difference from itself."""
    values = {"fedavg": (60.0, 61.0, 65.0), "fedwa": (70.0, 74.0, 75.0)}
    runs = [
        result(method=method, variant="standard", seed=seed, last=(40.0, 80.0), overall=overall, forgetting=4.0 * seed)
        for method, totals in values.items()
        for seed, overall in enumerate(totals)
    ]
    means, differences = comparison(runs)
    first, second = row_records(runs)
    for record, cells in zip((first, second), means.rows, strict=True):
        assert record["label"] == cells[0]
        assert f"{record['accuracy_last']:.1f} ± {record['accuracy_last_deviation']:.1f}" == cells[3]
        assert (record["accuracy_task_1"], record["accuracy_task_2"], record["seeds"]) == (40.0, 80.0, 3)
    assert not any(key.startswith("difference_") for key in first)
    (_, _, gap, reach, verdict), _ = differences.rows
    assert f"{second['difference_accuracy_last']:+.1f}" == gap
    low, high = second["difference_accuracy_last_low"], second["difference_accuracy_last_high"]
    assert f"[{low:+.1f}, {high:+.1f}]" == reach
    assert second["difference_accuracy_last_verdict"] == verdict
    assert second["reference"] == first["label"]
    (turned, _) = row_records(runs, against="fedwa")
    assert turned["difference_accuracy_last"] == -second["difference_accuracy_last"]
