"""What the server of a federation has found out about its sites. No Flower in here."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedclass.wire import Announcement


@dataclass
class Registry:
    """Sites are numbered as they come, classes as their tasks begin; a number never changes.

    nodes: Flower's numbers of sites with keys.  counts: images by site and class, as announced; 0 if withheld.
    learners: the sites that have images for the task that is under way.  held_out: images to test with, by site and
    class, as announced; None if withheld.
    """

    sites: list[str] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    learners: list[str] = field(default_factory=list)
    held_out: dict[str, dict[str, int | None]] = field(default_factory=dict)

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "Registry":
        return cls(**table)

    def table(self) -> dict[str, Any]:
        return asdict(self)

    def enter(self, announcements: Mapping[str, Announcement]) -> list[str]:
        """Number the sites that are new, in the order of their names; note what all of them hold. Returns the new."""
        new = sorted(set(announcements) - set(self.sites))
        self.sites += new
        for site, said in announcements.items():
            self.counts[site] = {name: count or 0 for name, count in said.classes.items()}
            self.held_out[site] = dict(said.held_out)
        return new

    def unknown(self, announcements: Mapping[str, Announcement]) -> list[str]:
        """Names of classes that have images at a site and no number yet, in the order in which they would get one."""
        return sorted({name for said in announcements.values() for name in said.fresh} - set(self.classes))

    def more(self, announcements: Mapping[str, Announcement]) -> list[str]:
        """Classes that have a number already, and images that no task has had."""
        return [name for name in self.classes if any(name in said.fresh for said in announcements.values())]

    def begin(self, new: Sequence[str]) -> None:
        """A task begins, with these new classes; perhaps none. Who learns them is to be admitted."""
        self.classes += new
        self.sizes.append(len(new))
        self.learners = []

    def admit(self, announcements: Mapping[str, Announcement], *, exemplars_count: bool) -> None:
        """Sites with images for the task that is under way take part in it."""
        for site in sorted(announcements):
            said = announcements[site]
            held = said.classes if exemplars_count else said.fresh
            if site not in self.learners and set(held) & set(self.classes):
                self.learners.append(site)

    def most_held_out(self, site: str, name: str, spare: int) -> int | None:
        """Of a class. Whoever withholds its numbers has no more than any site that tells; None if none does."""
        said = self.held_out.get(site, {}).get(name, 0)
        if said is not None:
            return said + spare
        told = [count for classes in self.held_out.values() if (count := classes.get(name)) is not None]
        return max(told) + spare if told else None

    def rows(self) -> list[list[int]]:
        """(sites, classes) counts."""
        return [[self.counts.get(site, {}).get(name, 0) for name in self.classes] for site in self.sites]

    def numbers(self, sites: Sequence[str]) -> list[int]:
        return sorted(self.sites.index(site) for site in sites)
