"""What the owner of a site decides: where its images are, what it keeps, what it tells, what it runs."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool

from fedclass.errors import ConfigError
from fedclass.experiment.setup import check_device
from fedclass.schema import TableError, read_table, table_faults

Announce = Literal["names", "rounded", "exact"]

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a site, of a federation


@dataclass(frozen=True)
class SiteSettings:
    """name: told to the server.  data: a folder per class, or train/ and test/ with such folders, or an .npz file.
    store: where exemplars and the like are kept.  announce: what the server is told of classes: their names, also the
    numbers of images to the nearest ten (at least ten), or exactly.  holdout: the share of training images that are
    only tested with, if there is no test split.  resize: HEIGHTxWIDTHxCHANNELS that all images are brought to; empty:
    they have to be of one size.  evaluate: whether to test models for the server at all.  device:
    "cpu", "cuda", or "auto".  allow: models, methods and transforms, package.module:name, that the server may name
    besides those that come along.

    Limits that the owner sets, whatever the recipe says: max_exemplars: kept in all; none: as the recipe says.
    retention_days: after which exemplars are deleted; 0: never.  min_images: in an update, if there are fewer none is
    sent.  store_key: a file with 32 random bytes, with which the store is encrypted; none: it is not.
    """

    name: str
    data: Path
    store: Path
    announce: Announce = "rounded"
    holdout: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.1
    resize: str = ""
    evaluate: StrictBool = True
    device: str = "auto"
    allow: tuple[str, ...] = ()
    max_exemplars: Annotated[int, Field(strict=True, ge=0)] | None = None
    retention_days: Annotated[int, Field(strict=True, ge=0)] = 0
    min_images: Annotated[int, Field(strict=True, ge=0)] = 0
    store_key: Path | None = None

    def __post_init__(self) -> None:
        for _, told in _faults(vars(self)):
            raise ConfigError(f"site {self.name}: {told}")

    @classmethod
    def read(cls, mapping: Mapping[str, Any], where: str = "site") -> Self:
        """From a node's configuration: flat, kebab-case keys, plain values; `allow` is separated by commas."""
        settings: Self = read_table(cls, site_table(mapping), where)
        return settings

    @classmethod
    def faults(cls, mapping: Mapping[str, Any], where: str = "site") -> dict[str, str]:
        """All that `read` would refuse, by key."""
        table = site_table(mapping)
        found = {fault.key: str(fault) for fault in table_faults(cls, table, where) if isinstance(fault, TableError)}
        return found | {key: f"{where}: {told}" for key, told in _faults(table, found)}


def site_table(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A node's configuration with keys as in SiteSettings, paths as such, and `allow` as a tuple."""
    table = {key.replace("-", "_"): value for key, value in mapping.items()}
    for name in ("data", "store", "store_key"):
        if isinstance(table.get(name), str):
            with contextlib.suppress(RuntimeError):  # ~USER, and there is no such user: checked below
                table[name] = Path(table[name]).expanduser()
    if isinstance(table.get("allow"), str):
        table["allow"] = tuple(part.strip() for part in table["allow"].split(",") if part.strip())
    return table


def _faults(table: Mapping[str, Any], odd: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Keys with a value that cannot be used, and why.  odd: keys whose value has not even the right type."""
    for key, check in CHECKS.items():
        if key in table and key not in odd:
            try:
                check(table[key])
            except ConfigError as error:
                yield key, str(error)
    if not {"data", "store"} & set(odd) and {"data", "store"} <= set(table):
        data, store = Path(table["data"]), Path(table["store"])
        if store.resolve().is_relative_to(data.resolve()):
            yield "store", f"store = {store}: lies within data, where folders are classes; move it out"


def _check_name(name: str) -> None:
    if not FILE_NAME.fullmatch(name):
        raise ConfigError(
            f"name = {name!r}: use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )


def _check_data(data: str | Path) -> None:
    path = Path(data)
    if not (path.is_dir() or (path.is_file() and path.suffix == ".npz")):
        fault = "is neither a folder nor an .npz file" if path.exists() else "does not exist"
        raise ConfigError(f"data = {data}: {fault}; name the folder with the site's images")


def _check_store(store: str | Path) -> None:
    path = Path(store)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"store = {store}: is not a folder; name a folder, existing or new")
    if str(store).startswith("~"):
        raise ConfigError(f"store = {store}: there is no such user; write the whole path")


def _check_allow(names: Sequence[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[\w.]+:\w+", name):
            raise ConfigError(f"allow = {name!r}: write package.module:name")


CHECKS: dict[str, Callable[[Any], object]] = {
    "name": _check_name,
    "data": _check_data,
    "store": _check_store,
    "resize": lambda size: image_of(size, "resize"),
    "allow": _check_allow,
    "device": lambda name: check_device(name, where="device"),
}


def image_of(size: str, key: str = "image-size") -> tuple[int, int, int] | None:
    """ "64x48x3": 64 pixels high, 48 wide, in colour."""
    if not size:
        return None
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})x([13])", size)
    if found is None or not int(found[1]) or not int(found[2]):
        raise ConfigError(f"{key} = {size!r}: write HEIGHTxWIDTHxCHANNELS, such as 64x64x3 (1: gray, 3: colour)")
    return int(found[1]), int(found[2]), int(found[3])
