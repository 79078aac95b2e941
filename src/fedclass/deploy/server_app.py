"""Flower's entry point of the server."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedclass.deploy.server import serve
from fedclass.runs.events import Event
from fedclass.runs.progress import ProgressLines

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Whoever started the run with --stream sees a line per round; `fedclass watch` shows more."""
    lines = ProgressLines()

    def listen(event: Event) -> None:
        line = lines.line(event)
        if line is not None:
            print(line, flush=True)

    serve(grid, context.run_config, listen)
