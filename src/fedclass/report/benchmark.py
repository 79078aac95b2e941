"""Results of a protocol as tables: figures, differences, costs, and hashes to check them by."""

from collections.abc import Sequence
from statistics import mean

from fedclass.report.formats import markdown
from fedclass.report.rows import Row, rows
from fedclass.report.tables import (
    MeanDeviation,
    Table,
    comparison,
    mean_deviation,
)
from fedclass.report.units import show_bytes, show_seconds
from fedclass.runs.kept import NAME, Kept
from fedclass.runs.summary import Result

KEPT = ("exemplars", "rows", "clients", "server")  # of memory_bytes; the teacher has a separate column
CLIENTS = {"worst client": "accuracy_worst_client", "deviation over clients": "accuracy_deviation_over_clients"}
HASH = 16  # characters of weights_sha256 in a table


def benchmark_tables(results: Sequence[Result], *, against: str | None = None) -> list[Table]:
    """Accuracy and forgetting, paired differences, costs, and a line per run with the hash of its weights."""
    compared = comparison(results, against=against, must=False)
    return [*compared, *_clients(results), _costs(results), _checks(results)]


def benchmark_markdown(protocols: Sequence[tuple[str, Sequence[str], Sequence[Table]]]) -> str:
    """A page: for each protocol its title, what is said about it, and its tables."""
    blocks = []
    for title, about, tables in protocols:
        blocks += [f"## {title}\n", *(f"{line}\n" for line in about), *map(markdown, tables)]
    return "\n".join(blocks)


def _clients(results: Sequence[Result]) -> list[Table]:
    """Accuracy over clients; empty if a run has no such figures, because it is older or its clients are unknown."""
    if any(run.summary.get(key) is None for run in results for key in CLIENTS.values()):
        return []
    cells = [(str(row.label), *(mean_deviation(row.runs, key) for key in CLIENTS.values())) for row in rows(results)]
    note = "Percent, after the last task: accuracy on each client's own classes, weighted as it holds them."
    return [Table("Clients", ("method (variant)", *CLIENTS), tuple(cells), (note,))]


def _costs(results: Sequence[Result]) -> Table:
    cells = []
    for row in rows(results):
        sent = [show_bytes(mean(run.summary[key] for run in row.runs)) for key in ("bytes_up", "bytes_down")]
        seconds = show_seconds(mean(run.summary["seconds"] for run in row.runs))
        cells.append((str(row.label), *sent, *_memory(row), seconds))
    return Table(
        title="What it costs: mean over seeds",
        columns=("method (variant)", "sent up", "sent down", "memory", "teacher", "time"),
        rows=tuple(cells),
        notes=(
            "Sent: by all clients together, over the whole run.",
            "Memory: what is kept from task to task at all clients and at the server: exemplars (a byte per pixel), "
            "tensors kept with them such as logits, and the method's own state such as generators; at its most.",
            "Teacher: models of the previous task, one at each client. The model itself is not counted.",
            "Time: as measured, on whatever machine and beside whatever else was running.",
        ),
    )


def _memory(row: Row) -> tuple[str, str]:
    """ "-" for runs of older versions, which did not record it."""
    found = [run.summary["memory_bytes"] for run in row.runs if "memory_bytes" in run.summary]
    if not found:
        return "-", "-"
    kept, teacher = (mean(sum(use[key] for key in keys) for use in found) for keys in (KEPT, ("teacher",)))
    return show_bytes(kept), show_bytes(teacher) if teacher else "none"


def _checks(results: Sequence[Result]) -> Table:
    """What `fedclass benchmark verify` compares."""
    cells = []
    for row in rows(results):
        for run in row.runs:
            about = run.summary
            figures = str(MeanDeviation((about["accuracy_last"],))), str(about["weights_sha256"])[:HASH]
            cells.append((str(row.label), str(about["seed"]), *figures, _code(run)))
    return Table(
        title="Every run, to be checked",
        columns=("method (variant)", "seed", "global", "weights_sha256", "code"),
        rows=tuple(cells),
        notes=("`fedclass benchmark verify RUN` runs one again and compares the hash of its weights and its figures.",),
    )


def _code(run: Result) -> str:
    if not (run.path / NAME).exists():
        return str(run.summary.get("code", {}).get("fedclass", "-"))[:HASH]
    kept = Kept.read(run.path)
    commit, _, changes = (kept.commit or "no commit").partition(" ")
    return f"{kept.version}, {commit[:7]}{' ' if changes else ''}{changes}"
