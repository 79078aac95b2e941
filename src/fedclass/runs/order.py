"""The order in which a folder's runs were compared, and the reference row, so that other tables show the same."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedclass.errors import RunError
from fedclass.runs.layout import write_atomically
from fedclass.schema import read_record

NAME = "order.json"


@dataclass(frozen=True)
class Order:
    """runs: names of run directories.  against: the reference row, as typed; None: the first.

    dropped: runs of candidates that a sweep with a budget did not choose; some lack tasks, or other seeds.
    """

    runs: tuple[str, ...] = ()
    against: str | None = None
    dropped: tuple[str, ...] = ()

    def place(self, name: str) -> int:
        """The position of a run. Runs that were not compared come last."""
        return self.runs.index(name) if name in self.runs else len(self.runs)

    def write(self, folder: Path) -> None:
        """Store the order. Runs of earlier comparisons in the same folder come after these."""
        stored = Order.read(folder)
        earlier, dropped = ([n for n in names if n not in self.runs] for names in (stored.runs, stored.dropped))
        content = {
            "runs": [*self.runs, *earlier],
            "against": self.against,
            "dropped": [*self.dropped, *dropped],
        }
        write_atomically(folder / NAME, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the order; empty for a folder in which nothing was compared."""
        path = folder / NAME
        try:
            return read_record(cls, json.loads(path.read_bytes()))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path}: is damaged ({error}); delete it, and rows come in the order of their names"
            ) from error
