"""What a command would train, what is there already, and how long it would take; nothing is trained or written."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedclass.cli.compare import How
    from fedclass.experiment.grid import Member
    from fedclass.runs.outlook import Outlook


def foresee(members: "Sequence[Member]", how: "How") -> None:
    from rich.table import Table

    from fedclass.cli.compare import names_of
    from fedclass.cli.display import console
    from fedclass.experiment.calibrate import SECONDS, images_per_second, like
    from fedclass.experiment.launch import cores
    from fedclass.experiment.parallel import prospects
    from fedclass.runs.outlook import duration

    launches = [(member.experiment, member.path) for member in members]
    rates: dict[str, float] = {}
    table = Table(box=None, padding=(0, 2))
    for column in ("run", "there already", "to train", "images", "on one core"):
        table.add_column(column, justify="left" if column in ("run", "there already", "to train") else "right")
    total = images = 0.0
    several = len({member.path.parent for member in members}) > 1
    names = [f"{m.path.parent.name}/{m.path.name}" for m in members] if several else names_of(members)
    for name, (prospect, setup) in zip(
        names, prospects(launches, reuse=how.reuse, changed_code=how.changed_code), strict=True
    ):
        outlook, seconds, left = prospect.outlook, 0.0, sum(prospect.outlook.untrained)
        if left and setup is not None:
            if like(setup) not in rates:
                rates[like(setup)] = images_per_second(setup)
            seconds = left / rates[like(setup)]
        there, rest = _in_words(outlook)
        table.add_row(name, there, rest, f"{left:,.0f}" if left else "·", duration(seconds) if left else "·")
        total, images = total + seconds, images + left
    console.print(table)
    count = how.workers or cores()
    if not total:
        console.print("nothing is left to train", highlight=False)
        return
    speeds = " and ".join(f"{rate:,.0f}" for rate in dict.fromkeys(rates.values()))
    console.print(
        f"about {duration(total / count)} on {count} core{'s' * (count > 1)} of this machine, as busy as it is now: "
        f"{images:,.0f} images to train on, each counted once for every epoch.\n"
        f"By a calibration of {SECONDS:g} s of FedAvg just now: {speeds} images/s on one core. Testing and the end of "
        "tasks are not counted, nor what a method computes beside its loss.",
        highlight=False,
    )


def _in_words(outlook: "Outlook") -> tuple[str, str]:
    """What is there, and what is to be trained."""
    if outlook.finished:
        return "finished", "nothing"
    there = []
    if outlook.done:
        there.append(f"{outlook.done} rounds")
    elif outlook.cached:
        there.append(f"{_tasks(0, outlook.cached)} cached")
    elif outlook.shared:
        there.append("task 1 shared with a run above")
    left = [task for task, images in enumerate(outlook.untrained) if images]
    if not left:
        return ", ".join(there), "nothing"
    begun = outlook.done % outlook.rounds and outlook.done // outlook.rounds == left[0]
    rest = f"{'the rest of ' if begun else ''}{_tasks(left[0], left[-1] + 1)}"
    return ", ".join(there) or "·", f"{rest}, {outlook.rounds} rounds each"


def _tasks(start: int, stop: int) -> str:
    return f"task {start + 1}" if stop - start == 1 else f"tasks {start + 1} to {stop}"
