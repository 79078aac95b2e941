"""A wire between two network namespaces that takes its time and loses packets, on any kernel with /dev/net/tun.

    python slow_wire.py FIRST SECOND DEVICE DELAY LOSS RATE

Makes a device of that name in either namespace and carries packets between them until it is ended. DELAY: seconds in
each direction.  LOSS: the share of packets that never arrive.  RATE: bits per second in each direction; packets wait
for those before them, and what would wait longer than QUEUE is lost. Then says how many it has carried and lost.
(The kernel's own way, `tc ... netem`, is a module that many kernels lack.)
"""

import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import sys
import time
from collections import deque
from pathlib import Path

CLONE_NEWNET = 0x40000000  # <linux/sched.h>
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # <linux/if_tun.h>: whole IP packets, and nothing else
LONGEST = 1 << 16  # bytes of a packet
QUEUE = 1.0  # seconds


def made(namespace: str, device: str) -> int:
    """A device in the namespace; returns its end that is here."""
    with (Path("/run/netns") / namespace).open() as entered:
        if ctypes.CDLL(None, use_errno=True).setns(entered.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    return end


class Direction:
    """From one end to the other. Packets keep their order."""

    def __init__(self, source: int, target: int, delay: float, loss: float, rate: float) -> None:
        self.source, self.target, self.delay, self.loss, self.rate = source, target, delay, loss, rate
        self.under_way = deque[tuple[float, bytes]]()  # when each arrives
        self.free = 0.0  # when the last one has left
        self.carried = self.lost = 0

    def take(self, now: float) -> None:
        packet = os.read(self.source, LONGEST)
        leaves = max(now, self.free) + 8 * len(packet) / self.rate
        if random.random() < self.loss or leaves > now + QUEUE:
            self.lost += 1
            return
        self.free = leaves
        self.under_way.append((leaves + self.delay, packet))

    def deliver(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            try:
                os.write(self.target, self.under_way.popleft()[1])
                self.carried += 1
            except OSError:  # the device is not up yet, or not any more
                self.lost += 1


def main(first: str, second: str, device: str, *figures: str) -> None:
    ends = [made(namespace, device) for namespace in (first, second)]
    ways = [Direction(a, b, *map(float, figures)) for a, b in (ends, ends[::-1])]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    print("ready", flush=True)
    while not ended:
        arrivals = [way.under_way[0][0] for way in ways if way.under_way]
        wait = max(0.0, min(arrivals) - time.monotonic()) if arrivals else 0.5
        ready, _, _ = select.select(ends, [], [], min(wait, 0.5))
        for way in ways:
            if way.source in ready:
                way.take(time.monotonic())
            way.deliver(time.monotonic())
    print(sum(way.carried for way in ways), sum(way.lost for way in ways), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
