"""What the owner of a site decides: where its images are, what it keeps, what it tells, what it runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool

from fedclass.errors import ConfigError
from fedclass.experiment.setup import check_device
from fedclass.schema import read_table

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
        if not FILE_NAME.fullmatch(self.name):
            raise ConfigError(
                f"site: name = {self.name!r}: use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or "
                "digit"
            )
        if not (self.data.is_dir() or (self.data.is_file() and self.data.suffix == ".npz")):
            fault = "is neither a folder nor an .npz file" if self.data.exists() else "is not there"
            raise ConfigError(f"site {self.name}: data = {self.data}: {fault}; name the folder with the site's images")
        if self.store.exists() and not self.store.is_dir():
            raise ConfigError(f"site {self.name}: store = {self.store}: is not a folder; name a folder, new or old")
        if self.store.resolve().is_relative_to(self.data.resolve()):
            raise ConfigError(
                f"site {self.name}: store = {self.store}: lies within data, where folders are classes; move it out"
            )
        image_of(self.resize, f"site {self.name}: resize")
        for allowed in self.allow:
            if not re.fullmatch(r"[\w.]+:\w+", allowed):
                raise ConfigError(f"site {self.name}: allow = {allowed!r}: write package.module:name")
        check_device(self.device, where=f"site {self.name}: device")

    @classmethod
    def read(cls, mapping: Mapping[str, Any]) -> Self:
        """From a node's configuration: flat, kebab-case keys, plain values; `allow` is separated by commas."""
        table = {key.replace("-", "_"): value for key, value in mapping.items()}
        for name in ("data", "store", "store_key"):
            if isinstance(table.get(name), str):
                table[name] = _path(table[name], name)
        if isinstance(table.get("allow"), str):
            table["allow"] = tuple(part.strip() for part in table["allow"].split(",") if part.strip())
        settings: Self = read_table(cls, table, "site")
        return settings


def image_of(size: str, key: str = "image-size") -> tuple[int, int, int] | None:
    """ "64x48x3": 64 pixels high, 48 wide, in colour."""
    if not size:
        return None
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})x([13])", size)
    if found is None or not int(found[1]) or not int(found[2]):
        raise ConfigError(f"{key} = {size!r}: write HEIGHTxWIDTHxCHANNELS, such as 64x64x3 (1: gray, 3: colour)")
    return int(found[1]), int(found[2]), int(found[3])


def _path(text: str, name: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"site: {name} = {text!r}: {error}") from error
