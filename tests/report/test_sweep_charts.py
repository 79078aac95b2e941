"""A sweep's charts: what a key's value does."""

from collections.abc import Callable
from pathlib import Path

from fedclass.report.groups import group
from fedclass.report.history import read_history
from fedclass.report.html import build
from fedclass.report.sweep_charts import sweeps

Made = Callable[..., Path]


def recipe(beta: float, memory: int = 5, *, seed: int = 0, method: str = "fedclass") -> str:
    return (
        f"seed = {seed}\n[memory]\nper_client = {memory}\n[train]\nrounds = 2\n"
        f'[method]\nname = "{method}"\nbeta = {beta}\n'
    )


def test_a_point_per_value_in_their_order_and_the_mean_over_seeds(made: Made) -> None:
    runs = [
        read_history(made(f"{beta}-{seed}", seed=seed, config=recipe(beta, seed=seed)))
        for beta in (10.0, 0.5, 2.0)
        for seed in (0, 1)
    ]
    accuracy, forgetting = sweeps(group(runs))
    assert (accuracy.name, forgetting.name) == ("accuracy-against-beta", "forgetting-against-beta")
    assert [row[0] for row in accuracy.numbers.rows] == ["0.5", "2", "10"]
    ends = [[run.ends[-1].accuracy for run in runs[at : at + 2]] for at in (2, 4, 0)]
    assert [row[1] for row in accuracy.numbers.rows] == [f"{sum(pair) / 2:.1f}" for pair in ends]
    (axes,) = accuracy.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "2", "10"]
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [0, 1, 2]
    assert "Accuracy against beta" in build(runs).page


def test_other_keys_make_other_lines(made: Made) -> None:
    runs = [
        read_history(made(f"{beta}-{memory}", config=recipe(beta, memory)))
        for beta in (0.0, 1.0, 3.0)
        for memory in (5, 9)
        if (beta, memory) != (1.0, 9)
    ]
    accuracy, _ = sweeps(group(runs))
    assert accuracy.numbers.columns == ("method.beta", "memory.per_client=5", "memory.per_client=9")
    assert accuracy.numbers.rows[1][2] == "-", "it was not run"


def test_a_comparison_of_methods_or_of_two_values_is_no_sweep(made: Made) -> None:
    one = read_history(made("a", config=recipe(1.0)))
    two = read_history(made("b", config=recipe(2.0)))
    other = read_history(made("c", method="fedavg", config=recipe(3.0, method="fedavg")))
    assert sweeps(group([one])) == []
    assert sweeps(group([one, two])) == []
    assert sweeps(group([one, two, other])) == []
