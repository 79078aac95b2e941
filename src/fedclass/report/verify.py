"""Compare a result with a repetition of the same run."""

from dataclasses import dataclass
from typing import Any

from fedclass.report.tables import Table
from fedclass.runs.summary import Result

FIGURES = ("accuracy_last", "accuracy_last_macro", "accuracy_average_incremental", "forgetting_fedclass", "bwt")
COUNTS = ("bytes_up", "bytes_down")
LACKING = "none"  # shown where a result does not have the figure


@dataclass(frozen=True)
class Compared:
    """same: to the last bit of the weights, and in every figure."""

    table: Table
    same: bool
    verdict: str


def compared(known: Result, again: Result) -> Compared:
    """Compare each figure without rounding: any difference counts, and so does a figure that the result lacks."""
    keys = [key for key in (*FIGURES, *COUNTS, "weights_sha256") if key in again.summary]
    pairs = {key: (known.summary.get(key, LACKING), again.summary[key]) for key in keys}
    rows = tuple((key, _shown(a), _shown(b), "same" if a == b else "differs") for key, (a, b) in pairs.items())
    table = Table(
        title=f"{known.path} run again",
        columns=("figure", "result", "repeated", ""),
        rows=rows,
        notes=(f"The new run: {again.path}",),
    )
    differing = [key for key, (a, b) in pairs.items() if a != b]
    return Compared(table, not differing, _verdict(known.summary, again.summary, differing))


def _verdict(known: dict[str, Any], again: dict[str, Any], differing: list[str]) -> str:
    if not differing:
        return "Verified: the same weights, to the bit, and the same figures."
    other = known.get("code") != again.get("code")
    why = (
        "fedclass's code differs from the result's; check out the commit that it names"
        if other
        else "the code is the same: another processor or version of torch may round differently, or the result is wrong"
    )
    return f"NOT the same: {', '.join(differing)} ({why})."


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)[:16]
