"""Does a site's clock agree with the server's? Flower refuses signatures of another time."""

import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

SECONDS = 10.0  # to wait for the server
AHEAD, BEHIND = 5.0, 305.0  # seconds that Flower 1.41 allows


def ahead_of(server: str, ca: str) -> float | None:
    """Seconds by which this machine's clock is ahead of that of HOST:PORT; none if that cannot be found out."""
    try:
        trusted = ssl.create_default_context(cafile=ca)
        said = httpx.get(f"https://{server}/", verify=trusted, timeout=SECONDS).headers.get("date")
        return None if said is None else (datetime.now(UTC) - parsedate_to_datetime(said)).total_seconds()
    except (httpx.HTTPError, OSError, ValueError):
        return None


def clock_fault(ahead: float | None) -> str | None:
    """In words, if it is too much."""
    if ahead is None or -BEHIND <= ahead <= AHEAD:
        return None
    way = "ahead of" if ahead > 0 else "behind"
    return f"clock skew: this site's clock is {abs(ahead):.0f} s {way} the server's; run NTP on both"
