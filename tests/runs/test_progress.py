"""Lines about a run, as people read them."""

import pytest

from fedclass.runs.progress import holdings


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ([96], "1 client holds 96 training images"),
        ([32, 32, 32], "3 clients hold 32 training images each, 96 in all"),
        ([4, 20], "2 clients hold 4 to 20 training images each, 24 in all"),
    ],
)
def test_what_clients_hold(held: list[int], told: str) -> None:
    assert holdings(held) == told
