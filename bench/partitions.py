"""What partitions do to clients: how uneven they are, and who lacks what (docs/data.md).

    python bench/partitions.py [--seeds 100]

Needs no data: EMNIST balanced and CIFAR-10 have as many training images of each class, and a partition sees no more.
It takes seconds.
"""

import argparse

import numpy as np

from fedclass.data.partition import PartitionSettings, partition

STREAMS = {"EMNIST {17,15,15}": ((17, 15, 15), 2400), "CIFAR-10 {5,5}": ((5, 5), 5000)}
KINDS = {
    "fedml": PartitionSettings(kind="fedml", clients=20, alpha=0.5),
    "dirichlet": PartitionSettings(kind="dirichlet", clients=20, alpha=0.5),
    "released": PartitionSettings(kind="released", clients=20, alpha=0.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Statistics of partitions over seeds.")
    parser.add_argument("--seeds", type=int, default=100, help="how many, from 0 on")
    seeds = range(parser.parse_args().seeds)
    print("| stream | partition | images of a client | lack the last class | nothing of task 2 | of the last task |")
    print("|---|---|---:|---:|---:|---:|")
    for stream, (sizes, per_class) in STREAMS.items():
        targets = np.repeat(np.arange(sum(sizes)), per_class)
        edges = np.cumsum((0, *sizes))
        for name, settings in KINDS.items():
            counts = np.stack(  # (seeds, clients, classes)
                [
                    [np.bincount(targets[share], minlength=sum(sizes)) for share in shares]
                    for shares in (partition(targets, sizes, settings, seed=seed, dataset="") for seed in seeds)
                ]
            )
            held = counts.sum(axis=2)
            lack = (counts[:, :, -1] == 0).mean()
            second, last = (
                (counts[:, :, first:end].sum(axis=2) == 0).mean() for first, end in (edges[1:3], edges[-2:])
            )
            cells = f"{held.mean():.0f} ± {held.std():.0f} | {lack:.1%} | {second:.1%} | {last:.1%}"
            print(f"| {stream} | `{name}` | {cells} |")


if __name__ == "__main__":
    main()
