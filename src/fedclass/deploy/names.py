"""Names of classes, as sites write them: which are refused, and which are the same."""

import unicodedata

LONGEST = 100  # characters
# Control characters write to a terminal, lone surrogates are no text; what is invisible, or turns the direction of
# writing, makes one name look like another.
REFUSED = {"Cc": "control", "Cs": "surrogate", "Cf": "invisible or direction", "Zl": "line", "Zp": "paragraph"}


def name_flaw(name: str) -> str | None:
    """Why a class cannot be called so."""
    if not name.strip():
        return "it is empty"
    if len(name) > LONGEST:
        return f"it has {len(name)} characters, and {LONGEST} are allowed"
    for letter in name:
        if (kind := unicodedata.category(letter)) in REFUSED:
            return f"it holds U+{ord(letter):04X}, a {REFUSED[kind]} character"
    return None


def normal(name: str) -> str:
    """In Unicode's NFC form, without white space at the ends; every other run of white space becomes one space."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def shown(name: str) -> str:
    """For people, whatever it holds: at most a line of printable text."""
    return ascii(name[:40]) + (" ..." if len(name) > 40 else "")
