"""For commands that need the extra `flower`."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs_flower() -> Iterator[None]:
    """Wraps imports that need the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("flwr", "cryptography"):
            raise
        from fedclass.errors import EXTRA, ConfigError

        raise ConfigError(f"this needs Flower; {EXTRA.format('flower')}") from None
