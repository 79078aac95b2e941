"""Paths as people write them."""

from pathlib import Path

from fedclass.errors import ConfigError


def absolute(path: str, *, where: str, base: Path | None = None) -> str:
    """The absolute path, relative to `base` (by default the current folder), ~ expanded. An empty one stays empty."""
    try:
        whole = Path(path).expanduser()
        return str(whole if whole.is_absolute() else (base or Path.cwd()) / whole) if path else ""
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{where}: {path!r}: {error}") from error
