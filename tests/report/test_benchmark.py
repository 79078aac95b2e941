"""Tables of a protocol: differences where seeds allow them, costs, and what to check a run by."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from fedclass.errors import ConfigError
from fedclass.report.benchmark import benchmark_tables
from fedclass.report.verify import compared

COST = {"bytes_up": 2_000_000, "bytes_down": 3_000_000, "seconds": 90.0, "weights_sha256": "ab" * 32, "bwt": -1.0}
ROOT = Path(__file__).parents[2]
KEPT = {"exemplars": 1000, "rows": 200, "clients": 30, "server": 4, "teacher": 5000}


def test_costs_are_means_over_seeds_and_memory_leaves_the_teacher_out(result):
    runs = [result(method, seed, memory_bytes=KEPT, **COST) for method in ("fedavg", "derpp") for seed in (0, 1)]
    results, differences, costs, checks = benchmark_tables(runs)
    assert results.rows[0][0] == "fedavg (paper)"
    assert differences.title == "Differences from fedavg (paper), paired over seeds 0, 1"
    assert costs.rows[1] == ("derpp (paper)", "2.0 MB", "3.0 MB", "1.2 kB", "5.0 kB", "1 min 30 s")
    assert checks.rows[3][:4] == ("derpp (paper)", "1", "60.0", "abababababababab")


def test_the_worst_client_and_the_spread_are_shown_where_runs_have_them(result):
    clients = {"accuracy_worst_client": 40.0, "accuracy_deviation_over_clients": 3.0}
    tables = benchmark_tables([result("fedavg", seed, **COST, **clients) for seed in (0, 1)])
    (shown,) = [table for table in tables if table.title == "Clients"]
    assert shown.rows == (("fedavg (paper)", "40.0 ± 0.0", "3.0 ± 0.0"),)


def test_runs_from_before_memory_was_noted_say_nothing_of_it(result):
    _, costs, _ = benchmark_tables([result("fedavg", **COST)])
    assert costs.rows[0][3:5] == ("-", "-")


def test_rows_with_other_seeds_are_shown_and_not_compared(result):
    runs = [result("fedavg", 0, **COST), result("fedavg", 1, **COST), result("derpp", 0, **COST)]
    runs += [result("ewc", 0, **COST), result("ewc", 1, **COST)]
    first, differences, costs, _ = benchmark_tables(runs)
    assert "derpp (paper), seed 0" in [row[0] for row in first.rows]
    assert costs.title.startswith("What it costs")
    assert {row[0] for row in differences.rows} == {"ewc (paper)"}
    assert differences.notes[-1] == "Not compared, because their seeds are others: derpp (paper)."
    with pytest.raises(ConfigError, match="against fedeven: there is no such row"):
        benchmark_tables(runs, against="fedeven")
    assert [table.title[:12] for table in benchmark_tables(runs, against="derpp")][1:] == [
        "What it cost",
        "Every run, t",
    ]
    (_, costs, _) = benchmark_tables(runs[2:3], against="fedeven")  # a protocol with one row of several
    assert costs.title.startswith("What it costs")


def test_a_protocol_with_validation_images_is_compared_on_these(result):
    figures = {"validation_accuracy_matrix": [[90.0], [40.0, 80.0]], "validation_forgetting_fedclass": 1.0}
    runs = [
        result(method, overall=overall, validation_accuracy_last=held, **figures, **COST)
        for method, overall, held in (("fedavg", 50.0, 40.0), ("derpp", 60.0, 30.0))
    ]
    first, differences, *_ = benchmark_tables(runs)
    assert "on validation images" in first.title
    assert differences.rows[0][:3] == ("derpp (paper)", "validation global", "-10.0")


def test_a_run_that_comes_out_otherwise_is_told_figure_by_figure(result):
    known = result("fedavg", code={"fedclass": "a"}, **COST)
    same = compared(known, result("fedavg", code={"fedclass": "a"}, **COST))
    assert (same.same, same.verdict) == (True, "Verified: the same weights, to the bit, and the same figures.")
    other = compared(known, result("fedavg", overall=60.0001, code={"fedclass": "b"}, **COST))
    assert not other.same
    assert other.verdict.startswith("NOT the same: accuracy_last (fedclass's code differs from the result's")
    assert ("accuracy_last", "60.0000", "60.0001", "differs") in other.table.rows
    assert ("weights_sha256", "abababababababab", "abababababababab", "same") in other.table.rows
    del known.summary["weights_sha256"]
    lacking = compared(known, result("fedavg", code={"fedclass": "a"}, **COST))
    assert lacking.verdict.startswith("NOT the same: weights_sha256"), "what is not told is not verified"


ROWS = {
    "FedAvg": "fedavg",
    "FedCLASS `paper`": "fedclass",
    "FedCLASS `released`": "fedclass-released",
    "`fedclass-tuned`": "fedclass-tuned",
    "FedEven": "fedeven",
    "DER++": "derpp",
    "FedICARL": "fedicarl-classifier=sigmoid",
    "FedWA": "fedwa",
    "all images (`joint`)": "joint",
}
COLUMNS = {
    "digits, 5 tasks": "digits_5task",
    "digits, 2 tasks": "synnum_2task",
    "digits, misaligned": "digits_misaligned",
    "EMNIST-47, 3 tasks": "emnist_3task",
    "EMNIST-47, 10 tasks": "emnist_10task",
    "CIFAR-10, 2 tasks": "cifar10_2task",
    "CIFAR-10, 3 tasks": "cifar10_3task",
    "characters, 10 tasks": "characters_10task",
    **{f"{tasks} tasks": f"characters_{tasks}task" for tasks in (10, 25, 50)},
}


def test_the_figures_on_the_page_of_fedeven_are_those_of_the_kept_results() -> None:
    compared = 0
    columns: list[str] = []
    for line in (ROOT / "docs" / "fedeven.md").read_text(encoding="utf-8").splitlines():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if name == "" and cells and set(cells) <= set(COLUMNS):
            columns = [COLUMNS[cell] for cell in cells]
        elif name in (*ROWS, "seeds") and len(cells) == len(columns):
            for protocol, cell in zip(columns, cells, strict=True):
                found = _kept(protocol, ROWS.get(name, "fedeven"))
                if name == "seeds":
                    assert cell == ", ".join(str(run["seed"]) for run in found)
                elif cell == "-":
                    assert not found, f"{protocol}, {name}: there are results"
                else:
                    means = (mean(run[key] for run in found) for key in ("accuracy_last", "forgetting_fedclass"))
                    assert cell.replace("*", "") == " / ".join(f"{value:.1f}" for value in means), (protocol, name)
                    compared += 1
    assert compared == 62


def _kept(protocol: str, row: str) -> list[dict[str, Any]]:
    """The summaries of a row, by seed."""
    folder = ROOT / "results" / "benchmark" / f"{protocol}-reduced-v1"
    paths = sorted(folder.glob(f"{row}-s*/summary.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
