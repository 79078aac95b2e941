"""The paper's figures, and ours beside them."""

import csv
import io

import pytest

from fedclass.errors import ConfigError
from fedclass.experiment.recipe import load, recipes
from fedclass.report.paper import CLAIMS, DIFFERS, Beside, beside_csv, beside_table, claimed, find, names, ours
from fedclass.report.rows import Label
from fedclass.runs.config_file import flat

METHODS = ["fedavg", "glfc", "fedicarl", "fedwa", "fedclass"]


def test_settings_tables_and_ablations_can_be_named():
    known = names()
    settings = ["svhn_2task", "cifar10_2task", "synnum_2task", "emnist_3task", "cifar10_3task"]
    assert list(known) == [*settings, "two-task", "three-task", "beta", "memory_per_class"]
    for setting in settings:
        (part,) = known[setting]
        assert list(part.rows) == METHODS
    assert [part.setting for part in known["two-task"]] == settings[:3]
    assert [part.setting for part in known["three-task"]] == settings[3:]
    (beta,), (memory,) = known["beta"], known["memory_per_class"]
    assert (beta.setting, beta.method, beta.key) == ("emnist_3task", "fedclass", "method.beta")
    assert (list(beta.rows), list(memory.rows)) == (["0", "1", "3", "5", "8"], ["0", "2", "4", "6", "8"])
    assert memory.rows["8"]["global_accuracy"] == 83.46


def test_each_part_has_a_recipe_with_the_papers_data_tasks_and_settings():
    for parts in names().values():
        for part in parts:
            assert part.setting in recipes()
            experiment = load(part.setting)
            assert experiment.data.name == part.dataset
            assert tuple(experiment.stream.tasks) == part.tasks
            assert (experiment.partition.clients, experiment.partition.alpha) == (20, 0.5)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match="the paper has no 'svhn'; did you mean 'svhn_2task'\\?"):
        find("svhn")
    with pytest.raises(ConfigError, match=r"there are svhn_2task, .* memory_per_class"):
        find("xyz")


def test_our_figures_by_the_papers_names(result):
    run = result(last=(60.0, 40.0, 95.0), accuracy_matrix=[[80.0], [90.0, 70.0], [60.0, 40.0, 95.0]], overall=66.0)
    figures = ["t1_accuracy", "t2_accuracy", "t3_accuracy", "t2_forgetting", "t3_forgetting", "global_accuracy"]
    assert [ours(run, figure) for figure in figures] == [60.0, 40.0, 95.0, -10.0, 25.0, 66.0]
    assert ours(run, "average_forgetting") == 20.0
    assert ours(result(), "t3_accuracy") is None
    assert ours(result(), "t3_forgetting") is None


def recipe(row, variant, setting="cifar10_2task"):
    """All keys of the paper's recipe, with this method."""
    own = [] if variant == "standard" else [f"method.variant={variant}"]
    return flat(load(setting, own, method=row).to_tables())


def beside(row, *runs, changed=(), variant=None, setting="cifar10_2task"):
    variant = variant or {"fedavg": "standard", "fedclass": "paper"}.get(row, "released")
    return Beside(Label(row, variant, ()), claimed(row, variant), runs, changed, recipe(row, variant, setting))


def test_the_paper_beside_ours(result):
    (part,) = find("cifar10_2task")
    runs = [result("fedavg", s, last=(30.0 + s, 90.0), overall=60.55 + s, forgetting=40.0) for s in (0, 2)]
    table = beside_table(part, [beside("fedavg", *runs), beside("fedwa")])
    assert table.title == "cifar10_2task {5,5}: the paper beside ours, seeds 0, 2"
    assert table.columns == ("method (variant)", "figure", "paper", "ours", "difference")
    assert table.rows[:4] == (
        ("fedavg (standard)", "task 1", "34.66", "31.0 ± 1.4", "-3.7"),
        ("fedavg (standard)", "task 2", "90.44", "90.0 ± 0.0", "-0.4"),
        ("fedavg (standard)", "global", "62.55", "61.5 ± 1.4", "-1.0"),
        ("fedavg (standard)", "forgetting", "41.02", "40.0 ± 0.0", "-1.0"),
    )
    assert table.rows[6] == ("fedwa (released)", "global", "61.06", "-", "-")
    notes = " ".join(table.notes)
    assert "does not state: rounds per task, local epochs, temperature, seeds" in notes
    assert "fedavg (standard): it replays exemplars" in notes
    assert "fedwa (released): what the authors' code computes, which is not WA" in notes
    for word in ("REDUCED", "UNOFFICIAL", "†", "drawing"):
        assert word not in notes


def test_three_tasks_have_their_forgetting_after_each(result):
    (part,) = find("emnist_3task")
    table = beside_table(part, [beside("fedclass", result(last=(1.0, 2.0, 3.0)))])
    assert [row[1] for row in table.rows] == [
        *("task 1", "task 2", "task 3", "forgetting after task 2", "forgetting after task 3", "global", "forgetting")
    ]
    assert table.rows[3][2:] == ("16.24", "0.0", "-16.2")


