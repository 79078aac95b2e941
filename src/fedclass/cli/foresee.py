"""What a command would train, what is there already, and how long it would take; nothing is trained or written."""

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
    """A run to come. rate: how fast one core trains it; none if nothing is left of it."""

    name: str
    outlook: "Outlook"
    rate: "Rate | None"

    @property
    def images(self) -> float:
        return sum(self.outlook.untrained)

    @property
    def seconds(self) -> float:
        """Of one core, with nothing else to do."""
        return self.images / self.rate.alone if self.rate else 0.0

    @property
    def seconds_now(self) -> float:
        """Of one core, as busy as it is."""
        return self.images / self.rate.now if self.rate else 0.0

    def record(self) -> "Record":
        """As Python callers get it."""
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
    from fedclass.experiment.launch import cores
    from fedclass.runs.outlook import duration

    table = Table(box=None, padding=(0, 2))
    for column in ("run", "there already", "to train", "images", "on one core"):
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
        f"about {alone} on {count} core{'s' * (count > 1)} of this machine if nothing else runs, {now} if it stays as "
        f"busy as now: {images:,.0f} images to train on, each counted once for every epoch.\n"
        f"By a calibration just now: FedAvg, {speeds} images in a second of one core's time. Testing and "
        "the end of tasks are not counted, nor what a method computes beside its loss.",
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
