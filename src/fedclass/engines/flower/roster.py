"""Which sites there are, and where."""

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from fedclass.engines.flower import codec
from fedclass.engines.flower.exchange import Connection, Question
from fedclass.errors import RoundError
from fedclass.wire import Announcement

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
AGAIN = 60.0  # seconds before a node that could not take part is asked again: a picture may have been half copied
MOST_CLASSES = 100_000
MOST_IMAGES = 2**40  # of a class
LARGEST_SIDE = 4096  # pixels
MOST_WORDS = 1000  # characters about a machine


class Roster:
    """The sites that are connected, by the names that they give themselves.

    pins: node numbers by name, if a name belongs to one node for good: nodes with keys keep their number, others get a
    new one whenever they start.  returns: as in a Plan.  registered: reads under which name each key was registered, as
    node numbers by name, None if the site was removed; without such a list, a name belongs to the node that used it
    first.  withdrawn: reads who takes no part any more.
    """

    def __init__(
        self,
        connection: Connection,
        federation: str,
        *,
        seconds: float,
        pin: bool,
        returns: Sequence[int] = (),
        registered: Callable[[], Mapping[str, int | None] | None] = lambda: None,
        withdrawn: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.connection, self.federation, self.seconds, self.pin = connection, federation, seconds, pin
        self.returns, self.registered, self.withdrawn = returns, registered, withdrawn
        self.pins: dict[str, int] = {}
        self.removed: set[str] = set()
        self._all_registered = False
        self.said: dict[str, Announcement] = {}  # by name; also of sites that are away now
        self.silent: dict[int, str] = {}  # nodes that cannot take part, and why
        self._nodes: dict[str, int] = {}
        self._asked: dict[int, float] = {}  # when

    def recall(self, pins: Mapping[str, int]) -> None:
        """What an earlier server has found out. The list of registered keys knows better."""
        self.pins = {**pins, **self.pins}

    def called(self, node: int) -> str:
        """For messages: its site, if it is known whose the node is."""
        names = [name for name, number in {**self.pins, **self._nodes}.items() if number == node]
        return f"site {names[0]}" if names else f"a node that has not said its name ({node})"

    def node(self, site: str) -> int | None:
        return self._nodes.get(site)

    def connected(self) -> list[str]:
        return sorted(self._nodes)

    def refresh(self, task: int) -> list[str]:
        """Ask nodes that are new what they are, and forget those that have gone. Returns sites not heard of before."""
        present = self._present()
        self._nodes = {site: node for site, node in self._nodes.items() if node in present}
        old = time.monotonic() - AGAIN
        self.silent = {n: why for n, why in self.silent.items() if n in present and self._asked.get(n, old) > old}
        return self._take(self._asked_now(sorted(present - set(self._nodes.values()) - set(self.silent)), task))

    def wait_for(self, sites: int, *, seconds: float) -> None:
        """Until so many are connected."""
        until = time.monotonic() + seconds
        while True:
            self.refresh(0)
            if len(self._nodes) >= sites:
                return
            if time.monotonic() > until:
                raise RoundError(
                    f"after {seconds:.0f} s there are {len(self._nodes)} sites, and min-sites = {sites} are needed"
                    + self.why_silent()
                )
            time.sleep(self.connection.poll)

    def why_silent(self) -> str:
        reasons = "; ".join(f"{self.called(node)}: {reason}" for node, reason in self.silent.items())
        return f" ({reasons})" if reasons else ""

    def announcements(self, task: int) -> Mapping[str, Announcement]:
        """What all connected sites hold now."""
        answers = self._asked_now(sorted(self._present()), task)
        self._nodes, self.silent = {}, {}  # only now: meanwhile, `connected` is asked who is there
        self._take(answers)
        return {site: self.said[site] for site in self._nodes}

    def _present(self) -> set[int]:
        """The nodes that are connected, of sites that were not removed."""
        present = set(self.connection.nodes())
        listed = self.registered() if self.pin else None
        self._all_registered = listed is not None
        if listed is not None:
            self.pins |= {site: node for site, node in listed.items() if node is not None}
            self.removed = {site for site, node in listed.items() if node is None}
        self.removed |= set(self.withdrawn())
        return present

    def _asked_now(self, nodes: list[int], task: int) -> dict[int, object]:
        """The answers of these nodes, in their order."""
        frame = codec.announcement_asked(self.federation, task, self.returns)
        questions = {node: Question(node, "query", frame) for node in nodes}
        answers = dict(self.connection.ask(questions, seconds=self.seconds)) if questions else {}
        self._asked.update(dict.fromkeys(nodes, time.monotonic()))
        return {node: answers[node] for node in nodes}

    def _take(self, answers: Mapping[int, object]) -> list[str]:
        """Whoever answers as a site does is connected. Returns sites not heard of before."""
        found = []
        for node, answer in answers.items():
            flaw = self._flaw(node, answer)
            if flaw is not None:
                self.silent[node] = flaw
                continue
            assert isinstance(answer, Announcement)
            if answer.site not in self.said:
                found.append(answer.site)
            # Of two nodes with one name the later one counts: a site that was restarted is listed twice for a minute,
            # and to ask the one that is gone would be to wait for it.
            if (before := self._nodes.get(answer.site, node)) != node:
                self.silent[before] = f"another node calls itself {answer.site!r} now"
                self._asked[before] = time.monotonic()
            self._nodes[answer.site], self.said[answer.site] = node, answer
            if self.pin:
                self.pins.setdefault(answer.site, node)
        return sorted(found)

    def _flaw(self, node: int, answer: object) -> str | None:
        if not isinstance(answer, Announcement):
            return str(getattr(answer, "reason", "answered with something other than an announcement"))
        if not NAME.fullmatch(answer.site):
            return f"calls itself {answer.site[:64]!r}; a name has letters, digits, '.', '_' and '-' only"
        if answer.site in self.removed:
            return f"calls itself {answer.site!r}, a site that was removed or has withdrawn"
        if self.pins.get(answer.site, node) != node:
            return f"calls itself {answer.site!r}: this name is taken, and belongs to another site's key"
        if self._all_registered and answer.site not in self.pins:
            return f"calls itself {answer.site!r}: no key is registered under this name (fedclass deploy register)"
        counts = [*answer.classes.values(), *answer.fresh.values(), *answer.held_out.values()]
        if max(len(answer.classes), len(answer.held_out)) > MOST_CLASSES or not set(answer.fresh) <= set(
            answer.classes
        ):
            return f"{answer.site} announces classes that do not fit together"
        if not all(n is None or 0 <= n <= MOST_IMAGES for n in counts):
            return f"{answer.site} announces an impossible count"
        if answer.image is not None and not _is_image(answer.image):
            return f"{answer.site} announces images of an impossible size"
        if sum(len(key) + len(value) for key, value in answer.machine.items()) > MOST_WORDS:
            return f"{answer.site} says too much about its machine"
        return None


def _is_image(image: tuple[int, int, int]) -> bool:
    height, width, channels = image
    return 0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE and channels in (1, 3)
