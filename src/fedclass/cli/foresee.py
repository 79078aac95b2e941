"""What a command would train, what exists already, and how long training would take. Nothing is trained or written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedclass.experiment.calibrate import Rate
    from fedclass.experiment.grid import Member
    from fedclass.runs.dataframe import Record
    from fedclass.runs.outlook import Outlook
    from fedclass.studies import How


@dataclass(frozen=True)
class Row:
    """A planned run. rate: how fast one core trains it; None if nothing is left to do."""

    name: str
    outlook: "Outlook"
    rate: "Rate | None"

    @property
    def images(self) -> float:
        return sum(self.outlook.untrained)

    @property
    def seconds(self) -> float:
        """On one core, if nothing else runs."""
        return self.images / self.rate.alone if self.rate else 0.0

    @property
    def seconds_now(self) -> float:
        """On one core, as busy as it is now."""
        return self.images / self.rate.now if self.rate else 0.0

    def record(self) -> "Record":
        """For callers from Python."""
        return {
            "run": self.name,
            "finished": self.outlook.finished,
            "rounds_done": self.outlook.done,
            "tasks_cached": self.outlook.cached,
            "images": self.images,
            "seconds": self.seconds,
            "seconds_now": self.seconds_now,
        }


def show_foreseen(rows: Sequence[Row], how: "How") -> None:
    from rich.table import Table

    from fedclass.cli.display import console
    from fedclass.engines.starting import cores
    from fedclass.runs.counted import counted
    from fedclass.runs.outlook import duration

    table = Table(box=None, padding=(0, 2))
    for column in ("run", "exists", "to train", "images", "on one core"):
        table.add_column(column, justify="right" if column in ("images", "on one core") else "left")
    for row in rows:
        figures = (f"{row.images:,.0f}", duration(row.seconds)) if row.images else ("·", "·")
        table.add_row(row.name, *_in_words(row.outlook), *figures)
    console.print(table)
    images, count = sum(row.images for row in rows), how.workers or cores()
    alone = duration(sum(row.seconds for row in rows) / count)
    now = duration(sum(row.seconds_now for row in rows) / count)
    if not images:
        console.print("nothing is left to train", highlight=False)
        return
    speeds = " and ".join(dict.fromkeys(f"{row.rate.alone:,.0f}" for row in rows if row.rate))
    console.print(
        f"about {alone} on {counted(count, 'core')} of this machine if nothing else runs, {now} if it stays as busy as "
        f"now: {images:,.0f} images to train on, each counted once per epoch.\n"
        f"By a calibration just now: FedAvg trains {speeds} images per second of one core's time. Not included: "
        "testing, the end of tasks, and what a method computes besides its loss.",
        highlight=False,
    )


def foreseen(members: "Sequence[Member]", how: "How") -> list[Row]:
    return list(_rows(members, how))


def _rows(members: "Sequence[Member]", how: "How") -> Iterator[Row]:
    from fedclass.experiment.calibrate import images_per_second, like
    from fedclass.experiment.parallel import prospects
    from fedclass.studies import names

    several = len({member.path.parent for member in members}) > 1
    named = [f"{m.path.parent.name}/{m.path.name}" for m in members] if several else names(members)
    launches = [(member.experiment, member.path) for member in members]
    rates: dict[str, Rate] = {}
    found = prospects(launches, reuse=how.reuse, changed_code=how.changed_code)
    for name, (prospect, setup) in zip(named, found, strict=True):
        rate = None
        if setup is not None and any(prospect.outlook.untrained):
            if like(setup) not in rates:
                rates[like(setup)] = images_per_second(setup)
            rate = rates[like(setup)]
        yield Row(name, prospect.outlook, rate)


def _in_words(outlook: "Outlook") -> tuple[str, str]:
    """What exists, and what is to be trained."""
    from fedclass.runs.counted import counted

    if outlook.finished:
        return "finished", "nothing"
    there = []
    if outlook.done:
        there.append(counted(outlook.done, "round"))
    elif outlook.cached:
        there.append(f"{_tasks(0, outlook.cached)} cached")
    elif outlook.shared:
        there.append("task 1 shared with a run above")
    left = [task for task, images in enumerate(outlook.untrained) if images]
    if not left:
        return ", ".join(there), "nothing"
    begun = outlook.done % outlook.rounds and outlook.done // outlook.rounds == left[0]
    rest = f"{'the rest of ' if begun else ''}{_tasks(left[0], left[-1] + 1)}"
    return ", ".join(there) or "·", f"{rest}, {counted(outlook.rounds, 'round')} each"


def _tasks(start: int, stop: int) -> str:
    return f"task {start + 1}" if stop - start == 1 else f"tasks {start + 1} to {stop}"
