"""What a client keeps from task to task. The engine says where: in memory here, on the site's own disk elsewhere."""

from dataclasses import dataclass, field
from typing import Protocol

from fedclass.data.memory import Exemplars


@dataclass(frozen=True)
class ClientState:
    """`tasks` counts the tasks whose exemplars have been chosen."""

    tasks: int = 0
    exemplars: Exemplars = field(default_factory=Exemplars)


class ClientStore(Protocol):
    def load(self, client: int) -> ClientState: ...
    def save(self, client: int, state: ClientState) -> None: ...


class MemoryStore:
    """Clients' states in a dictionary, for simulations."""

    def __init__(self) -> None:
        self._states: dict[int, ClientState] = {}

    def load(self, client: int) -> ClientState:
        return self._states.get(client, ClientState())

    def save(self, client: int, state: ClientState) -> None:
        self._states[client] = state
