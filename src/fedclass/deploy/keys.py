"""Keys and certificates of a deployment, in one folder.

    FOLDER/ca.crt           goes to every site: it tells them that the server is the right one
    FOLDER/ca.key           private; signs new server certificates and is used for nothing else
    FOLDER/server.crt, .key private; what the server shows to the sites
    FOLDER/sites/NAME       private; goes to that site, which signs with it that it is NAME
    FOLDER/sites/NAME.pub   stays; the server registers it

What exists is never overwritten: the folder only grows.
"""

import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedclass.errors import ConfigError

CA_DAYS = 3650
SERVER_DAYS = 365
LOCAL = ("localhost", "127.0.0.1")  # the server's own processes, its command line and its proxy dial these
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # no dot: NAME.pub is another file
HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
NOT_A_KEY = (ValueError, TypeError, UnsupportedAlgorithm)  # damaged, encrypted, of another kind
CLOCK_SKEW = timedelta(hours=1)  # a site's clock may be behind ours


@dataclass(frozen=True)
class Keys:
    """Where everything is. made: what this call has written."""

    folder: Path
    hosts: tuple[str, ...]
    expires: datetime
    sites: tuple[str, ...]
    made: tuple[Path, ...]

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    def private(self, site: str) -> Path:
        return self.folder / "sites" / site

    def public(self, site: str) -> Path:
        return self.folder / "sites" / f"{site}.pub"


def make_keys(folder: Path, *, hosts: Sequence[str] = (), sites: Sequence[str] = (), days: int = SERVER_DAYS) -> Keys:
    """Add what is missing. Everything is checked before anything is written.

    hosts: names and addresses under which sites reach the server.  days: how long a new server certificate is valid.
    """
    for site in sites:
        if not SITE_NAME.fullmatch(site):
            raise ConfigError(
                f"--site {site!r}: take at most 63 letters, digits, - and _; the first a letter or a digit"
            )
    hosts = tuple(dict.fromkeys(_host(host) for host in hosts))
    if not 1 <= days <= CA_DAYS:
        raise ConfigError(f"--days {days}: a server certificate may be valid for 1 to {CA_DAYS} days")
    try:
        _check_folder(folder)
        server, files = _server(folder, hosts, days)
        for site in dict.fromkeys(sites):
            files |= _site(folder / "sites" / site)
        for file in files:
            if file.exists():
                raise ConfigError(f"{file}: exists without its other half and is not overwritten; move it away first")
        _write(folder, files)
        known = sorted(file.stem for file in (folder / "sites").glob("*.pub"))
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise ConfigError(f"{where}: {error.strerror}; make it accessible, or choose another --out") from None
    return Keys(folder, _hosts(server), server.not_valid_after_utc, tuple(known), tuple(files))


def _check_folder(folder: Path) -> None:
    for place in (folder, folder / "sites"):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"{place}: is not a folder; choose another --out")
            if place.stat().st_mode & 0o077:
                raise ConfigError(
                    f"{place}: others have access to it; chmod 700 {place}, or choose a new folder as --out"
                )


def _server(folder: Path, hosts: Sequence[str], days: int) -> tuple[x509.Certificate, dict[Path, bytes]]:
    """The folder's server certificate, or a new one with the files that it needs."""
    ca_file, key_file, server_file = folder / "ca.crt", folder / "server.key", folder / "server.crt"
    if server_file.exists():
        server = _read_certificate(server_file)
        try:
            present = _hosts(server)
        except x509.ExtensionNotFound:
            raise ConfigError(f"{server_file}: names no hosts, so sites would refuse it; move it away first") from None
        if hosts and set(hosts) - set(LOCAL) != set(present) - set(LOCAL):
            raise ConfigError(
                f"{server_file}: is for {', '.join(present)} and is not overwritten; "
                f"for other hosts move it and {key_file} away first (sites keep their files)"
            )
        if not ca_file.exists():
            raise ConfigError(f"{ca_file}: is missing beside server.crt; bring it back, or begin with another --out")
        return server, {}
    if not hosts:
        raise ConfigError(f"{folder}: has no server certificate; say how sites reach it, e.g. --host fl.example.org")
    now = datetime.now(UTC).replace(microsecond=0)
    ca, ca_key, files = _authority(folder, now)
    until = now + timedelta(days=days)
    if until > ca.not_valid_after_utc:
        raise ConfigError(f"--days {days}: {ca_file} itself ends on {ca.not_valid_after_utc:%Y-%m-%d}; take fewer days")
    key = ec.generate_private_key(ec.SECP384R1())
    server = _server_certificate(key, [*hosts, *LOCAL], ca, ca_key, now, until)
    return server, {**files, key_file: _pem(key), server_file: server.public_bytes(Encoding.PEM)}


def _host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        labels = host.split(".")
        if len(host) > 253 or labels[-1].isdigit() or not all(HOST_LABEL.fullmatch(label) for label in labels):
            raise ConfigError(
                f"--host {host!r}: is neither a host name nor an IP address; give it without https:// and port"
            ) from None
        return host.lower()


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(name.value) for name in names)


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey, dict[Path, bytes]]:
    """The folder's CA, or a new one with the files that it needs."""
    certificate_file, key_file = folder / "ca.crt", folder / "ca.key"
    if not certificate_file.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = _ca_certificate(key, now)
        return certificate, key, {key_file: _pem(key), certificate_file: certificate.public_bytes(Encoding.PEM)}
    certificate = _read_certificate(certificate_file)
    if not key_file.exists():
        raise ConfigError(f"{key_file}: is missing; it has to sign the new server certificate, so bring it back")
    try:
        loaded = load_pem_private_key(key_file.read_bytes(), None)
    except NOT_A_KEY:
        raise ConfigError(f"{key_file}: is not an unencrypted PEM private key; bring back the right file") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
        raise ConfigError(f"{key_file}: does not belong to {certificate_file}; bring back the right file")
    return certificate, loaded, {}


def _read_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError:
        raise ConfigError(f"{file}: is not a PEM certificate; bring back the right file, or move it away") from None


def _ca_certificate(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedclass CA")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def _server_certificate(
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    names = [_general_name(host) for host in dict.fromkeys(hosts)]
    issuer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedclass server")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(ca_key, hashes.SHA384())
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _site(private: Path) -> dict[Path, bytes]:
    """What a site lacks. Its private key may be gone from here: it belongs on the site."""
    public = private.with_name(f"{private.name}.pub")
    if public.exists():
        return {}
    files = {}
    if private.exists():
        try:
            key = load_ssh_private_key(private.read_bytes(), None)
        except NOT_A_KEY:
            raise ConfigError(f"{private}: is not an unencrypted OpenSSH private key; move it away first") from None
    else:
        key = ec.generate_private_key(ec.SECP384R1())
        files[private] = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    comment = f" {private.name}\n".encode()
    files[public] = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + comment
    return files


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(folder: Path, files: dict[Path, bytes]) -> None:
    """In the given order: a private key before what depends on it. Only the owner can read anything.

    A name appears with its whole content, or not at all.
    """
    for place in (folder, folder / "sites"):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file, content in files.items():
        handle, draft = tempfile.mkstemp(dir=file.parent)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(handle)
            file.hardlink_to(draft)  # fails if the name was taken meanwhile, where a rename would overwrite
        finally:
            Path(draft).unlink()
