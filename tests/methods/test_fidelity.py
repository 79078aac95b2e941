"""Each method says where it comes from and how close it is to that; the page says the same."""

import re
from pathlib import Path

import pytest

from commands import called
from fedclass.methods import METHODS, FedAvg
from fedclass.methods.base import own_words

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
KINDS = r"compared with|re-implemented from the paper|^partial: |^ours|^FedAvg (without|on all)"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_states_its_own_source_and_fidelity(name: str) -> None:
    """In words that tell which of the three it is: compared, re-implemented, or partial; bounds are FedAvg."""
    source, fidelity = own_words(METHODS[name])
    assert re.search(r"arXiv \d{4}\.\d{5}|bound", source)
    assert re.search(KINDS, fidelity)


def test_the_page_has_a_row_for_each_in_the_same_words() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \|$", PAGE.read_text(), flags=re.MULTILINE)
    assert {name: (source, fidelity) for name, source, fidelity in rows} == {
        name: own_words(method) for name, method in METHODS.items()
    }


def test_neither_is_inherited_and_the_command_prints_both(tmp_path: Path) -> None:
    class Mine(FedAvg):
        pass

    assert own_words(Mine) == ("its class does not say",) * 2
    shown = " ".join(called("methods", "ewc", cwd=tmp_path).stdout.split())
    for words in own_words(METHODS["ewc"]):
        assert words in shown
