"""What comes with fedclass, as its commands describe it: the keys of a recipe, the methods, the protocols.

Importing settings and methods imports torch, which takes seconds. Commands therefore read catalogue.json, which holds
what `described` returns. A test compares the two. To renew the file:

    python -c "from fedclass.cli.catalogue import renew; renew()"
"""

import json
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

FILE = "catalogue.json"


@cache
def stored() -> dict[str, Any]:
    """keys: by table of a recipe, without [method].  methods, protocols: by name."""
    table: dict[str, Any] = json.loads((resources.files("fedclass.cli") / FILE).read_text(encoding="utf-8"))
    return table


def described() -> dict[str, Any]:
    """The same, from settings, methods and protocols themselves."""
    from fedclass.cli.benchmark import described as lines
    from fedclass.cli.benchmark import facts
    from fedclass.cli.keys import recipe_keys
    from fedclass.cli.methods import describe as method
    from fedclass.experiment.protocol import protocols
    from fedclass.methods import METHODS

    keys = {table: [asdict(key) for key in rows] for table, rows in recipe_keys().items() if table != "method"}
    methods = {name: asdict(method(name)) for name in METHODS}
    about = {each.name: {"facts": facts(each), "lines": lines(each)} for each in protocols()}
    return {"keys": keys, "methods": methods, "protocols": about}


def renew(path: Path = Path(__file__).with_name(FILE)) -> None:
    """Write catalogue.json."""
    from fedclass.runs.layout import write_atomically

    write_atomically(path, json.dumps(described(), indent=1, ensure_ascii=False) + "\n")
