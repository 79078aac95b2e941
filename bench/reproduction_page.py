"""docs/REPRODUCTION.md: the text of it, from kept runs (bench/reproduction.py)."""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from statistics import mean

from reproduction import (
    DATA,
    DATA_NAMES,
    ROOT,
    Group,
    headers,
    learned,
    learned_printed,
    made_by,
    parts,
    picture,
    picture_name,
)

from fedclass.report.claims import CANDIDATE, Judged, Verdict, best, lost_tasks, trend, valley
from fedclass.report.paper import (
    ABLATED,
    NOT_IN_THE_PAPER,
    RELEASED,
    Beside,
    Part,
    beside_table,
    described,
    names,
    ours,
)
from fedclass.report.tables import MeanDeviation, listed
from fedclass.report.units import show_seconds
from fedclass.runs.layout import write_atomically

PAGE = ROOT / "docs" / "REPRODUCTION.md"
IMAGES = ROOT / "docs" / "images"
NOT_RUN = {"svhn": "not run: we could not get its files; the recipe is ready for those who have them"}
PRINTED = {
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "synnum": "SYN-NUM",
    "emnist-balanced": "EMNIST",
}  # names in the paper
HEADLINES = ("global_accuracy", "average_forgetting")

INTRODUCTION = """\
# Reproduction

The paper's tables beside ours, at the paper's scale. Everything below is made from runs that are
kept as data in `results/reproduction`: each run's recipe, summary and events, and which code made
it. `fedclass table`, `report` and `list` read them as any run, and `fedclass benchmark verify` runs
one again and compares. A test compares this page with the data.

```
python bench/reproduction.py keep RUN...   # take over finished runs
python bench/reproduction.py page          # make this page again; nothing is trained
fedclass table results/reproduction/emnist_3task
fedclass benchmark verify results/reproduction/emnist_3task/NAME
```

In the tables of results, ours stands above: mean ± standard deviation over seeds. Below it are the
paper's figure and, in brackets, ours minus the paper's. All in percent. The paper states no rounds,
local epochs, temperature or seeds: these are ours.

A verdict is *holds* or *does not hold* where chance is ruled out: by the 95 % intervals of paired
differences over seeds, in square brackets (Student's t, not corrected for several comparisons), or,
in an ablation, by at least four values that come in the claimed order. Otherwise a claim is *not
decidable* with these data.
"""


def write(groups: Sequence[Group]) -> None:
    """The page, its figures, and the recipes' headers. Figures of runs that are gone go, too."""
    wanted = {picture_name(groups, each): picture(each) for each in groups}
    for old in IMAGES.glob("reproduction-*.svg"):
        if old.name not in wanted:
            old.unlink()
    for name, drawn in wanted.items():
        write_atomically(IMAGES / name, drawn)
    for path, content in headers(groups).items():
        write_atomically(path, content)
    write_atomically(PAGE, page(groups))


def page(groups: Sequence[Group]) -> str:
    blocks = [INTRODUCTION, "## What was run\n", _overview(groups), "## The paper's claims\n", _claims(groups)]
    for each in groups:
        blocks += _section(groups, each)
    return "\n".join(blocks)


def _title(part: Part) -> str:
    """As in EMNIST (17,15,15): braces at the end of a cell would be taken for attributes of it."""
    return f"{PRINTED[part.dataset]} ({','.join(map(str, part.tasks))})"


def _overview(groups: Sequence[Group]) -> str:
    lines = ["| recipe | the paper's | data | rows | seeds | state |", "|---|---|---|---:|---|---|"]
    for name, part in parts().items():
        own = [each for each in groups if each.part.setting == name]
        for each in own:
            seeds = listed(sorted({run.result.summary["seed"] for run in each.runs})).partition(" ")[2]
            cells = (f"`{each.recipe}`", _title(part), each.data, str(len(each.members)), seeds, _state(each))
            lines.append(f"| {' | '.join(cells)} |")
        if not own:
            why = NOT_RUN.get(part.dataset, "not run yet")
            lines.append(f"| `{name}` | {_title(part)} | {DATA_NAMES[part.dataset]} | 0 | - | {why} |")
    for name, key in ABLATED.items():
        (part,) = names()[name]
        ran = [f"{row}: {', '.join(values)}" for each in groups for row, values in _values(each, part).items()]
        state = "; ".join(ran) or "not run yet"
        lines.append(f"| `{part.setting}` | ablation of `{key}` | | | | {state} |")
    return "\n".join(lines) + "\n"


def _values(each: Group, part: Part) -> dict[str, list[str]]:
    if each.part.setting != part.setting:
        return {}
    return {row: list(by_value) for row, by_value in each.ablation(part).items()}


def _state(each: Group) -> str:
    if each.reduced:
        return f"reduced: {', '.join(each.reduced)}"
    return "as the recipe" if not each.changed else f"full scale, with {', '.join(each.changed)}"


def _claims(groups: Sequence[Group]) -> str:
    blocks = []
    for each in groups:
        lines = ["| claim | our row | verdict | figures |", "|---|---|---|---|"]
        for member, judged in _judged(each):
            lines.append(f"| {judged.claim} | {member} | **{judged.verdict}** | {judged.why} |")
        blocks += [f"### {_heading(each)}\n", "\n".join(lines) + "\n"]
    without = [_title(part) for name, part in parts().items() if name not in {each.part.setting for each in groups}]
    if without:
        blocks.append(
            _wrapped(f"**{str(Verdict.open).capitalize()}**, because there are no runs: {'; '.join(without)}.") + "\n"
        )
    return "\n".join(blocks)


def _heading(each: Group) -> str:
    return f"{_title(each.part)}, {each.data}: `{each.recipe}`"


