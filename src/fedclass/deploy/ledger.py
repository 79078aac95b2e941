"""What a site knows of its exemplars, and of what its owner has had deleted."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from fedclass.federation.store import Kept


@dataclass(frozen=True)
class Entry:
    """An exemplar in the ledger: what it is, with which task it came, and on which day (UTC) it was chosen."""

    sha256: str
    label: str  # the name of its class
    task: int
    date: str


@dataclass(frozen=True, eq=False)
class KeptState:
    """Exemplars once `tasks` tasks are over.

    classes: all that the site has met, those without exemplars too.  ledger, images: of each exemplar, class by class,
    the most important first.  rows: what the method keeps with them.  made_with: identifies the request it answers.
    """

    tasks: int
    classes: tuple[str, ...]
    ledger: tuple[Entry, ...]
    images: NDArray[np.uint8]
    made_with: str
    rows: Kept = field(default_factory=Kept)

    def without(self, label: str) -> "KeptState":
        return replace(
            self.keeping(lambda entry: entry.label != label),
            classes=tuple(name for name in self.classes if name != label),
        )

    def keeping(self, wanted: Callable[[Entry], bool]) -> "KeptState":
        """With the exemplars that are wanted; the classes stay."""
        kept = [at for at, entry in enumerate(self.ledger) if wanted(entry)]
        rows = {name: tensor[kept] for name, tensor in self.rows.tensors.items()}
        return replace(
            self,
            ledger=tuple(self.ledger[at] for at in kept),
            images=self.images[kept],
            rows=replace(self.rows, tensors=rows),
        )


@dataclass(frozen=True)
class Forgotten:
    """A class that the owner has had deleted: on which day, and how many exemplars there were."""

    label: str
    date: str
    exemplars: int


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def days_ago(days: int) -> str:
    return (date.fromisoformat(today()) - timedelta(days=days)).isoformat()
