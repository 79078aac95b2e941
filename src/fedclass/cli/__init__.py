"""The command line. Commands import what they need when they run, so that --help is quick."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedclass.cli import compare, doctor, keys, listing, methods, model, plan, report, reproduce, run, watch
from fedclass.cli.audit import app as audit
from fedclass.cli.benchmark import app as benchmark
from fedclass.cli.cache import app as cache
from fedclass.cli.data import app as data
from fedclass.cli.deploy import app as deploy
from fedclass.cli.site import app as site
from fedclass.errors import FedclassError

EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong option or recipe, 3 data missing or damaged, 4 run directory unusable, "
    "5 a round had too few usable updates, 130 interrupted, 143 terminated."
)

app = typer.Typer(
    name="fedclass",
    help="Federated class-incremental learning: many sites train one image classifier, new classes keep arriving, "
    "and old ones are not forgotten.\n\nStart with `fedclass compare demo`, which needs no download.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("sweep")(compare.sweep)
app.command("reproduce")(reproduce.reproduce)
app.command("table")(compare.table)
app.command("watch")(watch.watch)
app.command("plan")(plan.plan)
app.command("report")(report.report)
app.command("methods")(methods.methods)
app.command("predict")(model.predict)
app.command("evaluate")(model.evaluate)
app.command("export")(model.export)
app.command("list")(listing.list_)
app.command("keys")(keys.keys)
app.command("doctor")(doctor.doctor)
app.add_typer(benchmark, name="benchmark")
app.add_typer(data, name="data")
app.add_typer(cache, name="cache")
app.add_typer(deploy, name="deploy")
app.add_typer(site, name="site")
app.add_typer(audit, name="audit")


def _version(wanted: bool) -> None:
    if wanted:
        from fedclass.cli.version import version

        print(version())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version, the commit of a checkout, and the version of torch.",
        ),
    ] = False,
) -> None:
    pass


def _stop(number: int, _: object) -> None:
    """Unwind once, so that no child process is left behind. Pressing Ctrl-C again changes nothing."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(143)


def main() -> None:
    """A user's mistake ends in one line on stderr and an exit code; only a defect of ours shows a traceback."""
    sys.path.append(str(Path.cwd()))  # for --method my_module:MyMethod
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored in the background
        signal.signal(signal.SIGINT, _stop)
    try:
        app()
    except FedclassError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
