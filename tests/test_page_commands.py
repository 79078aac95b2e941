"""Commands that README and docs show: fedclass takes each of them, with its options, recipe, methods and keys."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

import fedclass
from fedclass.cli import app

ROOT = Path(__file__).parents[1]
COMMAND = typer.main.get_command(app)
FILES_OF_THE_READER = re.compile(r"\bmy_|\.toml")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page, and the words after `fedclass`, of every such line in a block without a language. Shell variables: 1."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        shell = "".join(block for language, block in blocks if not language)
        for line in re.sub(r"\$[A-Z_]+", "1", shell.replace("\\\n", " ")).splitlines():
            for part in line.split(" && "):
                if re.match(r"fedclass +[a-z-]", part):  # no row of a table
                    yield page.name, shlex.split(part, comments=True)[1:]


def understood(words: list[str], within: click.Context | None = None) -> click.Context:
    """What the command would get; nothing is carried out."""
    context = within or click.Context(COMMAND, info_name="fedclass")
    assert isinstance(context.command, click.Group)
    name, command, rest = context.command.resolve_command(context, words)
    assert command is not None
    if isinstance(command, click.Group):
        return understood(rest, click.Context(command, parent=context, info_name=name))
    return command.make_context(name, list(rest), parent=context)


def first_value(setting: str) -> str:
    """Of a sweep's `key=1,2` the first; a value in brackets is a list."""
    return re.sub(r"=(\[.*?\]|[^,]*).*", r"=\1", setting)


def test_every_command_of_the_pages_is_one_that_fedclass_takes() -> None:
    paths, loaded = set(), 0
    for page, words in commands():
        line = f"{page}: fedclass {shlex.join(words)}"
        try:
            context = understood(words)
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")
        paths.add(context.command_path)
        given = context.params
        settings = [first_value(setting) for setting in [*given.get("settings", []), *given.get("overrides", [])]]
        if FILES_OF_THE_READER.search(line) or not (settings or given.get("recipe") or given.get("methods")):
            continue
        for method in (given.get("methods") or given.get("method") or "fedclass").split(","):
            name, *rest = method.split(":")
            parameters = [f"method.{word}" if "=" in word else f'method.variant="{word}"' for word in rest]
            try:
                fedclass.load(given.get("recipe"), [*settings, *parameters], method=name)
            except fedclass.FedclassError as error:
                pytest.fail(f"{line}: {error}")
            loaded += 1
    assert {"fedclass compare", "fedclass deploy keys", "fedclass site forget", "fedclass audit verify"} <= paths
    assert loaded > 30