def test_what_was_changed_is_told_and_marks_the_table_as_reduced(result):
    (part,) = find("svhn_2task")
    reduced, own = "train.rounds=5 (recipe: 20)", "method.beta=8 (recipe: 5)"
    members = [
        beside("fedavg", result("fedavg"), changed=(reduced,)),
        beside("fedclass", result(official_data=False, dataset="svhn"), changed=(reduced, own), variant="paper"),
    ]
    table = beside_table(part, members)
    assert table.title.endswith("seed 0, reduced")
    assert f"REDUCED, not the paper's setting: {reduced}." in table.notes
    assert f"fedclass (paper) differs from the recipe: {own}." in table.notes
    assert "UNOFFICIAL DATA: the files of svhn do not have the published checksums." in table.notes
    table = beside_table(part, [beside("fedclass", result(), changed=(own,))])
    assert "reduced" not in table.title, "a parameter of the method concerns its row alone"


def test_doubtful_figures_of_the_paper_are_marked(result):
    (part,) = find("synnum_2task")
    table = beside_table(part, [beside("fedavg", result("fedavg")), beside("fedwa", result("fedwa"))])
    assert [row[2] for row in table.rows if "†" in row[2]] == ["34.66 †"]
    assert any(
        note.startswith("† synnum_2task, fedavg: printed 34.66 repeats the CIFAR-10 cell") for note in table.notes
    )
    assert any("our own drawing" in note for note in table.notes)
    (part,) = find("cifar10_3task")
    table = beside_table(part, [beside("fedwa"), beside("fedclass")])
    assert ["†" in row[2] for row in table.rows] == [True] * 7 + [False] * 7
    assert table.title.endswith("no finished runs")


def test_a_method_that_the_paper_does_not_have_stands_alone(result):
    """Proper iCaRL and WA, our own loss, a user's method: no figure of the paper's is theirs."""
    (part,) = find("svhn_2task")
    for method, variant in (("fedicarl", "icarl"), ("fedwa", "wa"), ("fedclass-tuned", "standard")):
        table = beside_table(part, [beside(method, result(method), variant=variant)])
        assert table.rows[2] == (f"{method} ({variant})", "global", "not in the paper", "60.0", "-")
        assert f"{method} ({variant}): not in the paper." in table.notes
    assert claimed("mine:M", None) is None


def test_each_claim_is_of_a_variant_that_exists_and_says_how_it_differs():
    assert set(CLAIMS) == set(DIFFERS)
    assert set(CLAIMS.values()) == set(METHODS)
    for (method, variant), row in CLAIMS.items():
        own = [] if variant == "standard" else [f"method.variant={variant}"]
        made = load("cifar10_2task", own, method=method).method
        assert (made.variant_name, row) == (variant, method)


def test_how_a_setting_differs_from_the_paper_is_told(result):
    (part,) = find("emnist_3task")
    (note,) = (n for n in beside_table(part, [beside("fedclass", result())]).notes if n.startswith("From the paper"))
    assert note == (
        "From the paper, all rows differ in this: 60 rounds a task and 2 local epochs are chosen by us; "
        "exemplars: random, the paper does not say which; class order: released-by-seed, the paper names none."
    )
    table = beside_table(part, [beside("fedclass", result(), variant="released", setting="emnist_3task_released")])
    (note,) = (n for n in table.notes if n.startswith("From the paper"))
    for words in (
        "20 rounds a task and 2 local epochs are chosen by us",
        "the partition is 'released', the paper's is FedML's",
        "exemplars: first",
        "clients count with their exemplars, in the paper with new data only",
        "images as EMNIST's files have them",
        "the head begins as in the release",
    ):
        assert words in note
    assert any("theta = 3 is ours" in n for n in beside_table(part, [beside("fedclass")]).notes)


def test_csv_is_not_rounded(result):
    (part,) = find("synnum_2task")
    runs = [result("fedavg", seed, last=(100 / 3 + seed, 80.0)) for seed in (0, 1)]
    text = beside_csv([(part, [beside("fedavg", *runs, changed=("a=1 (recipe: 2)",)), beside("fedwa")])])
    first, *_, last = csv.DictReader(io.StringIO(text))
    assert (first["setting"], first["figure"], first["paper"], first["seeds"]) == (
        *("synnum_2task", "t1_accuracy", "34.66", "0,1"),
    )
    assert float(first["ours"]) == pytest.approx(100 / 3 + 0.5, abs=1e-12)
    assert float(first["difference"]) == pytest.approx(100 / 3 + 0.5 - 34.66, abs=1e-12)
    assert float(first["deviation"]) == pytest.approx(0.5**0.5)
    assert first["changed"] == "a=1 (recipe: 2)"
    assert first["doubt"].startswith("printed 34.66")
    assert (last["label"], last["paper"]) == ("fedwa (released)", "28.51")
    assert {last[column] for column in ("ours", "deviation", "difference", "official_data")} == {""}, "not run yet"
