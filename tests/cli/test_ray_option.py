"""`--ray` and `--gpus-per-task`, without Ray."""

import sys
from unittest.mock import MagicMock

import pytest

from specbench.cli.measure import Nodes
from specbench.errors import UsageError
from tests.cli.calls import specbench
from tests.settings.flat_settings import settings_of


def test_the_ray_option_without_ray_gives_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    nodes = Nodes.parsed("auto", None)
    with pytest.raises(UsageError, match=r"pip install ray"):
        nodes.connected(settings_of(pairings=(), workloads=())).__enter__()


@pytest.fixture
def ray(monkeypatch):
    """A stand-in for the package: a cluster of one node with two GPUs."""
    node = {"Alive": True, "NodeID": "a", "Resources": {"GPU": 2.0}}
    fake = MagicMock(nodes=lambda: [node])
    for name in ("ray", "ray.exceptions", "ray.util", "ray.util.scheduling_strategies"):
        monkeypatch.setitem(sys.modules, name, fake)
    return fake


def test_more_gpus_per_task_than_a_node_has_are_refused(ray):  # noqa: ARG001
    with pytest.raises(UsageError, match=r"--gpus-per-task 3.*2 GPUs"):
        Nodes("auto", 3).connected(settings_of(pairings=(), workloads=())).__enter__()


def test_an_address_without_a_ray_cluster_is_refused(ray):
    ray.init.side_effect = ConnectionError("nothing at head:6379")
    with pytest.raises(UsageError, match=r"--ray head:6379: nothing at.*ray start --head"):
        Nodes("head:6379", None).connected(settings_of(pairings=(), workloads=())).__enter__()


@pytest.mark.parametrize("address", ["auto", "local", "head:6379", "10.0.0.1:6379", "[::1]:6379"])
def test_ray_addresses_are_parsed(address):
    assert Nodes.parsed(address, 2) == Nodes(address, 2)


@pytest.mark.parametrize(
    ("ray", "gpus", "message"),
    [
        ("demo/draft", None, r"--ray 'demo/draft': choose from auto, local, host:port"),
        (None, 2, r"--gpus-per-task .*: add --ray"),
    ],
)
def test_invalid_ray_options_are_refused(ray, gpus, message):
    with pytest.raises(UsageError, match=message):
        Nodes.parsed(ray, gpus)


def test_running_servers_are_not_distributed_over_nodes(tmp_path):
    words = ("--engine", "vllm", "--base-url", "http://localhost:1", "--ray")
    done = specbench("run", "demo/draft", *words, cwd=tmp_path)
    assert done.code == 2
    assert "--ray starts servers" in done.err
