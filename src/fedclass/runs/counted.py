"""Numbers of things, in messages."""


def counted(number: int, one: str, several: str | None = None) -> str:
    """counted(1, "round") is "1 round"; counted(2, "round") is "2 rounds". several: an irregular plural."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
