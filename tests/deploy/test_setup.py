"""What a machine is set up with: users, folders and units, by one command; or as a container."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from commands import called

ROOT = Path(__file__).parents[2]
DEPLOY, DOCKERFILE = ROOT / "docs" / "deploy", ROOT / "docker" / "Dockerfile"
ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.parametrize("role", ["server", "site"])
def test_one_step_makes_folders_that_others_cannot_read(role: str, tmp_path: Path) -> None:
    words = ["sh", str(DEPLOY / "setup.sh"), role]
    for _ in range(2):  # it can be run again
        done = subprocess.run(words, env={**os.environ, "ROOT": str(tmp_path)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    private = ["etc/fedclass", "var/lib/fedclass", *(["etc/fedclass/keys"] if role == "server" else [])]
    for folder in private:
        assert (tmp_path / folder).stat().st_mode & 0o007 == 0, folder
    unit = (tmp_path / "etc/systemd/system" / f"fedclass-{role}.service").read_text()
    assert unit == (DEPLOY / f"fedclass-{role}.service").read_text()
    assert f"enable --now fedclass-{role}" in done.stdout
    assert subprocess.run(words[:-1], capture_output=True).returncode == 2


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze; to have it: apt-get install systemd")
@pytest.mark.parametrize("role", ["server", "site"])
def test_units_are_hardened(role: str) -> None:
    """systemd's own measure, from 0 (safe) to 10."""
    words = [str(ANALYZE), "security", "--offline=true", "--no-pager", str(DEPLOY / f"fedclass-{role}.service")]
    said = subprocess.run(words, capture_output=True, text=True).stdout
    found = re.search(r"exposure level for \S+: ([0-9.]+)", said)
    assert found is not None, said
    assert float(found[1]) < 5


@pytest.mark.parametrize("role", ["server", "site"])
def test_unit_and_container_run_the_same_command_and_it_exists(role: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the extra [flower]")
    stage = DOCKERFILE.read_text().partition(f" AS {role}\n")[2].partition("\nFROM")[0]
    words = [word for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", stage, re.M) for word in json.loads(line)]
    unit = (DEPLOY / f"fedclass-{role}.service").read_text()
    assert f"ExecStart=/opt/fedclass/bin/{' '.join(words)}\n" in unit
    known = called(*words[1:3], "--help", cwd=tmp_path)
    assert known.returncode == 0, known.stderr
    for option in [word for word in words if word.startswith("--")]:
        assert option in known.stdout


def test_what_goes_into_containers_is_there() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", DOCKERFILE.read_text(), re.M)
    names = [name for line in copied for name in line.split()]
    assert {"constraints.txt", "pyproject.toml", "src"} <= set(names)
    assert [name for name in names if not (ROOT / name).exists()] == []
