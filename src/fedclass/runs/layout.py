"""Where things are in a run directory."""

from dataclasses import dataclass
from pathlib import Path

from fedclass.errors import RunError


@dataclass(frozen=True)
class RunDirectory:
    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def model(self) -> Path:
        return self.root / "model.safetensors"

    @property
    def classes(self) -> Path:
        return self.root / "classes.json"


def create(root: Path) -> RunDirectory:
    """A new run directory. One that holds anything already is left alone."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise RunError(f"{root}: is not empty; choose another --out, or remove it")
        probe = root / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunError(f"{root}: cannot write there ({error.strerror}); choose another --out") from error
    return RunDirectory(root)


def write_atomically(path: Path, content: str | bytes) -> None:
    """All of it or nothing: a reader never sees half a file."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)
