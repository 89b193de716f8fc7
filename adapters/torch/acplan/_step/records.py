"""The records of a step: operators, their memory and their calls, and saved tensors."""

import dataclasses
from typing import Any


@dataclasses.dataclass(eq=False)
class Storage:
    """A piece of memory. `born`: the operator that made it, or -1 if it is from before the
    step; `freed`: how many operators had run when it was freed, or None; `stream`: the fake
    stream that allocates it, 0 for the default one; `is_refilled`: the program frees its memory
    and fills it again with the same values, as FSDP does with whole parameters."""

    bytes: int
    born: int
    on_device: bool
    freed: int | None = None
    category: str = ""
    stream: int = 0
    is_refilled: bool = False


@dataclasses.dataclass(eq=False)
class Tensor:
    """A view of a storage; `base` is the tensor from which it was made, or -1."""

    storage: int
    base: int
    shape: tuple[Any, ...]
    freed: int | None = None


@dataclasses.dataclass
class Operator:
    """An operator that ran. `reads`, `outputs` and `mutates` are storages, `results` are
    tensors; `call` is the innermost call in which it ran, or -1."""

    name: str
    call: int
    runtime_ms: float
    reads: list[int]
    outputs: list[int]
    results: list[int]
    mutates: list[int]
    is_view: bool
    is_random: bool
    is_opaque: bool
    cast_of: int | None  # the trained leaf whose cast autocast keeps until it ends
    source: int  # its line in the table of sources, or -1
    # Running statistics that it updates without any other use of their values.
    statistics: list[int] = dataclasses.field(default_factory=list)
    # A hook runs it once in a call, and not when the call runs again.
    is_once: bool = False
    # The stream that runs it, 0 for the default one, and operators of other streams that have
    # ended when it starts.
    stream: int = 0
    waits: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Call:
    """A call of a module, from operator `start` up to `end`; `parent` is the call around it, or
    -1."""

    module: int
    parent: int
    start: int
    end: int
    inputs: list[int]
    arguments: list[int]
    # The storages of other tensors that it is given, by keyword or inside of objects.
    further_inputs: list[int]
    outputs: list[int]
    no_grad: bool
    backward_start: int | None = None
    backward_end: int | None = None
    # The operators of the backward pass that gather its module's parameters.
    gather_begin: int | None = None
    gather_end: int | None = None


@dataclasses.dataclass
class Saved:
    """A tensor that autograd saved in a call. Times count operators."""

    storage: int
    tensor: int
    requires_grad: bool
    packed: int
    call: int
    unpacked: int | None = None
    unpacks: int = 0
    local_end: int | None = None
    released: int | None = None
