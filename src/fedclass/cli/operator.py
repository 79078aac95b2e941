"""fedclass deploy next, finish, classes, back, withdraw, status, register, remove: the operator's commands."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedclass.cli.flower import needs_flower

if TYPE_CHECKING:
    from fedclass.runs.layout import RunDirectory

Run = Annotated[Path, typer.Argument(help="The run directory of a federation, on the server's machine.")]
Keys = Annotated[Path, typer.Option(help="The folder that `fedclass deploy keys` made.")]


def next_(run: Run) -> None:
    """Let the next task begin as soon as the rounds under way are done and a site has a new class or new images.

    To continue a finished run, start the server's run again afterwards.
    """
    from fedclass.deploy.words import say_next
    from fedclass.runs.audit import operator

    finished = say_next(run, by=operator())
    typer.echo("the next task begins as soon as a site has an approved new class, or new images of known classes")
    if finished:
        typer.echo("this run was finished; to continue it, start it again with the same `flwr run`")


def finish(run: Run) -> None:
    """Let the run end after the task under way."""
    from fedclass.deploy.words import say_finish
    from fedclass.runs.audit import operator

    say_finish(run, by=operator())
    typer.echo("the run ends after the task under way")


def classes(
    run: Run,
    action: Annotated[
        Literal["approve", "reject", "merge"] | None,
        typer.Argument(help="What to do with the names. Default: list them."),
    ] = None,
    names: Annotated[
        list[str] | None, typer.Argument(help="The names. merge takes two: the site's name and that of the class.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All names that await a decision.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the class names that sites announce, and decide which of them are learned.

    Example:  fedclass deploy classes ~/runs/first
              fedclass deploy classes ~/runs/first approve cat dog
              fedclass deploy classes ~/runs/first merge ua UA
    """
    import json
    from dataclasses import asdict

    from rich.table import Table

    from fedclass.cli.display import console
    from fedclass.deploy.decisions import decide, read_offers
    from fedclass.runs.audit import operator
    from fedclass.runs.counted import counted

    _directory(run)
    if action is not None:
        done = decide(run, action, names or [], every=every, by=operator())
        into = f" into {(names or [])[1]!r}" if action == "merge" else ""
        verb = {"approve": "approved", "reject": "rejected", "merge": "merged"}[action]
        typer.echo(f"{verb}: {', '.join(map(repr, done[:20]))}{' ...' if len(done) > 20 else ''}{into}")
        return
    offers = read_offers(run)
    if as_json:
        print(json.dumps([{**asdict(offer), "images": offer.images} for offer in offers], indent=2))
        return
    table = Table(box=None, padding=(0, 2))
    for column in ("class", "images", "from", "since (UTC)", "state"):
        table.add_column(column)
    for offer in offers:
        images = "not told" if offer.images is None else str(offer.images)
        state = offer.state + (f"; differs from {offer.like!r} in case only" if offer.like else "")
        table.add_row(repr(offer.name), images, ", ".join(offer.sites), offer.since, state)
    console.print(table)
    waiting = sum(offer.state == "waiting" for offer in offers)
    typer.echo(f"{counted(len(offers), 'name')}, {waiting} wait for approval")


def back(
    run: Run,
    task: Annotated[
        int | None, typer.Option(min=1, help="The task, counted from 1. Default: the one begun last.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Return to the checkpoint before a task. Sites follow: they forget the exemplars and lists of that task and later.

    A server that is still running ends. Start the same run again to continue from there.
    """
    from fedclass.deploy.back import go_back
    from fedclass.runs.audit import operator

    _directory(run)
    if not yes:
        what = "the task begun last" if task is None else f"task {task}"
        typer.confirm(f"Forget {what} and all that came later, for good?", abort=True)
    gone = go_back(run, None if task is None else task - 1, by=operator())
    typer.echo(f"{run}: back to before task {gone + 1}; start the server's run again with the same `flwr run`")


def withdraw(
    run: Run,
    site: Annotated[str, typer.Argument(help="The name of the site.")],
    since: Annotated[
        int | None,
        typer.Option(min=1, help="Also go back to before this task, counted from 1, and learn it without the site."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Leave a site out from now on. What the model learned from it stays, unless --since is given.

    Example:  fedclass deploy withdraw ~/runs/first north --since 2
    """
    from fedclass.deploy.withdrawal import withdraw
    from fedclass.runs.audit import operator

    _directory(run)
    if since is not None and not yes:
        typer.confirm(f"Forget task {since} and all that came later, for good?", abort=True)
    withdraw(run, site, since=None if since is None else since - 1, by=operator())
    typer.echo(f"{site}: takes no part from the next round on")
    if since is not None:
        typer.echo(f"{run}: back to before task {since}; start the server's run again with the same `flwr run`")


def status(
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Show a live page on this machine, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page. 0: any free one.")] = 0,
) -> None:
    """Show sites, tasks, accuracies, names waiting for approval, and who was left out and why."""
    import json
    from dataclasses import asdict

    from fedclass.cli.federation_display import print_status
    from fedclass.deploy.status import read_status

    found = read_status(run)
    if web:
        with needs_flower():
            from fedclass.deploy.web import serve_page

        serve_page(run, port=port, say=lambda text: print(text, flush=True))
    elif as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print_status(found)


def register(
    sites: Annotated[list[str], typer.Argument(help="Names of the sites to register.")],
    keys: Keys = Path("keys"),
) -> None:
    """Register sites' keys with the server, each under its site's name. `fedclass deploy link` must be running."""
    with needs_flower():
        from fedclass.deploy import registered
        from fedclass.deploy.keys import make_keys
    made = make_keys(keys)
    for site in sites:
        node = registered.register(made, site)
        key = registered.fingerprint(made.public(site))
        typer.echo(
            f"site {site} is registered: key {key}, node {node}; in every run, its name belongs to this key alone"
        )
        if made.private(site).exists():
            typer.echo(f"next: copy {made.ca} and {made.private(site)} to the site, safely; delete the latter here")
        typer.echo(f"then, at the site: fedclass site run {site}.toml")


def remove(
    site: Annotated[str, typer.Argument(help="The name of the site.")],
    keys: Keys = Path("keys"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove a site: the server refuses its key from now on, and no other site gets its name.

    What the model learned from it stays. `fedclass deploy back` returns to an earlier task.
    """
    with needs_flower():
        from fedclass.deploy import registered
        from fedclass.deploy.keys import make_keys
    made = make_keys(keys)
    if not yes:
        typer.confirm(f"Refuse site {site} from now on?", abort=True)
    registered.remove(made, site)
    typer.echo(f"{site}: removed; `fedclass deploy keys --rotate {site}` would admit it again, with a new key")


def rotate_key(folder: Path, site: str) -> None:
    with needs_flower():
        from fedclass.deploy import registered
        from fedclass.deploy.keys import make_keys
    private = registered.rotate(make_keys(folder), site)
    typer.echo(
        f"{site}: has a new key; copy {private} to the site over a trusted channel, delete it here, and start "
        "`fedclass site run` again. The old key is refused from now on."
    )


def _directory(run: Path) -> "RunDirectory":
    from fedclass.deploy.words import federation

    return federation(run)
