"""Keys and certificates, read back by other programs' rules."""

import ipaddress
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from commands import called
from fedclass.deploy import registered
from fedclass.deploy.keys import make_keys
from fedclass.errors import ConfigError, RunError


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def verify(ca: Path, server: Path, host: str) -> None:
    """As a client would, by the rules of RFC 5280 and the web's own."""
    try:
        subject: x509.DNSName | x509.IPAddress = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    PolicyBuilder().store(Store([certificate(ca)])).build_server_verifier(subject).verify(certificate(server), [])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_new_folder_has_a_ca_a_server_certificate_and_a_key_per_site(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    keys = make_keys(tmp_path / "keys", hosts=["FL.example.org", "10.1.2.3", "fl.example.org"], sites=["a", "b-2"])
    assert keys.hosts == ("fl.example.org", "10.1.2.3", "localhost", "127.0.0.1")
    assert keys.sites == ("a", "b-2")
    assert set(contents(keys.folder)) == {
        *("ca.crt", "ca.key", "server.crt", "server.key"),
        *("sites/a", "sites/a.pub", "sites/b-2", "sites/b-2.pub"),
    }
    assert set(keys.made) == {file for file in keys.folder.rglob("*") if file.is_file()}
    for host in keys.hosts:
        verify(keys.ca, keys.server, host)
    for host in ("example.org", "10.1.2.4"):
        with pytest.raises(VerificationError):
            verify(keys.ca, keys.server, host)
    server, ca = certificate(keys.server), certificate(keys.ca)
    assert abs(server.not_valid_after_utc - before - timedelta(days=365)) < timedelta(hours=1)
    assert abs(ca.not_valid_after_utc - before - timedelta(days=3650)) < timedelta(hours=1)
    assert keys.expires == server.not_valid_after_utc
    for file, owner in ((keys.ca_key, ca), (keys.server_key, server)):
        private = load_pem_private_key(file.read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.public_key() == owner.public_key()


def test_sites_have_p384_keys_in_the_openssh_format_each_its_own(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", hosts=["fl.example.org"], sites=["a", "b"])
    points = set()
    for site in keys.sites:
        private = load_ssh_private_key(keys.private(site).read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.curve.name == "secp384r1"
        assert load_ssh_public_key(keys.public(site).read_bytes()) == private.public_key()
        assert keys.public(site).read_text().endswith(f" {site}\n")
        points.add(private.public_key().public_numbers())
    assert len(points) == 2


def test_only_the_owner_has_access_whatever_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        keys = make_keys(tmp_path / "keys", hosts=["fl.example.org"], sites=["a"])
    finally:
        os.umask(mask)
    modes = {path: path.stat().st_mode & 0o777 for path in (keys.folder, *keys.folder.rglob("*"))}
    assert set(modes.values()) == {0o600, 0o700}
    assert all((mode == 0o700) == path.is_dir() for path, mode in modes.items())


def test_a_site_is_added_later_without_the_ca_key_and_nothing_else_changes(tmp_path: Path) -> None:
    first = make_keys(tmp_path / "keys", hosts=["fl.example.org"], sites=["a"])
    first.ca_key.unlink()
    first.private("a").unlink()  # it was taken to its site
    before = contents(first.folder)
    second = make_keys(tmp_path / "keys", hosts=["fl.example.org"], sites=["a", "b"])
    assert second.made == (second.private("b"), second.public("b"))
    assert second.sites == ("a", "b")
    after = contents(first.folder)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"sites/b", "sites/b.pub"}
    assert make_keys(tmp_path / "keys").made == ()


def test_a_new_server_certificate_comes_from_the_same_ca_which_sites_keep(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    keys = make_keys(folder, hosts=["old.example.org"], sites=["a"])
    sites_copy = tmp_path / "ca.crt"
    sites_copy.write_bytes(keys.ca.read_bytes())
    with pytest.raises(ConfigError, match=r"is for old\.example\.org, localhost, 127\.0\.0\.1 and is not overwritten"):
        make_keys(folder, hosts=["new.example.org"])
    keys.server.unlink()
    with pytest.raises(ConfigError, match=r"server\.key: exists without its other half"):
        make_keys(folder, hosts=["new.example.org"])
    keys.server_key.unlink()
    kept = keys.ca_key.rename(tmp_path / "ca.key")
    with pytest.raises(ConfigError, match=r"ca\.key: is missing; it has to sign"):
        make_keys(folder, hosts=["new.example.org"])
    kept.rename(keys.ca_key)
    time.sleep(1)  # then the CA has less than ten years left
    with pytest.raises(ConfigError, match=r"--days 3650: .*ca\.crt itself ends on"):
        make_keys(folder, hosts=["new.example.org"], days=3650)
    new = make_keys(folder, hosts=["new.example.org"], days=30)
    assert new.made == (new.server_key, new.server)
    verify(sites_copy, new.server, "new.example.org")
    assert abs(new.expires - datetime.now(UTC) - timedelta(days=30)) < timedelta(hours=1)


def test_a_ca_key_of_another_ca_is_refused(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", hosts=["fl.example.org"])
    other = make_keys(tmp_path / "other", hosts=["fl.example.org"])
    keys.server.unlink()
    keys.server_key.unlink()
    keys.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key: does not belong to .*ca\.crt"):
        make_keys(tmp_path / "keys", hosts=["fl.example.org"])
    keys.ca_key.write_text("no key")
    with pytest.raises(ConfigError, match=r"ca\.key: is not an unencrypted PEM private key"):
        make_keys(tmp_path / "keys", hosts=["fl.example.org"])


def test_a_server_certificate_that_is_none_or_names_no_host_is_refused(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", hosts=["fl.example.org"])
    keys.server.write_bytes(keys.ca.read_bytes())
    with pytest.raises(ConfigError, match=r"server\.crt: names no hosts"):
        make_keys(tmp_path / "keys", sites=["a"])
    keys.server.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"server\.crt: is not a PEM certificate"):
        make_keys(tmp_path / "keys", sites=["a"])
    assert list((tmp_path / "keys" / "sites").iterdir()) == []


def test_a_site_whose_making_was_interrupted_is_completed(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", hosts=["fl.example.org"], sites=["a"])
    public = keys.public("a").read_bytes()
    keys.public("a").unlink()
    again = make_keys(tmp_path / "keys", sites=["a"])
    assert again.made == (keys.public("a"),)
    assert keys.public("a").read_bytes() == public


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hosts": ["fl.example.org"], "sites": ["good", "../bad"]}, "--site '../bad': take at most 63 letters"),
        ({"hosts": ["fl.example.org"], "sites": ["a.pub"]}, "--site 'a.pub': take"),
        ({"hosts": ["fl.example.org"], "sites": [""]}, "--site '': take"),
        ({"hosts": ["https://fl.example.org"]}, "is neither a host name nor an IP address; give it without https://"),
        ({"hosts": ["fl.example.org:8443"]}, "--host 'fl.example.org:8443': is neither"),
        ({"hosts": ["300.1.2.3"]}, "--host '300.1.2.3': is neither"),
        ({"hosts": ["fl.example.org"], "days": 0}, "--days 0: a server certificate may be valid for 1 to 3650 days"),
        ({"sites": ["a"]}, "keys: has no server certificate; say how sites reach it, e.g. --host fl.example.org"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    wrong: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_keys(tmp_path / "keys", **wrong)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match=r"keys: others have access to it; chmod 700 "):
        make_keys(folder, hosts=["fl.example.org"])
    assert list(folder.iterdir()) == []
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"file: is not a folder; choose another --out"):
        make_keys(file, hosts=["fl.example.org"])


def fedclass(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return called("deploy", "keys", *words, cwd=cwd)


def test_the_command_prints_what_to_run_where(tmp_path: Path) -> None:
    done = fedclass("--host", "::1", "--host", "fl.example.org", "--site", "a", "--port", "443", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "made keys/sites/a" in lines
    assert "keys/ca.key is needed again only for a new server certificate: keep it offline, not on the server." in lines
    assert lines.count("export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1") == 1  # `site run` sets both
    assert "fedclass deploy link --keys keys --database superlink.db" in lines
    assert f'root-certificates = "{tmp_path}/keys/ca.crt"' in lines
    assert "fedclass deploy register a --keys keys" in lines
    file = done.stdout.partition("cat > a.toml << END\n")[2].partition("END\n")[0]
    assert tomllib.loads(file) == {
        "superlink": "[::1]:443",
        "ca": "ca.crt",
        "key": "a",
        "site": {"name": "a", "data": "/path/to/images", "store": "/path/to/store"},
    }
    assert lines[-1] == "fedclass site run a.toml"

    again = fedclass("--site", "third", cwd=tmp_path)
    assert again.stdout.splitlines()[:2] == ["made keys/sites/third", "made keys/sites/third.pub"]
    assert "fedclass deploy register a --keys keys" in again.stdout

    wrong = fedclass("--host", "other.example.org", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: keys/server.crt: is for ::1, fl.example.org, localhost, 127.0.0.1 and is")
    assert wrong.stderr.count("\n") == 1


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['cryptography'] = None; from fedclass.cli import main; main()"
    words = [sys.executable, "-c", code, "deploy", "keys", "--host", "a"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr == "error: this needs Flower; in a clone of fedclass: pip install -c constraints.txt '.[flower]'\n"
    )
    assert list(tmp_path.iterdir()) == []


FLOWER_SAYS = "Using SuperLink: fedclass (127.0.0.1:8000)\n\n{}"  # how Flower 1.41 begins


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("[code: 23] Public key already in use.", "the server knows its key, but .*json does not; restore that file"),
        (
            "Connection to the SuperLink is unavailable.",
            r"\(Connection to .* unavailable\); does `fedclass deploy link`",
        ),
    ],
)
def test_what_flower_refuses_is_told_in_our_words(tmp_path: Path, answer: str, said: str) -> None:
    """`flwr` ends with code 0 and says no in JSON; tests/deploy/test_security.py has Flower itself."""
    keys = make_keys(tmp_path / "keys", hosts=["localhost"], sites=["north"])
    refusal = json.dumps({"success": False, "error-message": FLOWER_SAYS.format(answer)})
    with pytest.raises(RunError, match=said) as raised:
        registered.register(keys, "north", lambda *_: refusal)
    assert "success" not in str(raised.value)
    assert registered.registered_nodes(keys.folder) is None


def test_a_key_that_cannot_be_registered_is_refused_before_flower_is_asked(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", hosts=["localhost"], sites=["north", "south", "west"])
    (keys.folder / registered.FILE).write_text(json.dumps({"north": 7, "south": None}))
    keys.public("west").write_text("ssh-ed25519 ?")
    for site, said in {
        "north": "its key is registered already; `fedclass deploy keys --rotate north`",
        "south": "its key was removed, and is refused for good; `fedclass deploy keys --rotate south`",
        "west": "is not a public key of `fedclass deploy keys`",
        "east": "does not exist; `fedclass deploy keys --site east` makes it",
    }.items():
        with pytest.raises(ConfigError, match=said):
            registered.register(keys, site, lambda *_: pytest.fail("Flower was asked"))


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="compares with ssh-keygen: install openssh-client")
def test_a_fingerprint_is_the_one_that_ssh_shows(tmp_path: Path) -> None:
    public = make_keys(tmp_path / "keys", hosts=["localhost"], sites=["north"]).public("north")
    shown = subprocess.run(["ssh-keygen", "-lf", str(public)], capture_output=True, text=True, check=True).stdout
    assert registered.fingerprint(public) == shown.split()[1]
