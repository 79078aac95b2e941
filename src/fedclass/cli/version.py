"""What is installed, in one line, without importing any of it."""

import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import fedclass

ROOT = Path(__file__).parents[3]  # of a checkout


def version() -> str:
    """fedclass 0.2.0 (commit 1234abc), torch 2.13.0, Python 3.12.3"""
    found = commit(ROOT)
    own = f"fedclass {fedclass.__version__}" + (f" (commit {found})" if found else "")
    return f"{own}, torch {_installed('torch')}, Python {platform.python_version()}"


def commit(root: Path) -> str | None:
    """The commit of a checkout, and whether files differ from it; None without a checkout or without git."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():  # a file in a linked worktree
        return None
    words = [git, "-C", str(root), "describe", "--always", "--dirty=, changed", "--exclude=*"]
    answer = subprocess.run(words, capture_output=True, text=True)
    return answer.stdout.strip() or None


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
