"""What a client keeps from task to task: in memory in a simulation, on the site's own disk in a federation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedclass.data.memory import Exemplars
from fedclass.wire import Tensors


@dataclass(frozen=True)
class Kept:
    """Tensors of a method, and how many classes the model had when they were made."""

    tensors: Tensors = field(default_factory=dict)
    classes: int = 0


@dataclass(frozen=True)
class ClientState:
    """tasks: how many have ended and have their exemplars.  rows: what the method keeps with exemplars, (m, ...), in
    the order of `exemplars.index`.  method: the method's own tensors.
    """

    tasks: int = 0
    exemplars: Exemplars = field(default_factory=Exemplars)
    rows: Kept = field(default_factory=Kept)
    method: Kept = field(default_factory=Kept)


class ClientStore(Protocol):
    def load(self, client: int) -> ClientState: ...
    def save(self, client: int, state: ClientState) -> None: ...


class MemoryStore:
    """Clients' states in a dictionary, for simulations. `changes` counts all changes."""

    def __init__(self) -> None:
        self.states: dict[int, ClientState] = {}
        self.changes = 0

    def load(self, client: int) -> ClientState:
        return self.states.get(client, ClientState())

    def save(self, client: int, state: ClientState) -> None:
        self.states[client] = state
        self.changes += 1

    def restore(self, states: Mapping[int, ClientState]) -> None:
        self.states = dict(states)
        self.changes += 1
