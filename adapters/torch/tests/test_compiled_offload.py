"""Values that a compiled forward pass saves, in the host's memory."""

import shutil
from unittest import mock

import pytest
import torch
from torch._inductor.utils import fresh_inductor_cache

import acplan
from acplan import AcplanError
from acplan._base import host_copies
from acplan._base.host_link import Queues
from acplan._base.host_links import host_links
from acplan._device.devices import DEVICES
from acplan._device.gpu_table import accelerators
from acplan._graphs.remat import evaluate_graph
from offloading import Device, LateQueues, Streams
from test_compiled import CASES, _case, _compiled


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    torch._dynamo.reset()


def _expected(name: str) -> list[torch.Tensor]:
    model, x = _case(name)
    values = _compiled(model, x, "100%")[1]
    torch._dynamo.reset()
    return values


def _require_equal(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> None:
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rate", ["25GB/s", "1MB/s"])
def test_memory_is_as_predicted_at_every_node_and_gradients_stay(name: str, rate: str) -> None:
    expected = _expected(name)
    model, x = _case(name)
    plan, actual = _compiled(model, x, "min", offload=rate)
    assert plan.moved_names
    assert set(plan.moved_names) <= set(plan.saved)
    assert (plan.stall_ms > 0) == (rate == "1MB/s" or name == "images")
    verification = plan.verify()
    assert verification.first_difference() is None, str(verification)
    assert verification.measured_bytes == plan.peak_bytes
    _require_equal(expected, actual)


def test_moving_lets_less_run_again_and_less_memory_suffice() -> None:
    model, x = _case("mlp")
    plain, _ = _compiled(model, x, "min")
    torch._dynamo.reset()
    same, _ = _compiled(model, x, plain.peak_bytes, offload="25GB/s")
    torch._dynamo.reset()
    least, _ = _compiled(model, x, "min", offload="25GB/s")
    assert plain.recompute_ms > same.recompute_ms + same.stall_ms == same.bound_ms == 0
    assert least.peak_bytes < plain.peak_bytes
    assert len(same.moved_names) < len(least.moved_names)


def test_the_program_says_the_same_of_the_choice() -> None:
    model, x = _case("images")
    plan, _ = _compiled(model, x, "min", offload="1MB/s")
    fields = {name: plan.data[name] for name in ("moved", "bytes_per_second")}
    evaluation = evaluate_graph(plan.graph, plan.saved, fields)
    for name in ("memory", "moved", "moved_bytes", "stall_ms", "recompute_ms"):
        assert evaluation[name] == plan.data[name]


@pytest.mark.parametrize("name", ["mlp", "attention"])
@pytest.mark.parametrize("kind", ["late", "streams"])
def test_copies_may_be_made_at_any_time_until_they_are_waited_for(name: str, kind: str) -> None:
    expected = _expected(name)
    log: list[str] = []
    queues: Queues = LateQueues(log, is_late=True)
    if kind == "streams":
        queues = Streams(torch.device("cpu"), Device(3))
    with mock.patch.object(host_copies, "_queues_on", lambda device: queues):
        model, x = _case(name)
        plan, actual = _compiled(model, x, "min", offload="25GB/s")
    _require_equal(expected, actual)
    assert not host_copies._pending
    if kind == "late":
        assert sum(entry.endswith("ends") for entry in log) == 2 * len(plan.moved_names) > 0


def test_the_host_has_no_more_than_it_may() -> None:
    model, x = _case("mlp")
    plan, _ = _compiled(model, x, "85%", offload="25GB/s", host_memory="20kB", strict=False)
    assert plan.data["moved_bytes"] <= 20_000


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_inductor_computes_the_same() -> None:
    results = []
    for options in ({}, {"offload": "25GB/s"}):
        torch._dynamo.reset()
        model, x = _case("attention")
        with fresh_inductor_cache():  # A graph that is in it is not partitioned.
            plan, values = _compiled(model, x, "min", backend="inductor", **options)
        results.append(values)
    assert plan.moved_names
    assert plan.verify().first_difference() is None
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_graphs_that_are_planned_together_move_nothing() -> None:
    model, x = _case("mlp")

    def compiled(strict: bool) -> torch.nn.Module:
        torch._dynamo.reset()
        return acplan.compile(
            model,
            "100%",
            blocks=model.blocks,
            backend="aot_eager",
            offload="1GB/s",
            strict=strict,
        )

    with pytest.raises(AcplanError, match="offload: graphs that are planned together"):
        compiled(strict=True)(x)


@pytest.mark.parametrize(
    ("link", "rate", "back"),
    [("pcie4", 25.1e9, None), ("gh200/2", 148.5e9, 187.5e9), (True, 25.1e9, None)],
)
def test_a_link_has_a_name(link: object, rate: float, back: float | None) -> None:
    model, x = _case("mlp")
    plan, _ = _compiled(model, x, "min", offload=link, device="a100")
    assert plan.data["bytes_per_second"] == rate
    assert plan.data.get("back_bytes_per_second") == back


def test_every_device_has_a_link() -> None:
    gpus = {gpu for link in host_links().values() for gpu in link.gpus}
    assert set(DEVICES) <= gpus
    # The training cost model has its own figures, of what a link is said to carry.
    for name, device in DEVICES.items():
        link = next(link for link, row in host_links().items() if name in row.gpus)
        if device.accelerator and link.startswith("pcie"):
            nominal = accelerators()[device.accelerator]["host_gbs"]["value"]
            assert {"pcie3": 16, "pcie4": 32, "pcie5": 64}[link] == nominal


@pytest.mark.parametrize("name", ["pcie", "gh20", "25 pcie4"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(AcplanError, match="offload: expected a rate such as"):
        acplan.partitioner("80%", offload=name)


@pytest.mark.parametrize("rate", ["25GB", "fast", "0GB/s", 25, "", "1GB/s,", "1GB/s,2GB"])
def test_other_links_are_refused(rate: object) -> None:
    with pytest.raises(AcplanError, match=r'offload: expected a rate such as "25GB/s"'):
        acplan.partitioner("80%", offload=rate)  # type: ignore[arg-type] # what a user may give


def test_host_memory_needs_a_link() -> None:
    with pytest.raises(AcplanError, match="host_memory: needs offload"):
        acplan.partitioner("80%", host_memory="2GiB")
