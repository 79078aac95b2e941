"""Questions to nodes, and their answers, over Flower's Grid."""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedclass.engines.flower import codec
from fedclass.engines.flower.codec import Refusal
from fedclass.engines.flower.frames import Frame
from fedclass.errors import ClientError
from fedclass.wire import Announcement, Update

Key = TypeVar("Key", bound=Hashable)
SPARE = 10.0  # seconds that a message outlives its deadline, so that it is we who say that it is over
MOST_REASON = 500  # characters of what a node says went wrong


@dataclass(frozen=True)
class Question:
    node: int
    kind: Literal["train", "evaluate", "query"]
    frame: Frame


@dataclass(frozen=True)
class Connection:
    """A connection to the nodes.

    poll: seconds between two looks for answers; Flower's own loop takes three.  check: raises if this server should
    no longer be there.
    """

    grid: Grid
    poll: float = 0.25
    check: Callable[[], None] = lambda: None

    def nodes(self) -> list[int]:
        self.check()
        return sorted(self.grid.get_node_ids())

    def ask(
        self, questions: Mapping[Key, Question], *, seconds: float
    ) -> Iterator[tuple[Key, Announcement | Update | Refusal]]:
        """Answers as they come; in place of one that does not, the reason why."""
        sent: dict[str, Key] = {}
        for key, question in questions.items():
            message = Message(question.frame.to_record(), question.node, question.kind, ttl=seconds + SPARE)
            (number,) = self.grid.push_messages([message])
            if number:
                sent[number] = key
            else:
                yield key, Refusal("Flower took no message for it", lacks=False)
        until = time.monotonic() + seconds
        while sent:
            self.check()
            for reply in self.grid.pull_messages(list(sent)):
                asked = sent.pop(reply.metadata.reply_to_message_id, None)
                if asked is not None:
                    yield asked, _answer(reply)
            if sent and time.monotonic() > until:
                break
            if sent:
                time.sleep(self.poll)
        for key in sent.values():
            yield key, Refusal(f"no answer within {seconds:.0f} s", lacks=False)


def _answer(reply: Message) -> Announcement | Update | Refusal:
    if reply.has_error():
        reason = " ".join((reply.error.reason or "no reason given").split())[:MOST_REASON]
        return Refusal(f"Flower error {reply.error.code}: {reason}", lacks=False)
    try:
        answer = codec.read_answer(Frame.from_record(reply.content))
    except ClientError as error:
        return Refusal(f"its answer cannot be used: {str(error)[:MOST_REASON]}", lacks=False)
    if isinstance(answer, Refusal):
        return Refusal(" ".join(answer.reason.split())[:MOST_REASON], lacks=answer.lacks)
    return answer
