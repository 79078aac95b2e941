"""fedclass site: what a site keeps on its own disk, and how to have it deleted."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.deploy import needs_flower
from fedclass.errors import ConfigError

if TYPE_CHECKING:  # what a command needs it imports itself: `--help` must not wait for torch
    from fedclass.deploy.keep import FederationFolder

app = typer.Typer(
    help="What a site keeps on its own disk for the federations it takes part in: see it, have it deleted.",
    no_args_is_help=True,
)

Store = Annotated[Path, typer.Option(envvar="FEDCLASS_STORE", help="The folder that the site's setting `store` names.")]


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The site's file, as docs/deploy.md shows it.")],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="In plain text and without a key; only to try things out.")
    ] = False,
) -> None:
    """Take part in federations: keep Flower's SuperNode connected to the server, until this process is ended.

    Example:  fedclass site run hospital-a.toml
    """
    with needs_flower():
        from fedclass.deploy.node import NodeSettings, run_node

    def say(text: str) -> None:
        print(text, flush=True)

    run_node(NodeSettings.read(file), insecure=insecure, say=say)


@app.command()
def show(
    store: Store,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON; tasks then count from 0.")] = False,
) -> None:
    """Which images are kept of which class, since when, and what was deleted at the owner's wish."""
    from fedclass.cli.display import console, print_table
    from fedclass.report.tables import Table

    found = [folder.describe() for folder in _federations(store)]
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for federation in found:
        tasks = ", ".join(f"task {task['task'] + 1}: {task['images']}" for task in federation["tasks"]) or "none"
        notes = [f"images that came with each task: {tasks}", f"teachers kept: {len(federation['teachers'])}"]
        notes += [
            f"forgotten on {gone['date']}: {gone['class']} ({gone['count']} exemplars); it stays out of this federation"
            for gone in federation["forgotten"]
        ]
        rows = [
            (kept["class"], str(kept["count"]), str(kept["task"] + 1), kept["date"]) for kept in federation["exemplars"]
        ]
        print_table(
            Table(
                title=f"federation {federation['federation']}, site {federation['site']}",
                columns=("class", "exemplars", "since task", "since"),
                rows=tuple(rows),
                notes=tuple(notes),
            )
        )
    console.print(f"{len(found)} federations in {store}", highlight=False, markup=False)


@app.command()
def forget(
    store: Store,
    label: Annotated[str | None, typer.Argument(metavar="[CLASS]", help="The name of the class.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All classes, and the models that were kept.")] = False,
    federation: Annotated[str | None, typer.Option(help="Only what is kept for this one. Default: for all.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a class for good: its exemplars and the lists that name its images.

    The class then stays out of the federation at this site: images of it that are still in the data folder are neither
    announced nor learned from. To begin anew instead, remove the federation's folder from the store. Files are
    replaced or unlinked, not overwritten; what models have learned from the images is not undone.
    """
    from fedclass.cli.display import console

    if (label is None) != everything:
        raise ConfigError("fedclass site forget: give the name of a class, or --all")
    folders = _federations(store)
    if federation is not None:
        known = [folder.root.name for folder in folders]
        if federation not in known:
            raise ConfigError(f"--federation {federation}: not in {store}; there are {', '.join(known) or 'none'}")
        folders = [folder for folder in folders if folder.root.name == federation]
    if label is not None:
        classes = sorted({name for folder in folders for name in folder.classes()})
        folders = [folder for folder in folders if label in folder.classes()]
        if not folders:
            raise ConfigError(f"{store}: nothing is kept of class {label!r}; there are {', '.join(classes) or 'none'}")
    what = "everything" if label is None else f"class {label!r}"
    where = ", ".join(folder.root.name for folder in folders)
    if not yes:
        typer.confirm(f"Delete {what} from {where or 'no federation'}, for good?", abort=True)
    for folder in folders:
        with folder.locked():
            gone = folder.forget_all() if label is None else folder.forget(label)
        console.print(f"{folder.root.name}: {what} is deleted, {gone} exemplars", highlight=False, markup=False)


def _federations(store: Path) -> "list[FederationFolder]":
    from fedclass.deploy.keep import federations

    if not store.is_dir():
        raise ConfigError(f"--store {store}: is no folder; name the one that the site's setting `store` names")
    return federations(store)
