"""fedclass site: take part in a federation; see and delete what the site keeps on its disk."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.flower import needs_flower
from fedclass.errors import ConfigError

if TYPE_CHECKING:  # commands import what they need, so that `--help` does not wait for torch
    from fedclass.deploy.site_store import FederationFolder

app = typer.Typer(
    help="Take part in federations. See and delete what the site keeps on its disk.",
    no_args_is_help=True,
)

Store = Annotated[Path, typer.Option(envvar="FEDCLASS_STORE", help="The folder in the site's setting `store`.")]

Key = Annotated[
    Path | None, typer.Option(envvar="FEDCLASS_STORE_KEY", help="The site's setting `store_key`, if it has one.")
]


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The site's TOML file (see docs/deploy.md).")],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without encryption and without a key; only for trials.")
    ] = False,
) -> None:
    """Take part in federations: keep Flower's SuperNode connected to the server until this process is ended.

    Example:  fedclass site run hospital-a.toml
    """
    with needs_flower():
        from fedclass.deploy.settings import SiteSettings
        from fedclass.deploy.site_process import NodeSettings, run_node

    def say(text: str) -> None:
        print(text, flush=True)

    settings = NodeSettings.read(file)
    run_node(settings, SiteSettings.read(settings.site, f"{file} [site]"), insecure=insecure, say=say)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The site's TOML file (see docs/deploy.md).")],
    online: Annotated[bool, typer.Option("--online", help="Also connect to the server, with TLS.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="As in `site run`.")] = False,
) -> None:
    """Check everything that `fedclass site run` needs, before going online. Exit code 2 if something is missing.

    Example:  fedclass site check hospital-a.toml --online
    """
    with needs_flower():
        from fedclass.deploy.inspect import inspect

    faults = 0
    for finding in inspect(file, online=online, insecure=insecure):
        faults += finding.fault
        mark = "FAULT  " if finding.fault else "warning" if finding.warning else "ok     "
        print(f"{mark}  {finding.text}", flush=True)
    if faults:
        raise typer.Exit(2)


@app.command()
def show(
    store: Store,
    key: Key = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in which tasks count from 0.")] = False,
) -> None:
    """Show how many images are kept of each class, since when, and what was deleted on request."""
    from fedclass.cli.display import console, print_table
    from fedclass.report.tables import Table
    from fedclass.runs.counted import counted

    found = [folder.describe() for folder in _federations(store, key)]
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for federation in found:
        tasks = ", ".join(f"task {task['task'] + 1}: {task['images']}" for task in federation["tasks"]) or "none"
        notes = [f"images that came with each task: {tasks}", f"teachers kept: {len(federation['teachers'])}"]
        if federation["forgotten_images"]:
            notes.append(f"forgotten images, no longer used: {federation['forgotten_images']}")
        notes += [
            f"forgotten on {gone['date']}: {gone['class']} ({counted(gone['count'], 'exemplar')}); it stays out "
            "of this federation"
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
    console.print(f"{counted(len(found), 'federation')} in {store}", highlight=False, markup=False)


@app.command()
def forget(
    store: Store,
    label: Annotated[str | None, typer.Argument(metavar="[CLASS]", help="The name of the class.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="An image file, or a copy of it. Only this image is deleted. Repeatable.")
    ] = None,
    older_than: Annotated[
        int | None, typer.Option(min=0, help="Delete exemplars chosen more than this many days ago.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all classes and all models kept.")] = False,
    federation: Annotated[str | None, typer.Option(help="Only in this federation. Default: in all.")] = None,
    key: Key = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a class, an image, or old exemplars for good: the pixels and the lists that name them.

    From then on, this site leaves the class or image out of the federation: even if it is still in the data folder, it
    is neither announced nor learned from. To start over instead, remove the federation's folder from the store. Files
    are replaced or unlinked, not overwritten. What models learned from the images is not undone.
    """
    from fedclass.cli.display import console
    from fedclass.deploy.holdings import digests_of
    from fedclass.deploy.ledger import days_ago
    from fedclass.runs.counted import counted

    if sum([label is not None, bool(image), older_than is not None, everything]) != 1:
        raise ConfigError("fedclass site forget: give the name of a class, --image, --older-than, or --all")
    folders = _chosen(_federations(store, key), store, federation, label)
    sizes = {size for folder in folders for size in folder.sizes()} if image else set()
    digests = {digest for file in image or [] for digest in digests_of(file, sizes)}

    def delete(folder: "FederationFolder") -> int:
        if label is not None:
            return folder.forget(label)
        if older_than is not None:
            first = days_ago(older_than)
            return folder.drop(lambda entry: entry.date >= first)
        return folder.forget_images(digests) if digests else folder.forget_all()

    what = (
        "everything" if everything else f"class {label!r}" if label is not None else counted(len(image or []), "image")
    )
    what = what if older_than is None else f"exemplars older than {counted(older_than, 'day')}"
    where = ", ".join(folder.root.name for folder in folders)
    if not yes:
        typer.confirm(f"Delete {what} from {where or 'no federation'}, for good?", abort=True)
    for folder in folders:
        with folder.locked():
            gone = delete(folder)
        console.print(f"{folder.root.name}: deleted {what}, {counted(gone, 'exemplar')}", highlight=False, markup=False)


def _chosen(
    folders: "list[FederationFolder]", store: Path, federation: str | None, label: str | None
) -> "list[FederationFolder]":
    """The folders of the named federation that keep anything of the named class; by default, all folders."""
    if federation is not None:
        known = [folder.root.name for folder in folders]
        if federation not in known:
            raise ConfigError(f"--federation {federation}: not in {store}; there are {', '.join(known) or 'none'}")
        folders = [folder for folder in folders if folder.root.name == federation]
    if label is None:
        return folders
    found = [folder for folder in folders if folder.spelled().get(label, label) in folder.classes()]
    if not found:
        classes = sorted({name for folder in folders for name in folder.classes()})
        raise ConfigError(f"{store}: nothing is kept of class {label!r}; classes are {', '.join(classes) or 'none'}")
    return found


def _federations(store: Path, key: Path | None) -> "list[FederationFolder]":
    if not store.is_dir():
        raise ConfigError(f"--store {store}: no such folder; give the folder in the site's setting `store`")
    from fedclass.deploy.site_store import federations

    if key is None:
        return federations(store)
    with needs_flower():
        from fedclass.deploy.sealed import Seal
    return federations(store, Seal.read(key))
