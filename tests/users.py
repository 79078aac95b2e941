"""Code of a user's own, for tests."""

import importlib
import shutil
import sys
from pathlib import Path

from fedclass import usercode

METHOD = """
from dataclasses import dataclass
from fedclass.methods import FedAvg
{imports}

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    def loss(self, client, batch):
        {within}
        return {factor} * super().loss(client, batch)
"""


class Project:
    """A folder of a user's modules; what is written is what is imported next."""

    def __init__(self, root: Path) -> None:
        self.root, self.names = root, set[str]()
        root.mkdir()

    def write(self, **sources: str) -> None:
        """Modules by name: **{"a/b": "..."} writes a/b.py."""
        for name, source in sources.items():
            path = self.root / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)
            shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)  # as new as a file of the same second
            self.names.add(path.relative_to(self.root).parts[0].removesuffix(".py"))
        self.forget()

    def forget(self) -> None:
        """As in a new process."""
        for name in [name for name in sys.modules if name.partition(".")[0] in self.names]:
            del sys.modules[name]
        usercode._opened.clear()
        usercode._imported.clear()
        importlib.invalidate_caches()
