"""Verdicts on the paper's claims: given only where chance is ruled out."""

from fedclass.report.claims import Verdict, best, lost_tasks, trend, valley
from fedclass.report.paper import Beside, find
from fedclass.report.rows import Label

(PART,) = find("cifar10_2task")
OTHERS = ("fedavg", "glfc", "fedicarl", "fedwa")


def row(result, name, *overall, forgetting=(20.0, 20.0, 20.0), last=(40.0, 80.0)):
    """Runs of seeds 0, 1, ... with these global accuracies, beside the paper's row of that name."""
    runs = tuple(
        result(name, seed, overall=value, forgetting=forgetting[seed], last=last) for seed, value in enumerate(overall)
    )
    return Beside(Label(name, "paper", ()), name, runs, (), {})


def others(result, *overall, **figures):
    return [row(result, name, *overall, **figures) for name in OTHERS]


def test_the_best_beyond_the_interval_holds_and_the_worse_does_not(result):
    rivals = others(result, 60.0, 61.0, 62.0)
    ahead, behind = row(result, "fedclass", 70.0, 71.2, 72.0), row(result, "fedclass", 50.0, 51.2, 52.0)
    found = best(PART, ahead, rivals, "global_accuracy")
    assert (found.claim, found.verdict) == ("FedCLASS has the highest global accuracy", Verdict.holds)
    assert found.why == "+10.1 [+9.8, +10.4] against fedavg (paper)"
    assert best(PART, behind, rivals, "global_accuracy").verdict == Verdict.fails


def test_less_forgetting_is_better(result):
    rivals = others(result, 60.0, 61.0, 62.0)
    less = row(result, "fedclass", 60.0, 61.0, 62.0, forgetting=(9.9, 10.0, 10.1))
    more = row(result, "fedclass", 60.0, 61.0, 62.0, forgetting=(29.9, 30.0, 30.1))
    found = best(PART, less, rivals, "average_forgetting")
    assert (found.verdict, found.why) == (Verdict.holds, "-10.0 [-10.2, -9.8] against fedavg (paper)")
    assert best(PART, more, rivals, "average_forgetting").verdict == Verdict.fails


def test_chance_one_seed_and_missing_rows_leave_a_claim_open(result):
    rivals = others(result, 60.0, 61.0, 62.0)
    near = best(PART, row(result, "fedclass", 59.0, 63.0, 62.5), rivals, "global_accuracy")
    one = best(PART, row(result, "fedclass", 70.0), rivals, "global_accuracy")
    some = best(PART, row(result, "fedclass", 70.0, 71.2, 72.0), rivals[:2], "global_accuracy")
    assert [found.verdict for found in (near, one, some)] == [Verdict.open] * 3
    assert one.why == "+10.0 against fedavg (paper), with one seed"
    assert some.why.endswith("no runs of fedicarl, fedwa")
    worse = best(PART, row(result, "fedclass", 50.0, 51.2, 52.0), rivals[:1], "global_accuracy")
    assert worse.verdict == Verdict.fails  # one rival is enough for that


def test_the_tasks_that_fedclass_loses_are_those_of_the_papers_table(result):
    """In the paper, FedCLASS is first on task 1 of CIFAR-10 {5,5}, and not on task 2."""
    seeds = (60.0, 61.0)
    rivals = others(result, *seeds)
    same = row(result, "fedclass", *seeds, last=(50.0, 70.0))
    first_on_both = row(result, "fedclass", *seeds, last=(50.0, 90.0))
    assert lost_tasks(PART, same, rivals).claim == "FedCLASS is first on all tasks but task 2"
    assert lost_tasks(PART, same, rivals).verdict == Verdict.holds
    assert lost_tasks(PART, first_on_both, rivals).verdict == Verdict.fails


def series(result, *values):
    """One row for each of beta = 0, 1, 3, 5, 8; a value is its forgetting and accuracy, by seed."""
    names = ("0", "1", "3", "5", "8")
    return {name: row(result, "fedclass", *each, forgetting=each) for name, each in zip(names, values, strict=False)}


BETA = ["0", "1", "3", "5", "8"]


def test_five_values_in_order_are_no_chance_even_with_one_seed(result):
    falls = series(result, (30.0,), (25.0,), (24.0,), (20.0,), (10.0,))
    found = trend(falls, BETA, "average_forgetting", rises=False, key="beta")
    assert (found.claim, found.verdict) == ("forgetting falls with beta", Verdict.holds)
    assert found.why == "30.0, 25.0, 24.0, 20.0, 10.0 (seed 0)"
    dented = series(result, (30.0,), (25.0,), (26.0,), (20.0,), (10.0,))
    assert trend(dented, BETA, "average_forgetting", rises=False, key="beta").verdict == Verdict.open
    lacking = {value: falls[value] for value in BETA[:4]}
    found = trend(lacking, BETA, "average_forgetting", rises=False, key="beta")
    assert found.verdict == Verdict.open
    assert found.why.endswith("; no runs with beta = 8")


def test_a_step_against_the_claim_beyond_its_interval_refutes_it(result):
    steps = ((30.0, 31.0), (25.0, 26.0), (28.0, 29.1), (20.0, 21.0), (10.0, 11.0))
    assert trend(series(result, *steps), BETA, "average_forgetting", rises=False, key="beta").verdict == Verdict.fails
    assert trend(series(result), BETA, "average_forgetting", rises=False, key="beta").verdict == Verdict.open


def test_first_falls_then_rises_needs_a_value_below_both_ends_beyond_chance(result):
    dips = series(result, (70.0, 71.0), (60.0, 61.1), (55.0, 56.0), (66.0, 67.0), (74.0, 75.1))
    climbs = series(result, (50.0, 51.0), (60.0, 61.1), (65.0, 66.0), (70.0, 71.1), (74.0, 75.0))
    one_seed = series(result, (70.0,), (60.0,), (55.0,), (66.0,), (74.0,))
    found = valley(one_seed | {"0": dips["0"]}, BETA, "global_accuracy", key="beta")
    assert found.why == "70.0, 60.0, 55.0, 66.0, 74.0 (seed 0)"  # seeds that all of them have
    verdicts = [valley(each, BETA, "global_accuracy", key="beta").verdict for each in (dips, climbs, one_seed)]
    assert verdicts == [Verdict.holds, Verdict.fails, Verdict.open]
