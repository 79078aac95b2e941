"""Summaries of finished runs, read without torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedclass.errors import RunError
from fedclass.runs.layout import RunDirectory

# Keys that tables and lists read. The runner writes more.
CONTRACT = {
    *("method", "variant", "dataset", "official_data", "tasks", "seed"),
    *("accuracy_matrix", "accuracy_last", "forgetting_fedclass"),
}


@dataclass(frozen=True)
class Result:
    """The summary of a run. `seconds`, `bytes_up` and the like are in `summary` as they were written."""

    path: Path
    summary: dict[str, Any]

    @classmethod
    def read(cls, root: Path) -> Self:
        directory = RunDirectory(root)
        try:
            summary = json.loads(directory.summary.read_text(encoding="utf-8"))
            if not isinstance(summary, dict) or not summary.keys() >= CONTRACT:
                raise ValueError("not the summary of a run")
            return cls(root, summary)
        except OSError as error:
            raise RunError(f"{root}: has no summary.json ({error.strerror}); is it a finished run?") from error
        except ValueError as error:
            again = f"delete it, and `fedclass run --resume {root}` writes a new one"
            raise RunError(f"{directory.summary}: is damaged ({error}); {again}") from error

    @property
    def label(self) -> str:
        """The method with its variant, always both."""
        return f"{self.summary['method']} ({self.summary['variant']})"
