"""A seed for everything, and seeds for parts of it."""

import tomllib
from collections.abc import Callable
from dataclasses import replace

import pytest

from fedclass.errors import ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.recipe import experiment, load
from fedclass.experiment.setup import prepare
from fedclass.federation.store import MemoryStore
from fedclass.wire import Job, sha256

Tiny = Callable[..., Experiment]

PURPOSES = ("initialisation", "partition", "class_order", "training")
DRAWN = ("stream.class_order=seeded", "partition.kind=dirichlet", "partition.min_size=1", "data.validation=0.2")


@pytest.fixture
def facts(tiny: Tiny) -> Callable[[Experiment], dict[str, object]]:
    """What each seed decides, the other things being equal: shares are drawn class by class, in order of arrival."""
    same = prepare(tiny(*DRAWN))
    model = same.build()
    model.grow_to(2, seed=0)
    job = Job(0, 0, 0, "train", model.weights(), None)

    def found(made: Experiment) -> dict[str, object]:
        setup = prepare(made)
        own = setup.build()
        own.grow_to(2, seed=made.seed_of("initialisation"))
        shared = prepare(replace(made, stream=replace(made.stream, class_order="natural"))).stream
        update = replace(setup, stream=same.stream).client(MemoryStore()).run(job)
        return {
            "initialisation": sha256(own.weights()),
            "partition": [share.tolist() for share in (*shared.shares, *shared.held_out)],
            "class_order": setup.stream.classes,
            "training": sha256(update.weights),
        }

    return found


def test_each_part_of_an_experiment_may_have_a_seed_of_its_own(
    tiny: Tiny, facts: Callable[[Experiment], dict[str, object]]
) -> None:
    none, five = facts(tiny(*DRAWN)), facts(tiny(*DRAWN, seed=5))
    assert all(none[purpose] != five[purpose] for purpose in PURPOSES)
    for own in PURPOSES:
        made = tiny(*DRAWN, f"seeds.{own}=5")
        assert experiment(tomllib.loads(made.to_toml())) == made
        found = facts(made)
        for purpose in PURPOSES:
            assert found[purpose] == (five if purpose == own else none)[purpose], f"{own} changes {purpose}"
    assert facts(tiny(*DRAWN, *(f"seeds.{own}=5" for own in PURPOSES), seed=3)) == five


def test_seeds_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match=r"seeds\.init=3: unknown key 'init'"):
        load(None, ["seeds.init=3"])
    with pytest.raises(ConfigError, match=r"seeds\.training=-1: "):
        load(None, ["seeds.training=-1"])
