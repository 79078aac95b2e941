"""fedclass deploy: sites on separate machines."""

from pathlib import Path
from typing import Annotated

import typer

from fedclass.cli import operator
from fedclass.cli.flower import needs_flower
from fedclass.cli.split import split

app = typer.Typer(help="Sites on separate machines, over Flower. Needs the extra `flower`.", no_args_is_help=True)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The app folder to make, for `flwr run`.")],
    out: Annotated[Path, typer.Option(help="The run directory, on the server's machine.")],
    recipe: Annotated[str, typer.Option(help="A recipe, as in `fedclass run`.")] = "federation",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of the recipe, such as train.rounds=2. Repeatable."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(help="Another key of the app's configuration, such as next-task=manual. Repeatable."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="For sites without keys.")] = False,
) -> None:
    """Write an app folder for Flower: a pyproject.toml with the configuration of a federation.

    Run this on the server's machine, as the user who runs the server: it checks what the server needs.

    Example:  fedclass deploy init app --out ~/runs/first --config next-task=manual --config min-sites=3
    """
    import shlex

    with needs_flower():
        from fedclass.deploy.app import write_app
        from fedclass.deploy.server import ServerSettings
    from fedclass.experiment.recipe import REDUCED

    given: dict[str, object] = {
        "recipe": recipe,
        "set": shlex.join(overrides or []),
        "out": str(out.expanduser().absolute()),
    }
    if Path(recipe).is_file() or Path(recipe.removesuffix(REDUCED)).is_file():
        given["recipe"] = str(Path(recipe).absolute())
    if insecure:
        given["pin-nodes"] = False
    given |= dict(_setting(text) for text in config or [])
    ServerSettings.read(given).check_here()
    write_app(folder, given)
    typer.echo(f"made {folder / 'pyproject.toml'}; next: flwr run {folder} fedclass --stream")


def _setting(text: str) -> tuple[str, object]:
    from fedclass.errors import ConfigError
    from fedclass.schema import toml_value

    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--config {text}: write it as key=value, such as next-task=manual")
    return key.strip(), toml_value(value)


app.command()(split)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for all files of the demonstration; new or empty.")] = Path(
        "runs/flower"
    ),
) -> None:
    """Run a server and three sites on this machine, with TLS and keys. In the second task, two sites have new classes.

    Takes some minutes and ends every process that it started. The sites' folders, stores and the run stay in --out.
    """
    from fedclass.cli.display import display
    from fedclass.cli.report import report
    from fedclass.cli.watch import print_results
    from fedclass.runs.layout import create

    with needs_flower():
        from fedclass.deploy.app import write_app
        from fedclass.deploy.demo import CONFIG, FIRST, LATER, add_images, settings_of
        from fedclass.deploy.loopback import Loopback
    from fedclass.runs.events import Event, TaskFinished

    root = create(out).root.absolute()
    run = root / "run"
    add_images(root, FIRST)
    write_app(root / "app", {"out": str(run), **CONFIG})
    typer.echo(f"starting a server and three sites with TLS and keys; logs are in {root / 'flower'}")
    with Loopback(root / "flower", settings_of(root)) as federation, display(["server"]) as shown:

        def listen(event: Event) -> None:
            shown.tell(0, event)
            if isinstance(event, TaskFinished) and event.task == 0:
                add_images(root, LATER)

        federation.follow(federation.submit(root / "app"), run, listen)
    print_results([run])
    report([run])
    for site in FIRST:
        typer.echo(f"what {site} keeps: fedclass site show --store {root / site / 'store'}")


for command in (
    operator.next_,
    operator.finish,
    operator.classes,
    operator.back,
    operator.withdraw,
    operator.status,
    operator.register,
    operator.remove,
):
    app.command(command.__name__.rstrip("_"))(command)


@app.command()
def link(
    keys: Annotated[Path, typer.Option(help="The folder that `fedclass deploy keys` made.")] = Path("keys"),
    database: Annotated[Path, typer.Option(help="Flower's database.")] = Path("superlink.db"),
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port on this machine that the proxy forwards to.")
    ] = 8000,
) -> None:
    """Run Flower's server part (SuperLink) until this process is ended. `flwr` then needs the operator's token.

    The token is made once, in the folder of the keys, and stored for this user's `flwr`. Only its owner can read it.
    """
    with needs_flower():
        from fedclass.deploy.keys import make_keys
        from fedclass.deploy.link import run_link

    def say(text: str) -> None:
        print(text, flush=True)

    run_link(make_keys(keys.absolute()), database.absolute(), port=port, say=say)


@app.command()
def keys(
    out: Annotated[Path, typer.Option(help="The folder. Existing files in it are kept.")] = Path("keys"),
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or IP address of the server, as sites reach it. Repeatable.", show_default=False),
    ] = None,
    site: Annotated[
        list[str] | None, typer.Option(help="Name of a site that gets a key. Repeatable.", show_default=False)
    ] = None,
    days: Annotated[int, typer.Option(help="How long a new server certificate is valid.")] = 365,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The proxy's port, to which sites connect.")] = 8443,
    rotate: Annotated[
        str | None, typer.Option(help="Give this site a new key; the server refuses its old one.", show_default=False)
    ] = None,
) -> None:
    """Make keys and certificates for the server and its sites, and print the commands that use them.

    Run it again with another --site to add a site: nothing is ever overwritten. --rotate does nothing else, and needs
    Flower's server part to be running (`fedclass deploy link`).
    """
    if rotate is not None:
        operator.rotate_key(out, rotate)
        return
    import shlex

    import tomli_w

    with needs_flower():
        from fedclass.deploy import commands
        from fedclass.deploy.keys import make_keys

    made = make_keys(out, hosts=host or (), sites=site or (), days=days)
    for file in made.made:
        typer.echo(f"made {file}")
    if not made.made:
        typer.echo(f"{out}: nothing was missing")
    typer.echo(f"The server's certificate is for {', '.join(made.hosts)} and ends on {made.expires:%Y-%m-%d}.")
    if made.ca_key.exists():
        typer.echo(
            f"{made.ca_key} is needed again only for a new server certificate: keep it offline, not on the server."
        )

    quiet = " ".join(f"{name}={value}" for name, value in commands.QUIET.items())
    typer.echo("\n# on the server; the port is for this machine only: docs/deploy-security.md has the proxy for sites")
    typer.echo(f"export {quiet}")
    typer.echo(shlex.join(["fedclass", "deploy", "link", "--keys", str(made.folder), "--database", "superlink.db"]))
    typer.echo("\n# on the server, in ~/.flwr/config.toml")
    typer.echo(commands.connection(made).rstrip())
    if made.sites:
        typer.echo("\n# on the server, once per site")
    for name in made.sites:
        typer.echo(shlex.join(["fedclass", "deploy", "register", name, "--keys", str(made.folder)]))

    address = f"[{made.hosts[0]}]:{port}" if ":" in made.hosts[0] else f"{made.hosts[0]}:{port}"
    for name in made.sites:
        typer.echo(
            f"\n# on site {name}, with copies of {made.ca} and {made.private(name)} (then delete the latter here)"
        )
        site_table = {"name": name, "data": "/path/to/images", "store": "/path/to/store"}
        settings = {"superlink": address, "ca": "ca.crt", "key": name, "site": site_table}
        typer.echo(f"cat > {name}.toml << END\n{tomli_w.dumps(settings).rstrip()}\nEND\nfedclass site run {name}.toml")
