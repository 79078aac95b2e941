"""Everything that a site needs, tried before it goes online."""

import socket
import ssl
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedclass.deploy.clock import ahead_of, clock_fault
from fedclass.deploy.executor import check_flower
from fedclass.deploy.holdings import FEW, read_holdings
from fedclass.deploy.keys import NOT_A_KEY
from fedclass.deploy.settings import SiteSettings, image_of
from fedclass.deploy.site import seal_of, skipped_files
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
    """One finding after the other. What depends on something that is missing is not tried."""
    try:
        check_flower()
        settings = NodeSettings.read(path)
        site = SiteSettings.read(settings.site)
        yield Finding(f"{path}: site {site.name}, server {settings.superlink}")
    except FedclassError as error:
        yield Finding(str(error), fault=True)
        return
    yield from _images(site)
    yield from _store(site)
    if insecure:
        yield Finding("no TLS and no key (--insecure): whoever is on the way can read and change all", warning=True)
        return
    certificate = yield from _files(settings)
    if online and certificate:
        yield from _server(settings)


def _images(site: SiteSettings) -> Iterator[Finding]:
    try:
        holdings = read_holdings(site.data, holdout=site.holdout, resize=image_of(site.resize))
    except FedclassError as error:
        yield Finding(str(error), fault=True)
        return
    for line in skipped_files(holdings.skipped, site.data) if holdings.skipped else []:
        yield Finding(line, warning=True)
    if holdings.image is None:
        yield Finding(f"{site.data}: holds no images yet; one folder per class", warning=True)
        return
    height, width, channels = holdings.image
    yield Finding(f"images: {width}x{height} pixels, {'gray' if channels == 1 else 'colour'}")
    learned = Counter(holdings.classes[label] for label in holdings.train.labels)
    tested = Counter(holdings.classes[label] for label in holdings.held_out.labels)
    for name in holdings.classes:
        text = f"class {name}: {learned[name]} images to learn from, {tested[name]} to test with"
        few = learned[name] + tested[name] < FEW or not tested[name]
        yield Finding(f"{text}; few" if few else text, warning=few)
    if sum(learned.values()) < site.min_images:
        yield Finding(f"min_images = {site.min_images}: there are fewer, so no update is ever sent", warning=True)


def _store(site: SiteSettings) -> Iterator[Finding]:
    probe = site.store / ".writable"
    try:
        site.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(probe, b"")
        probe.unlink()
    except OSError as error:
        yield Finding(f"store = {site.store}: cannot be written ({error.strerror}); name a folder of yours", fault=True)
        return
    open_to_others = bool(site.store.stat().st_mode & 0o077)
    yield Finding(
        f"store = {site.store}: can be written"
        + ("; others have access, which `site run` takes from them" if open_to_others else ", and is private"),
        warning=open_to_others,
    )
    try:
        seal = seal_of(site)
        kept = [folder.describe() for folder in federations(site.store, seal)]
    except FedclassError as error:
        yield Finding(str(error), fault=True)
        return
    yield Finding(f"store: {len(kept)} federations, {'encrypted' if seal else 'not encrypted (store_key)'}")


def _files(settings: NodeSettings) -> Generator[Finding, None, bool]:
    """Returns whether the certificate can be used to dial."""
    usable = False
    if not settings.ca or not settings.key:
        yield Finding("ca and key are needed; `fedclass deploy keys` makes them on the server", fault=True)
        return usable
    try:
        ends = x509.load_pem_x509_certificate(Path(settings.ca).read_bytes()).not_valid_after_utc
        left = ends - datetime.now(UTC)
        usable = left > timedelta(0)
        yield Finding(f"ca = {settings.ca}: valid until {ends:%Y-%m-%d}", fault=not usable, warning=left < SOON)
    except (OSError, ValueError):
        yield Finding(f"ca = {settings.ca}: is not a PEM certificate; copy ca.crt from the server again", fault=True)
    try:
        check_private(Path(settings.key))
        key = load_ssh_private_key(Path(settings.key).read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError
        yield Finding(f"key = {settings.key}: can be used, and is private")
    except FedclassError as error:
        yield Finding(str(error), fault=True)
    except (OSError, *NOT_A_KEY):
        yield Finding(f"key = {settings.key}: is not a key of `fedclass deploy keys`; copy it again", fault=True)
    return usable


def _server(settings: NodeSettings) -> Iterator[Finding]:
    host, _, port = settings.superlink.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=settings.ca)
    try:
        with (
            socket.create_connection((host, int(port)), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as line,
        ):
            shown = line.getpeercert(binary_form=True)
            assert shown is not None
            ends = x509.load_der_x509_certificate(shown).not_valid_after_utc
        soon = ends - datetime.now(UTC) < SOON
        yield Finding(
            f"{settings.superlink}: answers, and its certificate is right; it ends on {ends:%Y-%m-%d}", warning=soon
        )
        if (fault := clock_fault(ahead_of(settings.superlink, settings.ca))) is not None:
            yield Finding(fault, fault=True)
        yield Finding("whether the server knows this site's key shows when the site is started: `fedclass site run`")
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        yield Finding(f"{settings.superlink}: its certificate is not one that ca vouches for ({reason})", fault=True)
    except (OSError, ValueError) as error:
        yield Finding(f"{settings.superlink}: cannot be reached ({error}); HOST:PORT, firewall?", fault=True)
