"""fedclass deploy split: a recipe's clients as sites."""

from pathlib import Path
from typing import Annotated

import typer

from fedclass.cli.run import Overrides, Recipe


def split(
    out: Annotated[Path, typer.Option(help="Folder to write to; new or empty.")],
    recipe: Recipe = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the partition.")] = None,
) -> None:
    """Write each client's images to a separate file, site-000.npz and so on, to try out a deployment.

    Sites with these files and holdout=0.0 end with the same weights as `fedclass run` of the recipe.
    """
    from fedclass.cli.display import console
    from fedclass.deploy.split import split as write
    from fedclass.experiment.recipe import load
    from fedclass.runs.counted import counted

    written = write(load(recipe, overrides or [], seed=seed), out)
    console.print(
        f"{counted(len(written), 'site')}: {written[0]} to {written[-1].name}; set holdout=0.0 there", highlight=False
    )
