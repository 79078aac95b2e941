"""Benchmarks take minutes, so no test runs them. These tests show that their experiments can be built and run."""

import pytest
from growth import GROWTH
from measure import client_of, jobs, noise

POINTS = [(kind, n) for kind, points in GROWTH.items() for n in points]


@pytest.mark.parametrize(("kind", "n"), POINTS)
def test_every_point_of_a_growth_curve_is_a_valid_experiment(kind, n):
    keys = GROWTH[kind][n] | {"images": 8, "test": 8}
    setup = noise(**keys)
    sizes = setup.schedule.task_sizes
    assert {"clients": setup.stream.clients, "classes": sum(sizes), "tasks": len(sizes)}[kind] == n
    assert setup.experiment.server.participation == keys.get("server__participation", 1.0)


def test_a_measured_job_trains_on_all_images_of_its_client():
    setup = noise(clients=2, images=16, test=8, tasks=(5, 5), method="fedclass")
    update = client_of(setup).run(jobs(setup, task=1)[0])
    assert update.metrics["samples"] == len(setup.stream.new_data(0, 1)) > 0
