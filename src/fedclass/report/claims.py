"""The claims of the FedCLASS paper, and whether our runs confirm them.

A verdict is *holds* or *does not hold* only where chance is ruled out: by intervals over seeds, or by the order of at
least four values of a parameter, which has one chance in 4! = 24 or less. Everything else is not decidable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import factorial
from statistics import mean

from fedclass.report.paper import Beside, Part, described, ours
from fedclass.report.statistics import CONFIDENCE, Difference, paired
from fedclass.report.tables import listed

LESS_IS_BETTER = "forgetting"
CANDIDATE = "fedclass"  # the paper's own row


class Verdict(StrEnum):
    holds = "holds"
    fails = "does not hold"
    open = "not decidable"


@dataclass(frozen=True)
class Judged:
    """A claim, and what our runs say about it.  why: the figures behind the verdict."""

    claim: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Standing:
    """A candidate's place among its rivals by one figure: first, not first, or None if chance is not ruled out."""

    first: bool | None
    why: str


def standing(candidate: Beside, rivals: Sequence[Beside], missing: Sequence[str], figure: str) -> Standing:
    """missing: rivals without runs, by the paper's names."""
    sign = -1 if figure.endswith(LESS_IS_BETTER) else 1
    leads = {}
    for rival in rivals:
        if gap := _difference(candidate, rival, figure, sign):
            leads[str(rival.label)] = gap
    if not leads:
        return Standing(None, "no other row with the same seeds")
    name, worst = min(leads.items(), key=lambda entry: _low(entry[1]))
    why = f"{_shown(sign, worst)} against {name}"
    if _high(worst) < 0:
        return Standing(False, why)
    why += ", with one seed" if worst.interval is None else ""
    if missing:
        return Standing(None, f"{why}; no runs of {', '.join(missing)}")
    if worst.interval is None:
        return Standing(None, why)
    return Standing(True if _low(worst) > 0 else None, why)


def best(part: Part, candidate: Beside, members: Sequence[Beside], figure: str) -> Judged:
    """The claim that FedCLASS is the best of the paper's methods by a figure."""
    rivals, missing = _rivals(part, members)
    found = standing(candidate, rivals, missing, figure)
    what = "least forgetting" if figure.endswith(LESS_IS_BETTER) else "highest global accuracy"
    return Judged(f"FedCLASS has the {what}", _verdict(found.first), found.why)


def lost_tasks(part: Part, candidate: Beside, members: Sequence[Beside]) -> Judged:
    """The claim that, at the end, other methods are ahead on the same tasks as in the paper's table."""
    rivals, missing = _rivals(part, members)
    agree, why = list[bool | None](), []
    lost = []
    for figure in (name for name in part.figures if name.endswith("_accuracy") and name[0] == "t"):
        values = {row: figures[figure] for row, figures in part.rows.items()}
        first = values[CANDIDATE] == max(values.values())
        lost += [] if first else [described(figure)]
        found = standing(candidate, rivals, missing, figure)
        agree.append(None if found.first is None else found.first == first)
        why.append(f"{described(figure)}: {found.why}")
    verdict = Verdict.fails if False in agree else Verdict.open if None in agree else Verdict.holds
    return Judged(f"FedCLASS is first on all tasks but {' and '.join(lost)}", verdict, "; ".join(why))


def trend(by_value: Mapping[str, Beside], wanted: Sequence[str], figure: str, *, rises: bool, key: str) -> Judged:
    """The claim that a figure rises, or falls, with each step of a parameter."""
    claim = f"{_name(figure)} {'rises' if rises else 'falls'} with {key}"
    present, series, why = _series(by_value, wanted, figure, key)
    if len(present) < 2 or not series[0]:
        return Judged(claim, Verdict.open, why)
    sign = 1 if rises else -1
    steps = [_gap(high, low, sign) for low, high in pairwise(series)]
    if any(_high(step) < 0 for step in steps):
        return Judged(claim, Verdict.fails, why)
    in_order = all(step.mean > 0 for step in steps)
    enough = 1 / factorial(len(present)) < 1 - CONFIDENCE and len(present) == len(wanted)
    return Judged(claim, Verdict.holds if in_order and enough else Verdict.open, why)


def valley(by_value: Mapping[str, Beside], wanted: Sequence[str], figure: str, *, key: str) -> Judged:
    """The claim that a figure first falls and then rises with a parameter: a value in between is below both ends."""
    claim = f"{_name(figure)} first falls, then rises with {key}"
    present, series, why = _series(by_value, wanted, figure, key)
    if len(present) < len(wanted) or len(series[0]) < 2:
        return Judged(claim, Verdict.open, why)
    between = [[_gap(end, each, 1) for end in (series[0], series[-1])] for each in series[1:-1]]
    if any(all(_low(gap) > 0 for gap in gaps) for gaps in between):
        return Judged(claim, Verdict.holds, why)
    above = all(any(_high(gap) < 0 for gap in gaps) for gaps in between)
    return Judged(claim, Verdict.fails if above else Verdict.open, why)


def _series(
    by_value: Mapping[str, Beside], wanted: Sequence[str], figure: str, key: str
) -> tuple[list[str], list[list[float]], str]:
    """The values that were run; for each, its figures over the seeds that all have; and both as text."""
    present = [value for value in wanted if value in by_value]
    found = [_by_seed(by_value[value], figure) for value in present]
    seeds = sorted(set.intersection(*(set(each) for each in found))) if found else []
    series = [[each[seed] for seed in seeds] for each in found]
    means = ", ".join(f"{mean(each):.1f}" for each in series) if seeds else "no seed in common"
    missing = [value for value in wanted if value not in present]
    told = [f"{means} ({listed(seeds)})" if seeds else means] if present else []
    told += [f"no runs with {key} = {', '.join(missing)}"] if missing else []
    return present, series, "; ".join(told)


def _rivals(part: Part, members: Sequence[Beside]) -> tuple[list[Beside], list[str]]:
    """Our rows for the paper's other methods, and the names of those without runs."""
    rivals = [member for member in members if member.row not in (None, CANDIDATE) and member.runs]
    present = {member.row for member in rivals}
    return rivals, [row for row in part.rows if row not in present and row != CANDIDATE]


def _verdict(first: bool | None) -> Verdict:
    return Verdict.open if first is None else Verdict.holds if first else Verdict.fails


def _by_seed(member: Beside, figure: str) -> dict[int, float]:
    found = {run.summary["seed"]: ours(run, figure) for run in member.runs}
    return {seed: value for seed, value in found.items() if value is not None}


def _difference(one: Beside, other: Beside, figure: str, sign: int) -> Difference | None:
    """How much better `one` is than `other`, over the seeds of both."""
    a, b = _by_seed(one, figure), _by_seed(other, figure)
    seeds = sorted(a.keys() & b.keys())
    return _gap([a[seed] for seed in seeds], [b[seed] for seed in seeds], sign) if seeds else None


def _gap(one: Sequence[float], other: Sequence[float], sign: int) -> Difference:
    return paired([sign * value for value in one], [sign * value for value in other])


def _low(gap: Difference) -> float:
    return gap.mean if gap.interval is None else gap.interval[0]


def _high(gap: Difference) -> float:
    return float("inf") if gap.interval is None else gap.interval[1]


def _shown(sign: int, gap: Difference) -> str:
    """In points of the figure itself."""
    if gap.interval is None:
        return f"{sign * gap.mean:+.1f}"
    low, high = sorted(sign * end for end in gap.interval)
    return f"{sign * gap.mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def _name(figure: str) -> str:
    return "forgetting" if figure.endswith(LESS_IS_BETTER) else "global accuracy"
