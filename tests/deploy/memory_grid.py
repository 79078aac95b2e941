"""Flower's Grid without processes or network: real ServerApp, ClientApp and Messages, one node after the other."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class MemoryGrid(Grid):
    """nodes: their configurations by number.  away: numbers that are not connected.  tamper: sees every reply before
    the server does, and may change it.
    """

    def __init__(self, app: ClientApp, nodes: dict[int, dict[str, Any]]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # outside of Flower's own processes
        self.app, self.nodes, self.away = app, nodes, set[int]()
        self.tamper: Callable[[Message, Message], Message] = lambda _, reply: reply
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.nodes if node not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            numbers.append(number)
            node = message.metadata.dst_node_id
            if node in self.away:
                continue
            context = Context(1, node, self.nodes[node], RecordDict(), {})
            try:
                reply = self.app(message, context)
            except Exception as error:
                reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
            self.replies[number] = self.tamper(message, reply)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in list(message_ids) if number in self.replies]

    # What fedclass does not use.

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: object, **__: object) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *_: object, **__: object) -> Iterable[Message]:
        raise NotImplementedError
