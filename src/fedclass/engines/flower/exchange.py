"""Questions to nodes, and their answers, over Flower's Grid."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedclass.engines.flower import codec
from fedclass.engines.flower.codec import Refusal
from fedclass.engines.flower.frames import Frame
from fedclass.errors import ClientError
from fedclass.wire import Announcement, Update

Key = TypeVar("Key", bound=Hashable)
SPARE = 10.0  # seconds that a message outlives its deadline, so that this server, and not Flower, says that it is over
CHECK = 1.0  # seconds between two checks that no other server has taken over
AT_ONCE = 4  # messages that are looked for in each `poll`; of more, each less often
MOST_TIMES, SMALL = 2, 2**20  # an answer has at most so many times the bytes that are expected, and so many more
MOST_REASON = 500  # characters of what a node says went wrong
GONE = "is away: its connection was lost"
MEANING = {
    ErrorCode.NODE_UNAVAILABLE: GONE,
    ErrorCode.MESSAGE_UNAVAILABLE: "its answer never arrived whole, or the question was not fetched in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer never arrived whole",
    ErrorCode.CLIENT_APP_CRASHED: "its process has ended in the middle of the work",
}


@dataclass(frozen=True)
class Question:
    """expected: about how many bytes of tensors an honest answer has."""

    node: int
    kind: Literal["train", "evaluate", "query"]
    frame: Frame
    expected: int = 0


@dataclass(frozen=True)
class Connection:
    """A connection to the nodes.

    poll: seconds between two looks for answers; Flower's own loop waits three.  check: raises if another
    server has taken over.
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
        """Answers as they come; in place of one that does not, the reason why.

        Flower's pull blocks while a reply that was declared is not there whole, for minutes if its sender has gone. So
        a thread of its own pulls for each message, and none is waited for past the deadline.
        """
        sent: dict[str, Key] = {}
        for key, question in questions.items():
            message = Message(question.frame.to_record(), question.node, question.kind, ttl=seconds + SPARE)
            (number,) = self.grid.push_messages([message])
            if number:
                sent[number] = key
            else:
                yield key, Refusal("Flower took no message for it", lacks=False)
        until = time.monotonic() + seconds
        with self._pulling(list(sent)) as replies:
            while sent and (left := until - time.monotonic()) > 0:
                self.check()
                try:
                    number, reply = replies.get(timeout=min(left, CHECK))
                except queue.Empty:
                    continue
                if isinstance(reply, Exception):
                    raise reply
                key = sent.pop(number)
                yield key, _answer(reply, questions[key].expected)
        for key in sent.values():
            yield key, Refusal(f"no answer within {seconds:.0f} s", lacks=False)

    @contextlib.contextmanager
    def _pulling(self, numbers: Sequence[str]) -> Iterator["queue.Queue[tuple[str, Message | Exception]]"]:
        """Replies to these messages, or what Flower raises, as long as the block lasts."""
        replies: queue.Queue[tuple[str, Message | Exception]] = queue.Queue()
        over = threading.Event()
        pause = self.poll * max(1.0, len(numbers) / AT_ONCE)

        def pull(number: str) -> None:
            while not over.is_set():
                try:
                    for reply in self.grid.pull_messages([number]):
                        replies.put((number, reply))
                        return
                except Exception as error:  # is raised where answers are waited for
                    replies.put((number, error))
                    return
                over.wait(pause)

        for number in numbers:
            threading.Thread(target=pull, args=[number], daemon=True).start()
        try:
            yield replies
        finally:
            over.set()


def _answer(reply: Message, expected: int) -> Announcement | Update | Refusal:
    if reply.has_error():
        if reply.error.code in MEANING:
            return Refusal(MEANING[reply.error.code], lacks=False)
        reason = " ".join((reply.error.reason or "no reason given").split())[:MOST_REASON]
        return Refusal(f"Flower error {reply.error.code}: {reason}", lacks=False)
    try:
        frame = Frame.from_record(reply.content)
        size, most = sum(map(len, frame.tensors.values())), MOST_TIMES * expected + SMALL
        if size > most:
            raise ClientError(f"it has {size / 2**20:.1f} MiB of tensors, and was not read; at most {most / 2**20:.1f}")
        answer = codec.read_answer(frame)
    except ClientError as error:
        return Refusal(f"its answer cannot be used: {str(error)[:MOST_REASON]}", lacks=False)
    if isinstance(answer, Refusal):
        return Refusal(" ".join(answer.reason.split())[:MOST_REASON], lacks=answer.lacks)
    return answer
