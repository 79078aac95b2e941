"""Runs that are cut off: a listener that drops everything in the middle."""

from collections.abc import Callable

from fedclass.runs.events import Event, RoundFinished


class Stop(BaseException):
    """Not an error of ours: nothing may catch it."""


def stop_after(rounds: int) -> Callable[[Event], None]:
    """A listener that hears of all rounds, those before a stop too, and drops everything after so many."""
    heard = 0

    def listen(event: Event) -> None:
        nonlocal heard
        heard += isinstance(event, RoundFinished)
        if heard == rounds:
            raise Stop

    return listen
