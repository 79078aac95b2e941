"""Sinks for a run's figures besides its own directory: TensorBoard, MLflow, W&B. All are off by default.

    with open_sinks(["tensorboard"], [root]) as tell:
        fedclass.run(experiment, root, lambda event: tell(0, event))

Nothing leaves the machine, unless MLFLOW_TRACKING_URI names a server.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedclass.errors import EXTRA, ConfigError
from fedclass.runs.events import Event
from fedclass.sinks.base import Feed, Sink
from fedclass.sinks.mlflow import MLflow
from fedclass.sinks.tensorboard import TensorBoard
from fedclass.sinks.wandb import WandB

__all__ = ["SINKS", "open_sinks"]

SINKS: dict[str, Callable[[Path], Sink]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


@contextmanager
def open_sinks(names: Sequence[str], roots: Sequence[Path]) -> Iterator[Callable[[int, Event], None]]:
    """Yields tell(number, event), which hands an event of the run in roots[number] to every sink in `names`.

    An unknown name or a missing library is a ConfigError, before anything is written. Later a sink cannot end a run: if
    it fails (a full disk, an unreachable server), one message goes to stderr, and the run continues without it.

    A resumed run is written again from its events, so that no round is repeated or missing.
    """
    feeds = [[Feed(name, _opened(name, root), root) for name in dict.fromkeys(names)] for root in roots]

    def tell(number: int, event: Event) -> None:
        for feed in feeds[number]:
            feed.tell(event)

    try:
        yield tell
    finally:
        for feed in (feed for of_run in feeds for feed in of_run):
            feed.close()


def _opened(name: str, root: Path) -> Sink:
    if name not in SINKS:
        raise ConfigError(f"sink {name}: no such sink; there are {', '.join(SINKS)}")
    try:
        return SINKS[name](root)
    except ImportError as error:
        raise ConfigError(f"sink {name}: {error}; {EXTRA.format(name)}") from error
