"""What a site's log says of its connection: Flower's lines, each told once and in our words."""

import io
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from fedclass.deploy.site_process import Connection, Log


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[code: 2004] Failed to activate SuperNode.", "key unknown: this site's is not registered"),
        ("[code: 2001] SuperNode authentication is enabled.", "the server lets in registered keys only"),
        ("ssl: CERTIFICATE_VERIFY_FAILED", "the server's certificate is not one that `ca` vouches for"),
    ],
)
def test_failure_and_recovery_are_told_once_and_why_it_ended(tmp_path: Path, line: str, reason: str) -> None:
    said: list[str] = []
    connection = Connection("fl.example.org:8443", tmp_path / "flower.log", Log(said.append))
    away, back = "WARNING: Connection attempt failed, retrying in 1.2 seconds", "INFO: Connection successful after 3 s"
    lines = ["SuperNode ID: 77", away, away, "noise of Flower's", back, away, line]
    connection.follow(io.BytesIO("\n".join(lines).encode()))
    assert [text.partition(" ")[2] for text in said] == [
        "connected to fl.example.org:8443, as node 77",
        "fl.example.org:8443 does not answer; this site keeps trying",
        "fl.example.org:8443 answers again",
        "fl.example.org:8443 does not answer; this site keeps trying",
    ]
    assert connection.reason.startswith(reason)
    assert (tmp_path / "flower.log").read_text().splitlines() == lines