def _judged(each: Group) -> Iterator[tuple[str, Judged]]:
    """The paper's claims about a setting, for each row that stands beside its FedCLASS."""
    if each.reduced:
        yield "-", Judged("all", Verdict.open, "reduced runs, not the paper's setting")
        return
    candidates = [member for member in each.members if member.row == CANDIDATE]
    if not candidates:
        yield "-", Judged("all", Verdict.open, "no runs of FedCLASS")
    for member in candidates:
        for figure in HEADLINES:
            yield str(member.label), best(each.part, member, each.members, figure)
        yield str(member.label), lost_tasks(each.part, member, each.members)
    for name, key in ABLATED.items():
        (part,) = names()[name]
        if part.setting == each.part.setting:
            for row, by_value in _ablations(each, part).items():
                for judged in _trends(by_value, list(part.rows), key):
                    yield row, judged


def _trends(by_value: dict[str, Beside], values: list[str], key: str) -> list[Judged]:
    accuracy, forgetting = HEADLINES
    if key == ABLATED["beta"]:
        return [
            trend(by_value, values, forgetting, rises=False, key="beta"),
            valley(by_value, values, accuracy, key="beta"),
        ]
    return [
        trend(by_value, values, accuracy, rises=True, key="m"),
        trend(by_value, values, forgetting, rises=False, key="m"),
    ]


def _ablations(each: Group, part: Part) -> dict[str, dict[str, Beside]]:
    """Rows that stand beside the paper's FedCLASS. beta = 0 is FedAvg, bit for bit: its runs serve there."""
    found = each.ablation(part)
    plain = next((member for member in each.members if member.row == "fedavg"), None)
    if part.key == ABLATED["beta"] and plain is not None:
        found = {row: by_value if "0" in by_value else {"0": plain, **by_value} for row, by_value in found.items()}
    return found


def _section(groups: Sequence[Group], each: Group) -> list[str]:
    part = each.part
    blocks = [f"## {_heading(each)}\n"]
    if each.changed:
        blocks.append(_wrapped(f"Not as the recipe: {', '.join(each.changed)}.") + "\n")
    blocks.append(f"![Accuracy and forgetting over rounds]({IMAGES.name}/{picture_name(groups, each)})\n")
    remarks = DATA / f"{each.recipe}.md"
    if remarks.exists() and each is next(other for other in groups if other.recipe == each.recipe):
        blocks.append(remarks.read_text(encoding="utf-8"))
    blocks += [
        _table(part, {str(member.label): member for member in each.members}, "method (variant)"),
        _run_facts(each),
    ]
    notes = [note for note in beside_table(part, each.members).notes[2:] if not note.startswith("REDUCED")]
    blocks.append("\n".join(_wrapped(f"- {note}") for note in notes) + "\n")
    for name, key in ABLATED.items():
        (ablated,) = names()[name]
        found = _ablations(each, ablated) if ablated.setting == part.setting else {}
        for row, by_value in found.items():
            blocks += [f"### {row}: `{key}`\n", _table(ablated, by_value, f"`{key}`")]
    return blocks


def _table(part: Part, members: dict[str, Beside], first: str) -> str:
    """A line per row of ours, a column per figure of the paper's."""
    figures = [*HEADLINES, *(name for name in part.figures if name not in HEADLINES)]
    columns = [first, "seeds", *(described(figure) for figure in figures), "when learned"]
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    for label, member in members.items():
        row = (label if part.key else member.row) if member.row else None
        seeds = ", ".join(str(run.summary["seed"]) for run in member.runs)
        cells = [_cell(part, row, member, figure) for figure in figures]
        printed = learned_printed(part, row) if row is not None and row in part.rows else None
        doubts = row is not None and any(part.doubt(row, figure) for figure in figures)
        cells.append(_both(learned(member.runs), printed, " †" if doubts else ""))
        lines.append(f"| {' | '.join([label, seeds, *cells])} |")
    return "\n".join(lines) + "\n"


def _cell(part: Part, row: str | None, member: Beside, figure: str) -> str:
    values = tuple(value for run in member.runs if (value := ours(run, figure)) is not None)
    if row is None or row not in part.rows:
        return str(MeanDeviation(values))
    return _both(MeanDeviation(values), part.rows[row][figure], " †" if part.doubt(row, figure) else "")


def _both(own: MeanDeviation, printed: float | None, mark: str) -> str:
    if printed is None:
        return str(own)
    gap = f" ({mean(own.values) - printed:+.1f})" if own.values else ""
    return f"{own}<br>{printed:.2f}{mark}{gap}"


def _run_facts(each: Group) -> str:
    runs = [run for run in each.runs if not run.ablated]
    seconds = [run.result.summary["seconds"] for run in runs]
    first = runs[0].result.summary
    span = " to ".join(dict.fromkeys((show_seconds(min(seconds)), show_seconds(max(seconds)))))
    system = " --system released" if each.recipe.endswith(RELEASED) else ""
    changes = "".join(f" --set {shlex.quote(word.partition(' (recipe')[0])}" for word in each.changed)
    images = f"{first['images_used']:,} training and {first['test_images_used']:,} test images"
    about = (
        "*When learned*: accuracy on a task right after it, mean of all tasks but the last; the paper's by its "
        f"arithmetic. Rows without a second line: {NOT_IN_THE_PAPER}."
    )
    command = f"```\nfedclass reproduce {each.part.setting}{system}{changes}\n```\n"
    return "\n\n".join([_wrapped(about), _wrapped(f"{images}; {span} a run; {made_by(runs)}. Run again:"), command])


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, 100, subsequent_indent="  " if prose.startswith("- ") else "", break_long_words=False)
