"""Clients' jobs at sites of their own, over Flower."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from fedclass.engines.flower import codec
from fedclass.engines.flower.codec import Refusal
from fedclass.engines.flower.exchange import GONE, Connection, Question
from fedclass.engines.flower.roster import Roster
from fedclass.federation.server import Missing
from fedclass.wire import Announcement, Job, Plan, Tensors, Update, sha256

NOT_CONNECTED = "is not connected"
LOOK = 5.0  # seconds between two looks whether a site is back, at most


class Flower:
    """Sends each job to its client's site; whoever has not answered after `seconds` is left out of the round.

    plan: what a site must know for a job, given the SHA-256 of the teacher and of the broadcast.  site: the name of a
    client's site.  expected: about how many bytes of tensors an honest answer has; far larger ones are not read.
    least: so many sites have to be connected in a round, or it waits for those that are away and asks them again every
    `pause` seconds; waits: is told which.
    """

    name = "flower"

    def __init__(
        self,
        connection: Connection,
        roster: Roster,
        *,
        plan: Callable[[Job, str | None, str | None], Plan],
        site: Callable[[int], str],
        seconds: float,
        expected: Callable[[Job], int],
        least: int = 1,
        pause: float = 30.0,
        waits: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self.connection, self.roster, self.plan, self.site, self.seconds = connection, roster, plan, site, seconds
        self.expected, self.least, self.pause, self.waits = expected, least, pause, waits
        self._hashes: dict[str, tuple[Tensors, str]] = {}  # of the last teacher and broadcast
        self._broadcast: dict[int, str] = {}  # the last one that each node was sent

    def run(self, jobs: Sequence[Job]) -> Iterator[Update | Missing]:
        self.roster.refresh(jobs[0].task)
        done: dict[int, Update | Missing] = {}
        following = 0  # position of the one to hand on next
        for position, outcome in self._enough(jobs):
            done[position] = outcome
            while following in done:
                yield done.pop(following)
                following += 1

    def _enough(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Update | Missing]]:
        """Outcomes as they come; in a round, once fewer than `least` sites are away. Whoever answers late or badly is
        not waited for.
        """
        left = dict(enumerate(jobs))
        away = len(jobs) if jobs[0].phase != "train" else len(jobs) - min(self.least, len(jobs))
        while True:
            lost: dict[int, Missing] = {}
            for position, outcome in self._outcomes(left):
                if isinstance(outcome, Missing) and outcome.reason.endswith((NOT_CONNECTED, GONE)):
                    lost[position] = outcome
                else:
                    yield position, outcome
            if len(lost) <= away:
                yield from lost.items()
                return
            left = {position: jobs[position] for position in lost}
            self.waits([self.site(job.client) for job in left.values()])
            self._await({self.site(job.client) for job in left.values()}, jobs[0].task)

    def _await(self, sites: Collection[str], task: int) -> None:
        """One of them."""
        while True:
            time.sleep(min(self.pause, LOOK))
            self.roster.refresh(task)
            if any(self.roster.node(site) is not None for site in sites):
                return

    def _outcomes(self, jobs: Mapping[int, Job]) -> Iterator[tuple[int, Update | Missing]]:
        """In the order in which they come."""
        questions: dict[int, Question] = {}
        for position, job in jobs.items():
            question = self._question(job, again=False)
            if question is None:
                yield position, Missing(job.client, f"site {self.site(job.client)} {NOT_CONNECTED}")
            else:
                questions[position] = question
        again: dict[int, Question] = {}
        for position, answer in self.connection.ask(questions, seconds=self.seconds):
            if isinstance(answer, Refusal) and answer.lacks:
                question = self._question(jobs[position], again=True)
                assert question is not None  # it has just answered
                again[position] = question
            else:
                yield position, self._outcome(jobs[position], answer)
        for position, answer in self.connection.ask(again, seconds=self.seconds):
            yield position, self._outcome(jobs[position], answer)

    def _outcome(self, job: Job, answer: Announcement | Update | Refusal) -> Update | Missing:
        if isinstance(answer, Update) and answer.client == job.client:
            return answer
        if isinstance(answer, Update):  # must not pass for another site's
            return Missing(job.client, f"site {self.site(job.client)}: answers for client {answer.client}")
        reason = answer.reason if isinstance(answer, Refusal) else "answered with something other than an update"
        named = f"site {self.site(job.client)}"
        said_by_itself = reason.startswith((f"{named}: ", f"{named} refuses"))
        return Missing(job.client, reason if said_by_itself else f"{named}: {reason}")

    def _question(self, job: Job, *, again: bool) -> Question | None:
        """again: with all that the site may lack. Otherwise without a broadcast that the node was sent before, and
        without the teacher, which most sites have kept from the end of the task before.
        """
        node = self.roster.node(self.site(job.client))
        if node is None:
            return None
        teacher, broadcast = self._hash("teacher", job.teacher), self._hash("broadcast", job.broadcast)
        new = broadcast is not None and self._broadcast.get(node) != broadcast
        if new and broadcast is not None:
            self._broadcast[node] = broadcast
        frame = codec.job(self.plan(job, teacher, broadcast), job, teacher=again, broadcast=again or new)
        return Question(node, "evaluate" if job.phase == "evaluate" else "train", frame, self.expected(job))

    def _hash(self, what: str, tensors: Tensors | None) -> str | None:
        if not tensors:
            return None
        if what not in self._hashes or self._hashes[what][0] is not tensors:
            self._hashes[what] = tensors, sha256(tensors)
        return self._hashes[what][1]
