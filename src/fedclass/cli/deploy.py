"""fedclass deploy: sites on machines of their own."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Sites on machines of their own, over Flower. Needs fedclass[flower].", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass  # without it, typer would make a single command the whole of `deploy`


@app.command()
def keys(
    out: Annotated[Path, typer.Option(help="The folder. It may exist: what is there is kept.")] = Path("keys"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or IP address under which sites reach the server. Repeat for more.", show_default=False
        ),
    ] = None,
    site: Annotated[
        list[str] | None, typer.Option(help="Name of a site that gets a key. Repeat for more.", show_default=False)
    ] = None,
    days: Annotated[int, typer.Option(help="How long a new server certificate is valid.")] = 365,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port that sites dial, of the proxy.")] = 8443,
) -> None:
    """Make keys and certificates for the server and its sites, and print the commands that use them.

    Run it again with another --site to add one: nothing is ever overwritten.
    """
    try:
        from fedclass.deploy import commands
        from fedclass.deploy.keys import make_keys
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        from fedclass.errors import ConfigError

        raise ConfigError("fedclass deploy: needs Flower; pip install 'fedclass[flower]'") from None
    import shlex

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
    typer.echo(shlex.join(commands.superlink(made, Path("superlink.db"))))
    typer.echo("\n# on the server, in ~/.flwr/config.toml")
    typer.echo(commands.connection(made).rstrip())
    if made.sites:
        typer.echo("\n# on the server, once per site")
    for name in made.sites:
        typer.echo(shlex.join(commands.register(made, name)))

    address = f"[{made.hosts[0]}]:{port}" if ":" in made.hosts[0] else f"{made.hosts[0]}:{port}"
    for name in made.sites:
        typer.echo(
            f"\n# on site {name}, with copies of {made.ca} and {made.private(name)} (then delete the latter here)"
        )
        words = commands.supernode(
            address, ca=Path("ca.crt"), private=Path(name), site=name, data="/path/to/images", store="/path/to/store"
        )
        typer.echo(f"export {quiet}")
        typer.echo(shlex.join(words))
