"""Decisions by value, while a step is traced, are those of the real step."""

import importlib.metadata
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from acplan import AcplanError, trace
from acplan._fakes.known_values import ValuedFakeTensorMode
from acplan._fakes.tensor_values import value_of
from acplan._fakes.value_readers import as_in_training


class Asking(nn.Module):
    """Runs `ask` on its other inputs; its layer runs as often as the answer says."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.ask = ask

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        for _ in range(int(self.ask(*args, **kwargs))):
            x = self.layer(x)
        return x


def layers_run(ask: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    data = trace(Asking(ask), torch.zeros(2, 8), *args, **kwargs).data
    names = [op["name"] for op in data["operators"][: data["forward_end"]]]
    return names.count("aten.addmm.default")


_IDS = torch.tensor([[5, 9, 2, 0], [7, 3, 0, 0]])


def _sum_of_writes(ids: torch.Tensor) -> int:
    row = ids.clone()[0]
    row[1:] = 4
    row += 1
    return int(row.sum()) - 18  # 6 + 5 + 5 + 5


def _through_views(ids: torch.Tensor) -> torch.Tensor:
    every = ids.clone()
    every.t()[0].fill_(3)
    return every[:, 0].eq(3).sum()


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda ids: ids.max() - 5, 4),
        (lambda ids: 2 - (ids != 0).all().int(), 2),
        (lambda ids: ids.ne(0).sum(-1).max(), 3),
        (lambda ids: len(ids.tolist()[1]), 4),
        (lambda ids: sum(ids[1].tolist()) - 7, 3),
        (lambda ids: np.asarray(ids.cpu()).max() - 5, 4),
        (lambda ids: ids.cpu().numpy()[0, 2], 2),
        (lambda ids: 1 + torch.equal(ids, ids.clone()), 2),
        (lambda ids: torch.unique(ids).numel() - 1, 5),
        (lambda ids: ids.nonzero().shape[0], 5),
        (lambda ids: ids[ids > 4].shape[0], 3),
        (lambda ids: torch.masked_select(ids, ids > 4).numel(), 3),
        (lambda ids: torch.repeat_interleave(ids[1], ids[0, 2]).numel() - 4, 4),
        (lambda ids: torch.bincount(ids.flatten())[0], 3),
        (lambda ids: ids.float().mean().round() + torch.tensor(1.5).floor(), 4),
        (lambda ids: torch.arange(7, device=ids.device)[-1] - 4, 2),
        (lambda ids: torch.zeros_like(ids).sum() + 1, 1),
        (lambda ids: ids.new_full((2, 2), 1).sum(), 4),
        (_sum_of_writes, 3),
        (_through_views, 2),
    ],
)
def test_values_follow_from_those_of_inputs(ask: Callable[..., Any], expected: int) -> None:
    assert int(ask(_IDS)) == expected  # As it really is.
    assert layers_run(ask, _IDS) == expected


def test_known_masks_give_unknown_tensors_their_shape() -> None:
    class Picking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = self.layer(x)
            picked = self.layer(hidden[mask])
            assert picked.shape == (3, 8)
            assert hidden[mask, :2].shape == (3, 2)
            assert hidden[:, mask[0]].shape == (2, 1, 8)
            selection = torch.masked_select(hidden, mask.unsqueeze(-1))
            assert selection.shape == (24,)
            rest = hidden * 2
            rest[mask] = 0.0
            return picked.sum() + selection.sum() + rest.sum()

    mask = torch.tensor([[True, False], [True, True]])
    x = torch.randn(2, 2, 8)
    Picking()(x, mask).backward()
    data = trace(Picking(), x, mask).data
    names = [op["name"] for op in data["operators"]]
    # The places of a mask are looked up inside the operator, as on a real device.
    assert "aten.nonzero.default" not in names
    assert names.count("aten.index.Tensor") == 3


def test_what_depends_on_activations_stays_unknown() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            every = ids.clone()
            view = every[0]
            view.copy_(self.layer(x)[0, :4].long())
            return self.layer(x) * every[1:].sum() if every.sum() > 3 else x

    Written()(torch.zeros(2, 8), _IDS)
    with pytest.raises(AcplanError, match="depend on values"):
        trace(Written(), torch.zeros(2, 8), _IDS, values="known")


def test_inputs_and_constants_are_left_as_they_were() -> None:
    constant = torch.tensor([1, 2, 3])
    ids = _IDS.clone()

    def ask(ids: torch.Tensor) -> int:
        ids.add_(1)
        constant[:2].add_(1)
        return 1

    assert layers_run(ask, ids) == 1
    assert torch.equal(ids, _IDS)
    assert constant.tolist() == [1, 2, 3]


def test_buffers_have_their_values_and_count_on() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("size", torch.tensor(3))
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(int(self.size)):
                x = self.layer(x) / self.scale.item()
            return x

    data = trace(Counting(), torch.zeros(2, 8)).data
    names = [op["name"] for op in data["operators"][: data["forward_end"]]]
    assert names.count("aten.addmm.default") == 3
    assert "aten._local_scalar_dense.default" in names


def test_random_decisions_are_the_same_at_every_step() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                if torch.rand([]) < 0.5 and random.random() < 0.9:
                    if np.random.uniform() < 0.9:
                        x = layer(x)
            return x

    model = Dropping()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    expected = torch.rand(2).tolist(), random.random(), np.random.uniform()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    first = trace(model, torch.zeros(2, 8))
    # The random numbers after the trace are those that would follow without it.
    assert expected == (torch.rand(2).tolist(), random.random(), np.random.uniform())
    assert trace(model, torch.zeros(2, 8)).data == first.data


def test_generators_of_the_user_are_not_moved_on() -> None:
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()

    def ask() -> int:
        return 1 + 0 * torch.rand(3, generator=generator).numel()

    assert layers_run(ask) == 1
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(
    ("name", "ask", "expected"),
    [
        ("attention_mask", lambda attention_mask: 1 + attention_mask.all(), 2),
        ("position_ids", lambda position_ids: (position_ids.diff() == 1).all() + 1, 2),
        ("labels", lambda labels: 1 + (labels == 0).all(), 2),
        ("token_type_ids", lambda token_type_ids: 1 + token_type_ids.sum(), 1),
        ("input_ids", lambda input_ids: 1 + (input_ids > 2).all(), 2),
        ("start_positions", lambda start_positions: 1 + start_positions.sum(), 1),
    ],
)
def test_inputs_on_the_meta_device_have_default_values(
    name: str, ask: Callable[..., Any], expected: int
) -> None:
    inputs = {name: torch.zeros(2, 4, dtype=torch.long, device="meta")}
    assert layers_run(ask, **inputs) == expected


def test_default_values_are_told() -> None:
    meta = torch.zeros(2, 4, dtype=torch.long, device="meta")
    notes = trace(Asking(lambda input_ids: 1), torch.zeros(2, 8), input_ids=meta).notes
    assert len(notes) == 1 and "input_ids" in notes[0] and "meta" in notes[0]
    assert not trace(Asking(lambda ids: 1), torch.zeros(2, 8), _IDS).notes


def test_is_no_fake_tensor_for_libraries() -> None:
    with as_in_training(), ValuedFakeTensorMode():
        tensor = torch.zeros(3)
        # As transformers 5 asks, in utils.import_utils.is_fake_tensor.
        assert not isinstance(tensor, torch._subclasses.FakeTensor)
        assert isinstance(tensor, FakeTensor)
        assert value_of(tensor) is not None
    assert torch._subclasses.FakeTensor is FakeTensor
    assert isinstance(tensor, torch._subclasses.FakeTensor)
    assert pytree.tree_leaves([tensor])[0] is tensor


def test_transformers_asks_in_the_way_that_is_answered() -> None:
    """From 5 on it looks at torch._subclasses.FakeTensor; a version that asks in
    another way must be answered in that way, too."""
    is_fake = transformers.utils.import_utils.is_fake_tensor
    with as_in_training(), ValuedFakeTensorMode():
        assert not is_fake(torch.zeros(3))
        assert not transformers.utils.import_utils.is_tracing(torch.zeros(3))
    with ValuedFakeTensorMode():
        version = importlib.metadata.version("transformers")
        assert is_fake(torch.zeros(3)), f"{version} needs no answer any more"


def _kernels(attention_mask: torch.Tensor | None) -> set[str]:
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=50,
        num_key_value_heads=2, intermediate_size=64, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).bfloat16()
    ids = torch.full((2, 8), 5)
    inputs = {} if attention_mask is None else {"attention_mask": attention_mask}
    data = trace(model, input_ids=ids, labels=ids, **inputs).data
    names = {op["name"] for op in data["operators"][: data["forward_end"]]}
    return {name for name in names if "attention" in name}


def test_masks_that_hide_nothing_are_dropped_and_padded_ones_kept() -> None:
    ones = torch.ones(2, 8, dtype=torch.long)
    padded = ones.clone()
    padded[0, :3] = 0
    assert any("flash" in name for name in _kernels(None))
    assert _kernels(ones) == _kernels(None)
    assert any("efficient" in name for name in _kernels(padded))


def test_dictionaries_that_refuse_to_be_written_to_are_left_alone() -> None:
    class Frozen(dict):  # As diffusers keeps its configurations.
        def _refuse(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("frozen")

        clear = update = __setitem__ = _refuse  # type: ignore[assignment]

    model = nn.Linear(8, 8)
    model.config = Frozen(width=8)
    assert trace(model, torch.zeros(2, 8)).peak_bytes > 0
    assert model.config == {"width": 8}
