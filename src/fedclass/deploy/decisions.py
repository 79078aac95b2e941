"""What the operator has decided about names of classes, and what there is to decide: two files in a run directory.

RUN/announced.json   written by the server: the names that sites have announced, from whom, since when
RUN/approvals.json   written by `fedclass deploy classes`: names approved, rejected, and merged into others
"""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedclass.deploy.names import name_flaw, normal
from fedclass.errors import ConfigError, RunError
from fedclass.runs import audit
from fedclass.runs.layout import write_atomically

ANNOUNCED, APPROVALS = "announced.json", "approvals.json"


@dataclass(frozen=True)
class Decisions:
    """Names are normalised. merged: the name that a site uses -> the class that it means."""

    approved: frozenset[str] = frozenset()
    rejected: frozenset[str] = frozenset()
    merged: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> "Decisions":
        table = _read(root / APPROVALS)
        try:
            merged = {str(name): str(into) for name, into in table.get("merged", {}).items()}
            return cls(frozenset(table.get("approved", [])), frozenset(table.get("rejected", [])), merged)
        except (TypeError, AttributeError) as error:
            raise RunError(
                f"{root / APPROVALS}: damaged ({error}); restore it, or remove it and decide anew"
            ) from error

    def write(self, root: Path) -> None:
        table = {"approved": sorted(self.approved), "rejected": sorted(self.rejected), "merged": dict(self.merged)}
        write_atomically(root / APPROVALS, json.dumps(table, indent=1, ensure_ascii=False) + "\n")

    def approve(self, names: Iterable[str]) -> "Decisions":
        return Decisions(self.approved | {*names}, self.rejected - {*names}, self.merged)

    def reject(self, names: Iterable[str]) -> "Decisions":
        return Decisions(self.approved - {*names}, self.rejected | {*names}, self.merged)

    def merge(self, name: str, into: str) -> "Decisions":
        """Whatever was merged into `name` follows."""
        merged = {other: into if target == name else target for other, target in self.merged.items()}
        return Decisions(self.approved - {name}, self.rejected - {name}, {**merged, name: into})


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A name that sites announce.

    sites: how many training images each of them has, as far as it tells.  since: when the first of them said so (UTC).
    state: "waiting", "approved", "rejected", "few images", "not in the vocabulary", or "learned".  like: a name that
    differs in upper and lower case alone.
    """

    name: str
    sites: Mapping[str, int | None]
    since: str
    state: str
    like: str | None = None

    @property
    def images(self) -> int | None:
        """Of all sites together; None if one of them does not tell."""
        counts = [count for count in self.sites.values() if count is not None]
        return sum(counts) if len(counts) == len(self.sites) else None


def write_offers(root: Path, offers: Sequence[Offer]) -> None:
    text = json.dumps([asdict(offer) for offer in offers], indent=1, ensure_ascii=False) + "\n"
    if not (root / ANNOUNCED).exists() or (root / ANNOUNCED).read_text(encoding="utf-8") != text:
        write_atomically(root / ANNOUNCED, text)


def read_offers(root: Path) -> list[Offer]:
    """In the order of their names; what was decided since the server last asked is in their state already."""
    try:
        offers = [Offer(**entry) for entry in _read(root / ANNOUNCED, [])]
    except TypeError as error:
        raise RunError(f"{root / ANNOUNCED}: damaged ({error}); the server writes it anew") from error
    decided = Decisions.read(root)
    return [_decided(offer, decided) for offer in offers]


def _decided(offer: Offer, decided: Decisions) -> Offer:
    state = offer.state
    if state == "rejected" and offer.name not in decided.rejected:
        state = "waiting"
    if state == "waiting" and offer.name in decided.approved:
        state = "approved"
    if state != "learned" and offer.name in decided.rejected:
        state = "rejected"
    if offer.name in decided.merged:
        state = f"merged into {decided.merged[offer.name]!r}"
    return Offer(name=offer.name, sites=offer.sites, since=offer.since, state=state, like=offer.like)


def decide(root: Path, action: str, names: Sequence[str], *, every: bool = False, by: str | None = None) -> list[str]:
    """Carry out a decision of the operator's; returns the names that it was about. every: all that wait."""
    offers = {offer.name: offer for offer in read_offers(root)}
    if every:
        names = [name for name, offer in offers.items() if offer.state == "waiting"]
    names = [normal(name) for name in names]
    if not names:
        raise ConfigError(f"{root}: no name is given, or none waits; `fedclass deploy classes {root}` lists them")
    about = names[:1] if action == "merge" else names
    for name in about:
        if name not in offers:
            near = difflib.get_close_matches(name, offers, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"`fedclass deploy classes {root}` lists those that are"
            raise ConfigError(f"{root}: no site announces a class {name!r}; {hint}")
        if offers[name].state == "learned":
            raise ConfigError(
                f"{root}: class {name!r} has been learned; `fedclass deploy back {root} --task T` returns to the time "
                "before"
            )
    decided = Decisions.read(root)
    if action == "merge":
        decided = _merged(decided, names, root)
    else:
        decided = decided.approve(names) if action == "approve" else decided.reject(names)
    decided.write(root)
    audit.append(root, "operator", said=action, names=list(names), by=by or audit.operator())
    return about


def _merged(decided: Decisions, names: Sequence[str], root: Path) -> Decisions:
    if len(names) != 2 or names[0] == names[1]:
        raise ConfigError(f"merge takes two names, the one that sites use and the class it means, got {len(names)}")
    name, into = names
    if (fault := name_flaw(into)) is not None:
        raise ConfigError(f"{root}: no class can be called {into!r}: {fault}")
    if into in decided.merged:
        raise ConfigError(f"{root}: {into!r} is itself merged into {decided.merged[into]!r}; name that one")
    return decided.merge(name, into)


def _read(path: Path, default: Any = None) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {} if default is None else default
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from error
