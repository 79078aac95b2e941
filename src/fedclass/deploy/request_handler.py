"""What a site answers to a frame."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedclass.deploy.log import printable
from fedclass.engines.flower.frames import Frame
from fedclass.errors import DataError, FedclassError

if TYPE_CHECKING:  # brings PyTorch along
    from fedclass.deploy.site import Site

SITES = "FEDCLASS_SITES"  # a folder that `fedclass deploy split` has written, for simulated nodes


def answer(frame: Frame, node_config: Mapping[str, Any]) -> Frame:
    """The answer of the site that a node is configured for, as in Flower's simulation."""
    return respond(frame, lambda: site_of(_config(node_config)))


def _config(node_config: Mapping[str, Any]) -> dict[str, Any]:
    """Flower's simulation only numbers its nodes; the owner of the machine says where their data are."""
    config = dict(node_config)
    if "data" not in config and "partition-id" in config and SITES in os.environ:
        name, root = f"site-{int(config['partition-id']):03d}", Path(os.environ[SITES])
        return {"name": name, "data": str(root / f"{name}.npz"), "store": str(root / "stores" / name), "holdout": 0.0}
    config.pop("partition-id", None)
    config.pop("num-partitions", None)
    return config


def site_of(config: Mapping[str, Any]) -> "Site":
    from fedclass.deploy.settings import SiteSettings
    from fedclass.deploy.site import Site

    return Site(SiteSettings.read(config))


def _to_log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def for_server(error: FedclassError) -> str:
    """The message without words of exceptions that are not fedclass's: they may quote names, or data."""
    told, cause = str(error), error.__cause__
    while cause is not None:
        if not isinstance(cause, FedclassError):
            told = told.replace(f"{type(cause).__name__}: {cause}", type(cause).__name__)
        cause = cause.__cause__
    return told if told == str(error) else f"{told}; its own log says more"


def respond(frame: Frame, open_site: "Callable[[], Site]", say: Callable[[str], None] = _to_log) -> Frame:
    """Do what the frame asks, if it may be asked; a refusal is an answer too.

    What is wrong with the site's images is said here and not to the server: the words would name files.
    """
    from fedclass.deploy.site import MissingAttachmentError
    from fedclass.engines.flower import codec

    try:
        site = open_site()
        asked = codec.read_ask(frame)
        if isinstance(asked, codec.AnnouncementAsked):
            return codec.announcement(site.announce(asked.federation, asked.task, asked.returns))
        return codec.update(site.run(*asked))
    except DataError as error:
        say(printable(str(error)))
        return codec.refused("cannot use its images; its own log says why", lacks=False)
    except FedclassError as error:
        if (told := for_server(error)) != str(error):
            say(printable(str(error)))
        return codec.refused(told, lacks=isinstance(error, MissingAttachmentError))
    except Exception as error:  # whatever it is, the next request must find the site alive
        say(traceback.format_exc())
        return codec.refused(f"failed ({type(error).__name__}); its own log says why", lacks=False)
