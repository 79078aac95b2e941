"""Which of the names that sites announce become classes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fedclass.deploy.decisions import Decisions, Offer, read_offers, write_offers
from fedclass.deploy.names import name_flaw, normal, shown
from fedclass.errors import ConfigError
from fedclass.wire import Announcement

Counts = Mapping[str, int | None]


@dataclass(frozen=True)
class AdmissionRules:
    """admit: "approve", what the operator has approved; "all", whatever is announced.  vocabulary: a file with a name
    in each line: they count as approved, and no others are admitted.  case: "keep", UA and ua are two names; "ignore",
    they are one, spelled as it was first.  most_names: new ones that one site may announce.  fewest_images: of a class,
    over all sites that tell.
    """

    admit: Literal["approve", "all"]
    vocabulary: Path | None
    case: Literal["keep", "ignore"]
    most_names: int
    fewest_images: int


def read_vocabulary(path: Path) -> list[str]:
    """One name in each line; empty ones and those that begin with # do not count."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"vocabulary = {path}: cannot be read ({error})") from error
    names = [line for line in lines if line.strip() and not line.startswith("#")]
    for name in names:
        if (fault := name_flaw(name.strip())) is not None:
            raise ConfigError(f"vocabulary = {path}: no class can be called {shown(name)}: {fault}")
    if not names:
        raise ConfigError(f"vocabulary = {path}: names no class; write one in each line")
    return [normal(name) for name in names]


class Admission:
    """What the operator decides is read again whenever sites are asked.

    spelled: by site, the names that it uses for classes of another name.
    """

    def __init__(self, rules: AdmissionRules, root: Path) -> None:
        self.rules, self.root = rules, root
        self.spelled: dict[str, dict[str, str]] = {}
        self._vocabulary: list[str] = []
        self._decided = Decisions()
        self._since: dict[str, str] = {}
        self._states: dict[str, str] = {}  # of names that are new, when sites were last asked

    def look(self) -> None:
        """At what has been decided."""
        self._decided = Decisions.read(self.root)
        self._vocabulary = read_vocabulary(self.rules.vocabulary) if self.rules.vocabulary else []
        self._since = self._since or {offer.name: offer.since for offer in read_offers(self.root)}

    def read(self, said: Announcement, learned: Iterable[str], warn: Callable[[str], None]) -> Announcement:
        """The announcement in the names of classes; what cannot be one is left out."""
        learned = set(learned)
        spellings = self._spellings(learned)
        names: dict[str, str] = {}
        for name in said.classes:
            if (fault := name_flaw(name)) is not None:
                warn(f"site {said.site}: no class can be called {shown(name)}: {fault}")
                continue
            names[name] = self._class(name, spellings)
        new = {into for into in names.values() if into not in learned}
        if len(new) > self.rules.most_names:
            warn(
                f"site {said.site} announces {len(new)} new names of classes, and max-classes-per-site = "
                f"{self.rules.most_names} are allowed: none of them counts"
            )
            names = {name: into for name, into in names.items() if into in learned}
        self.spelled[said.site] = {name: into for name, into in names.items() if name != into}
        held_out = {name: count for name, count in said.held_out.items() if name in names}
        return replace(
            said,
            classes=_added(said.classes, names),
            fresh=_added(said.fresh, names),
            held_out=_added(held_out, names),
        )

    def _class(self, name: str, spellings: dict[str, str]) -> str:
        name = normal(name)
        name = self._decided.merged.get(name, name)
        return name if self.rules.case == "keep" else spellings.setdefault(name.casefold(), name)

    def _spellings(self, learned: set[str]) -> dict[str, str]:
        """The spelling of names that differ in case alone: the one learned, listed, approved or announced first."""
        known = [*learned, *self._vocabulary, *sorted(self._decided.approved), *self._since]
        return {name.casefold(): name for name in reversed(known)}

    def admitted(self, new: Iterable[str], found: Mapping[str, Announcement], learned: Iterable[str]) -> list[str]:
        """Those of the new names that may become classes now. What there is to decide is written down."""
        held = _held(found)
        states = {name: self._state(name, held[name]) for name in new}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for name in states:
            self._since.setdefault(name, now)
        self._states = dict(states)
        states |= {name: "learned" for name in learned if name in held}
        offers = [
            Offer(name=name, sites=held[name], since=self._since.get(name, now), state=state, like=_like(name, states))
            for name, state in sorted(states.items())
        ]
        write_offers(self.root, offers)
        return sorted(name for name, state in states.items() if state == "approved")

    def _state(self, name: str, sites: Counts) -> str:
        if name in self._decided.rejected:
            return "rejected"
        if self._vocabulary and name not in self._vocabulary:
            return "not in the vocabulary"
        counts = [count for count in sites.values() if count is not None]
        if len(counts) == len(sites) and sum(counts) < self.rules.fewest_images:
            return "few images"
        free = self.rules.admit == "all" or bool(self._vocabulary)
        return "approved" if free or name in self._decided.approved else "waiting"

    def waiting(self) -> str:
        """What keeps new names from being classes, in words; empty if nothing does."""
        states = list(self._states.values())
        parts = [
            f"{states.count('waiting')} wait for approval: fedclass deploy classes {self.root}",
            f"{states.count('few images')} have fewer images than min-class-images = {self.rules.fewest_images}",
            f"{states.count('rejected')} are rejected",
            f"{states.count('not in the vocabulary')} are not in the vocabulary",
        ]
        return "; ".join(part for part in parts if not part.startswith("0 "))


def _added(counts: Counts, names: Mapping[str, str]) -> dict[str, int | None]:
    """By class: the sum over the names that a site uses for it; None if one of them is withheld."""
    found: dict[str, int | None] = {}
    for name, count in counts.items():
        if name not in names:
            continue
        before = found.get(names[name], 0)
        found[names[name]] = None if count is None or before is None else before + count
    return dict(sorted(found.items()))


def _held(found: Mapping[str, Announcement]) -> dict[str, dict[str, int | None]]:
    held: dict[str, dict[str, int | None]] = {}
    for site, said in sorted(found.items()):
        for name, count in said.classes.items():
            held.setdefault(name, {})[site] = count
    return held


def _like(name: str, others: Iterable[str]) -> str | None:
    return next((other for other in others if other != name and other.casefold() == name.casefold()), None)
