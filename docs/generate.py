"""Pages of the documentation that are made when it is built: from the settings, the commands, the methods, the API.

A hook of MkDocs (`mkdocs.yml`). Nothing of these pages is kept in the repository.
"""

import inspect
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

import fedclass
from fedclass import losses, metrics
from fedclass.cli import app
from fedclass.cli.keys import Key, keys_of, recipe_keys
from fedclass.experiment.recipe import SECTIONS, recipes
from fedclass.methods import METHODS, Declaration
from fedclass.report.page import report
from fedclass.runs.config_file import DEFAULT_METHOD

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "reference/configuration.md": configuration(),
        "reference/commands.md": commands(),
        "reference/methods.md": methods(),
        "reference/api.md": api(),
        "notebooks/quickstart.md": notebook("notebooks/quickstart.ipynb"),
        "changelog.md": from_root("CHANGELOG.md"),
        "contributing.md": from_root("CONTRIBUTING.md"),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """The site holds no source files: links to them become their names. acc[t][i] is no link."""
    markdown = re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?:src|tests|bench)/[^)]+\)", r"`\1`", markdown)
    parts = re.split(r"(```.*?```|`[^`\n]+`)", markdown, flags=re.DOTALL)  # text and code in turns
    parts[::2] = [re.sub(r"(?<=\w)\[([^\]\n]+)\]\[([^\]\n]+)\]", r"\\[\1\\]\\[\2\\]", part) for part in parts[::2]]
    return "".join(parts)


class PlainDocstrings(griffe.Extension):
    """Docstrings are plain text with formulas: what Markdown would take for its own is escaped."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = escaped(obj.docstring.value)


def escaped(text: str) -> str:
    """Plain text for Markdown: indented lines and words in backticks stay as they are."""

    def line(words: str) -> str:
        parts = words.split("`")
        parts[::2] = [re.sub(r"([*_\[\]>|])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
        return "`".join(parts)

    return "\n".join(words if words.startswith("    ") else line(words) for words in text.splitlines())


def from_root(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


def notebook(path: str) -> str:
    """Its cells one after the other, and the file to open in Jupyter or Colab."""
    file = ROOT / "docs" / path
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    parts = ["".join(cell["source"]) for cell in cells]
    shown = [
        part if cell["cell_type"] == "markdown" else f"```python\n{part}\n```"
        for cell, part in zip(cells, parts, strict=True)
    ]
    title, about = shown[0].split("\n", 1)
    return page([title, f"[The notebook itself]({file.name}), for Jupyter or Colab.", about, *shown[1:]])


def configuration() -> str:
    parts = [
        "# Configuration",
        "A recipe is a TOML file of these tables. Every key has a default, and a recipe holds those that differ. "
        "`--set table.key=value` overrides one. `fedclass keys` prints this page.",
        f"Included recipes: {', '.join(f'`{name}`' for name in recipes())}. "
        "A run stores its whole recipe, defaults included, as `config.toml`.",
    ]
    for name, keys in recipe_keys().items():
        about = inspect.getdoc(SECTIONS[name]) if name in SECTIONS else ""
        more = (about or "").partition(". ")[2]
        if name == "method":
            more = f"The parameters of the method `{DEFAULT_METHOD}`. [Others](methods.md) have their own."
        parts += [f"## `[{name}]`" if name else "## Outside any table", more, table_of(keys)]
    return page(parts)


def methods() -> str:
    parts = [
        "# Methods",
        "All methods use one training loop, with the same images, in the same order, from the same first weights. "
        "[Your own method](../add-a-method.md) is one class. [Fidelity](../fidelity.md) says how close each one "
        "comes to its authors' code.",
    ]
    for id, kind in METHODS.items():
        keys = keys_of(kind)
        parts += [f"## {id}", escaped(inspect.cleandoc(kind.__doc__ or "")), declared(kind().declare())]
        parts.append(table_of(keys) if keys else "It has no parameters.")
    return page(parts)


def declared(about: Declaration) -> str:
    """What a method wants and sends, as a list."""
    facts = [
        f"Teacher: {'the ' + about.teacher.replace('received', 'received model') if about.teacher else 'none'}.",
        f"Exemplars: {about.select or 'chosen as `memory.select` says'}"
        + (", drawn by the method itself." if about.replay == "own" else ", among the new images."),
    ]
    for what, names in (
        ("The server keeps", about.server),
        ("Each client keeps", about.client),
        ("Each exemplar carries", about.rows),
        ("Clients send in each round, besides weights", about.uploads.get("train", {})),
        ("Clients send at the end of a task", about.uploads.get("end_task", {})),
    ):
        if names:
            facts.append(f"{what}: {', '.join(f'`{name}`' for name in names)}.")
    return "\n".join(f"- {fact}" for fact in facts)


def commands() -> str:
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="fedclass", title="Commands")
    text = re.sub(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+\n?", "", text)  # cut short; the page's contents list them
    return re.sub(r"^Examples?:  +(.*(?:\n {3,}.*)*)", _example, text.replace(r"\[", "["), flags=re.MULTILINE)


def _example(found: re.Match[str]) -> str:
    lines = "\n".join(line.strip() for line in found[1].splitlines())
    return f"```console\n{lines}\n```"


def api() -> str:
    """Public names, then what a method of one's own meets."""
    contract = ["Method", "FedAvg", "ClientContext", "ServerContext", "Batch", "Outcome", "Declaration", "Spec"]
    parts = ["# Python API", inspect.getdoc(fedclass) or "", "## `fedclass`"]
    own = [name for name in fedclass.__all__ if name not in (*contract, "METHODS")]
    parts += [_documented(report if name == "report" else getattr(fedclass, name), name) for name in own]
    parts += ["## A method's contract", *(_documented(getattr(fedclass.methods, name)) for name in contract)]
    parts += ["## `fedclass.metrics`", escaped(inspect.getdoc(metrics) or "")]
    parts += [_documented(getattr(metrics, name)) for name in metrics.__all__]
    parts += ["## `fedclass.losses`", *(_documented(getattr(losses, name)) for name in losses.__all__)]
    return page(parts)


def _documented(thing: Any, name: str | None = None) -> str:
    """A mark that mkdocstrings replaces. name: by which it is known, if that is not its own."""
    mark = f"::: {thing.__module__}.{thing.__qualname__}"
    return mark if name in (None, thing.__name__) else f"{mark}\n    options:\n      heading: {name}"


def table_of(keys: Iterable[Key]) -> str:
    rows = [
        (f"`{k.name}`", f"`{k.default}`" if k.default else "not set", _cell(k.allowed), _cell(k.meaning)) for k in keys
    ]
    return table(("key", "default", "allowed", "meaning"), rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;").replace("_", r"\_").replace("*", r"\*")


def page(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
