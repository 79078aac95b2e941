"""Bytes and seconds in readable units."""


def byte_unit(largest: float) -> tuple[str, float]:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= scale:
            return unit, scale
    return "bytes", 1.0


def show_bytes(count: float) -> str:
    unit, scale = byte_unit(count)
    return f"{count / scale:.1f} {unit}" if scale > 1 else f"{count:.0f} bytes"


def show_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
