"""Everything that a site needs, tried before it goes online."""

import socket
import ssl
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedclass.deploy.clock import ahead_of, clock_fault
from fedclass.deploy.executor import check_flower
from fedclass.deploy.holdings import FEW, read_holdings
from fedclass.deploy.keys import NOT_A_KEY
from fedclass.deploy.sealed import Seal
from fedclass.deploy.settings import SiteSettings, image_of, site_table
from fedclass.deploy.site import skipped_files
from fedclass.deploy.site_process import NodeSettings, check_private
from fedclass.deploy.site_store import federations
from fedclass.errors import FedclassError
from fedclass.runs.layout import write_atomically

SECONDS = 10.0  # that the server gets to answer
SOON = timedelta(days=30)


@dataclass(frozen=True)
class Finding:
    text: str
    fault: bool = False
    warning: bool = False


def inspect(path: Path, *, online: bool, insecure: bool) -> Iterator[Finding]:
    """All that can be found, good or bad. Only what depends on a faulty setting is not tried."""
    try:
        check_flower()
        table = NodeSettings.table(path)
    except FedclassError as error:
        yield Finding(str(error), fault=True)
        return
    faults = NodeSettings.faults(table, path)
    given: dict[str, Any] = {} if "site" in faults else table["site"]
    of_site = {} if "site" in faults else SiteSettings.faults(given, f"{path} [site]")
    for fault in (*faults.values(), *of_site.values()):
        yield Finding(fault, fault=True)
    if not faults and not of_site:
        yield Finding(f"{path}: site {given['name']}, server {table['superlink']}")
    usable = {key: value for key, value in site_table(given).items() if key not in of_site}
    if "data" in usable:
        yield from _images(usable)
    if "store" in usable:
        yield from _store(usable["store"], usable.get("store_key"))
    if insecure:
        yield Finding(
            "no TLS and no key (--insecure): anyone on the network path can read and change everything", warning=True
        )
        return
    certificate = "ca" not in faults and (yield from _certificate(table.get("ca", "")))
    if "key" not in faults:
        yield _key(table.get("key", ""))
    if online and certificate and "superlink" not in faults:
        yield from _server(table["superlink"], table["ca"])


def _images(site: Mapping[str, Any]) -> Iterator[Finding]:
    """site: settings that can be used, `data` among them."""
    data, least = site["data"], site.get("min_images", SiteSettings.min_images)
    try:
        resize = image_of(site.get("resize", SiteSettings.resize))
        holdings = read_holdings(data, holdout=site.get("holdout", SiteSettings.holdout), resize=resize)
    except FedclassError as error:
        yield Finding(str(error), fault=True)
        return
    for line in skipped_files(holdings.skipped, data) if holdings.skipped else []:
        yield Finding(line, warning=True)
    if holdings.image is None:
        yield Finding(f"{data}: holds no images yet; make one folder per class", warning=True)
        return
    height, width, channels = holdings.image
    yield Finding(f"images: {width}x{height} pixels, {'gray' if channels == 1 else 'colour'}")
    learned = Counter(holdings.classes[label] for label in holdings.train.labels)
    tested = Counter(holdings.classes[label] for label in holdings.held_out.labels)
    for name in holdings.classes:
        text = f"class {name}: {learned[name]} images to learn from, {tested[name]} to test with"
        few = learned[name] + tested[name] < FEW or not tested[name]
        yield Finding(f"{text}; few" if few else text, warning=few)
    if sum(learned.values()) < least:
        yield Finding(f"min_images = {least}: there are fewer, so no update is ever sent", warning=True)


def _store(store: Path, key: Path | None) -> Iterator[Finding]:
    probe = store / ".writable"
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(probe, b"")
        probe.unlink()
    except OSError as error:
        yield Finding(f"store = {store}: cannot be written ({error.strerror}); name a folder of yours", fault=True)
        if not store.is_dir():
            return
    else:
        open_to_others = bool(store.stat().st_mode & 0o077)
        yield Finding(
            f"store = {store}: can be written"
            + ("; others have access, which `site run` takes from them" if open_to_others else ", and is private"),
            warning=open_to_others,
        )
    try:
        seal = None if key is None else Seal.read(Path(key))
        kept = [folder.describe() for folder in federations(store, seal)]
    except FedclassError as error:
        yield Finding(str(error), fault=True)
        return
    yield Finding(f"store: {len(kept)} federations, {'encrypted' if seal else 'not encrypted (store_key)'}")


def _certificate(ca: str) -> Generator[Finding, None, bool]:
    """Returns whether it can be used to dial."""
    if not ca:
        yield Finding("ca is missing; `fedclass deploy keys` makes it on the server", fault=True)
        return False
    try:
        ends = x509.load_pem_x509_certificate(Path(ca).read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        yield Finding(f"ca = {ca}: is not a PEM certificate; copy ca.crt from the server again", fault=True)
        return False
    left = ends - datetime.now(UTC)
    over = left <= timedelta(0)
    text = f"ca = {ca}: expired on {ends:%Y-%m-%d}; ask the server's operator for a new one"
    yield Finding(text if over else f"ca = {ca}: valid until {ends:%Y-%m-%d}", fault=over, warning=left < SOON)
    return not over


def _key(key: str) -> Finding:
    if not key:
        return Finding("key is missing; `fedclass deploy keys` makes it on the server", fault=True)
    try:
        check_private(Path(key))
        if isinstance(load_ssh_private_key(Path(key).read_bytes(), None), ec.EllipticCurvePrivateKey):
            return Finding(f"key = {key}: can be used, and is private")
    except FedclassError as error:
        return Finding(str(error), fault=True)
    except (OSError, *NOT_A_KEY):
        pass
    return Finding(f"key = {key}: is not a key of `fedclass deploy keys`; copy it again", fault=True)


def _server(superlink: str, ca: str) -> Iterator[Finding]:
    host, _, port = superlink.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=ca)
    try:
        with (
            socket.create_connection((host, int(port)), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as line,
        ):
            shown = line.getpeercert(binary_form=True)
            assert shown is not None
            ends = x509.load_der_x509_certificate(shown).not_valid_after_utc
        soon = ends - datetime.now(UTC) < SOON
        yield Finding(f"{superlink}: answers, and its certificate is right; it ends on {ends:%Y-%m-%d}", warning=soon)
        if (fault := clock_fault(ahead_of(superlink, ca))) is not None:
            yield Finding(fault, fault=True)
        yield Finding("whether the server knows this site's key shows when the site is started: `fedclass site run`")
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        yield Finding(f"{superlink}: its certificate is not one that ca vouches for ({reason})", fault=True)
    except (OSError, ValueError) as error:
        yield Finding(f"{superlink}: cannot be reached ({error}); HOST:PORT, firewall?", fault=True)
