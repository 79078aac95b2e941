"""Clients' jobs at sites of their own, over Flower."""

from collections.abc import Callable, Iterator, Sequence

from fedclass.engines.flower import codec
from fedclass.engines.flower.codec import Refusal
from fedclass.engines.flower.exchange import Connection, Question
from fedclass.engines.flower.roster import Roster
from fedclass.federation.server import Missing
from fedclass.wire import Announcement, Job, Plan, Tensors, Update, sha256


class Flower:
    """Sends each job to its client's site; whoever has not answered after `seconds` is left out of the round.

    plan: what a site must know for a job, given the SHA-256 of the teacher and of the broadcast.  site: the name of a
    client's site.
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
    ) -> None:
        self.connection, self.roster, self.plan, self.site, self.seconds = connection, roster, plan, site, seconds
        self._hashes: dict[str, tuple[Tensors, str]] = {}  # of the last teacher and broadcast
        self._broadcast: dict[int, str] = {}  # the last one that each node was sent

    def run(self, jobs: Sequence[Job]) -> Iterator[Update | Missing]:
        self.roster.refresh(jobs[0].task)
        done: dict[int, Update | Missing] = {}
        following = 0  # position of the one to hand on next
        for position, outcome in self._outcomes(jobs):
            done[position] = outcome
            while following in done:
                yield done.pop(following)
                following += 1

    def _outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Update | Missing]]:
        """In the order in which they come."""
        questions: dict[int, Question] = {}
        for position, job in enumerate(jobs):
            question = self._question(job, again=False)
            if question is None:
                yield position, Missing(job.client, f"site {self.site(job.client)} is not connected")
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
        reason = answer.reason if isinstance(answer, Refusal) else "answered with something else than an update"
        return Missing(job.client, f"site {self.site(job.client)}: {reason}")

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
        return Question(node, "evaluate" if job.phase == "evaluate" else "train", frame)

    def _hash(self, what: str, tensors: Tensors | None) -> str | None:
        if not tensors:
            return None
        if what not in self._hashes or self._hashes[what][0] is not tensors:
            self._hashes[what] = tensors, sha256(tensors)
        return self._hashes[what][1]
