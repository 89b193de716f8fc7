"""Kernels of Triton that Python launches, as operators.

`kernel[grid](x, y, n)` goes past PyTorch's dispatcher: neither a trace nor a checkpoint would
see what is written. So while a mode of acplan's is on, a launch is an operator,
`triton.<name of the kernel>_`, that reads the tensors it is given and writes to some of
them. On fake tensors nothing runs; in a unit the kernel is launched as ever, with the tensors
that the recomputation has for those of forward.

The tensors that are written to are found in the kernel's source: those of which the pointers
of `tl.store` and `tl.atomic_*` are made, in the kernel and in the functions of Triton that it
calls. A pointer that is handed to anything else, and a kernel without source, count as
written to.

What torch.compile makes of a kernel is the compiler's, and is not seen here.
"""

import ast
import contextlib
import functools
import inspect
import itertools
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map

NAMESPACE = "triton"
_SCHEMA = "(Tensor(a!)[] written, Tensor[] read, int launch) -> ()"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

# Launches that are being made, by their number.
_Launch = Callable[[list[torch.Tensor]], None]
_LAUNCHES: dict[int, _Launch] = {}
_NUMBERS = itertools.count()


class _Inside(threading.local):
    """Returns whether this thread launches a kernel, whose autotuner may launch others."""

    launches = False


_INSIDE = _Inside()


def is_launch(func: Any) -> bool:
    return getattr(func, "namespace", "") == NAMESPACE


def watch_launches() -> None:
    """Makes launches operators from now on, where Triton has been imported."""
    if "triton" not in sys.modules:
        return
    for kind in _kinds_of_kernels():
        run = vars(kind).get("run")
        if run is not None and not hasattr(run, _WATCHED):
            kind.run = _watched(run)


def _watched(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def launched(kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _launch(kernel, run, *args, **kwargs)

    setattr(launched, _WATCHED, True)
    return launched


_WATCHED = "acplan_watched"


def _kinds_of_kernels() -> Iterator[Any]:
    """Yields the classes of what can be launched: kernels, and what chooses their
    parameters."""
    for name, kinds in (
        ("runtime.jit", ["JITFunction"]),
        ("runtime.autotuner", ["Autotuner", "Heuristics"]),
        ("runtime.interpreter", ["InterpretedFunction"]),
    ):
        module = sys.modules.get(f"triton.{name}")
        yield from (vars(module)[kind] for kind in kinds if hasattr(module, kind))


def _launch(kernel: Any, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if _INSIDE.launches or kwargs.get("warmup") or not _is_watched():
        return run(kernel, *args, **kwargs)
    written, read = _by_use(kernel, args, kwargs)
    returned: list[Any] = []

    def launch(tensors: list[torch.Tensor]) -> None:
        others = dict(zip(map(id, (*written, *read)), tensors))
        given = _with_others((args, kwargs), others)
        with _inside():
            returned.append(run(kernel, *given[0], **given[1]))

    number = next(_NUMBERS)
    _LAUNCHES[number] = launch
    try:
        # Autograd sees nothing of a launch, and counts no version.
        with torch._C._AutoDispatchBelowAutograd():
            _operator(_name_of(kernel))(written, read, number)
    finally:
        del _LAUNCHES[number]
    return returned[-1] if returned else None


def _is_watched() -> bool:
    return any(hasattr(mode, "sees_launches") for mode in _get_current_dispatch_mode_stack())


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    _INSIDE.launches = True
    try:
        yield
    finally:
        _INSIDE.launches = False


@functools.cache
def _operator(name: str) -> Any:
    _LIBRARY.define(name + _SCHEMA)
    _LIBRARY.impl(name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _run_on_fakes, lib=_LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _run(written: list[torch.Tensor], read: list[torch.Tensor], launch: int) -> None:
    _LAUNCHES[launch]([*written, *read])


def _run_on_fakes(*_: Any) -> None:
    pass


def _by_use(
    kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the tensors that a launch writes to, and the others, each once."""
    inner = _innermost(kernel)
    stored = stored_to(inner)
    given = [*zip(inner.arg_names, args), *kwargs.items()]
    written: dict[int, torch.Tensor] = {}
    read: dict[int, torch.Tensor] = {}
    for name, value in given:
        tensors = [t for leaf in tree_leaves(value) if (t := _tensor_of(leaf)) is not None]
        into = written if stored is None or name in stored else read
        into |= {id(tensor): tensor for tensor in tensors}
    return [*written.values()], [t for key, t in read.items() if key not in written]


def _tensor_of(value: Any) -> torch.Tensor | None:
    """Returns a tensor, or that of a descriptor."""
    of = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
    return of if isinstance(of, torch.Tensor) else None


def _with_others(given: Any, others: dict[int, torch.Tensor]) -> Any:
    def other(value: Any) -> Any:
        tensor = _tensor_of(value)
        found = others.get(id(tensor), tensor)
        if found is tensor:
            return value
        if tensor is value:
            return found
        copied = object.__new__(type(value))
        copied.__dict__.update({**vars(value), "base": found})
        return copied

    return tree_map(other, given)


def _innermost(kernel: Any) -> Any:
    """Returns the kernel whose parameters others choose."""
    while hasattr(kernel.fn, "arg_names"):
        kernel = kernel.fn
    return kernel


def _name_of(kernel: Any) -> str:
    """With an underscore, as operators have it that write to what they are given."""
    name = str(_innermost(kernel).fn.__name__)
    return re.sub(r"\W", "_", name).rstrip("_") + "_"


def stored_to(kernel: Any) -> frozenset[str] | None:
    """Returns the names of the parameters of a kernel that its code stores to; None: nobody
    knows."""
    known: dict[str, frozenset[str] | None] = vars(kernel)
    if _STORED not in known:
        known[_STORED] = _stored_to(kernel, ())
    return known[_STORED]


_STORED = "acplan_stored"


def _stored_to(kernel: Any, callers: tuple[Any, ...]) -> frozenset[str] | None:
    if any(kernel is caller for caller in callers):
        return frozenset()  # What it stores to is found where it is called first.
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn)))
    except (OSError, TypeError, SyntaxError):
        return None
    stores = _Stores(kernel, (*callers, kernel))
    stores.visit(tree)
    return stores.stored()


class _Stores(ast.NodeVisitor):
    """What the code of a kernel stores to, whatever the order in which it runs."""

    def __init__(self, kernel: Any, callers: tuple[Any, ...]) -> None:
        self._parameters = frozenset(kernel.arg_names)
        self._globals: dict[str, Any] = inspect.unwrap(kernel.fn).__globals__
        self._callers = callers
        # Of a variable, the variables it is made of.
        self._made_of: dict[str, set[str]] = {}
        self._stored: set[str] = set()

    def stored(self) -> frozenset[str]:
        found, left = set(), [*self._stored]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._made_of.get(name, ())
        return frozenset(found & self._parameters)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._bind(node.targets, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._bind([node.target], node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind([node.target], node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind([node.target], node.value)

    def visit_For(self, node: ast.For) -> None:
        self._bind([node.target], node.iter)
        self.generic_visit(node)

    def _bind(self, targets: list[ast.expr], value: ast.expr) -> None:
        made_of = set(_pointers_in(value))
        for target in targets:
            for name in _pointers_in(target):
                self._made_of.setdefault(name, set()).update(made_of)
        self.generic_visit(value)
        if isinstance(value, ast.Call):
            self.visit_Call(value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = self._value_of(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_store = method == "store" or method.startswith("atomic_")
        if is_store and isinstance(node.func, ast.Attribute):
            is_function = called is not None
            named = [k.value for k in node.keywords if k.arg == "pointer"]
            pointer = (node.args or named)[0] if is_function else node.func.value
            self._stored.update(_pointers_in(pointer))
        elif hasattr(called, "arg_names"):
            self._add_called(called, node)
        elif called is None and not method:
            self._stored.update(*map(_pointers_in, _arguments(node)))

    def _add_called(self, called: Any, node: ast.Call) -> None:
        inner = _innermost(called)
        stored = _stored_to(inner, self._callers)
        given = [*zip(inner.arg_names, node.args)]
        given += [(k.arg, k.value) for k in node.keywords]
        for name, value in given:
            if stored is None or name in stored or name is None:
                self._stored.update(_pointers_in(value))

    def _value_of(self, node: ast.expr) -> Any:
        """Returns a global that an expression names, or a part of one; None where it is
        neither."""
        if isinstance(node, ast.Name):
            builtin = getattr(sys.modules["builtins"], node.id, None)
            return self._globals.get(node.id, builtin)
        if isinstance(node, ast.Attribute):
            of = self._value_of(node.value)
            return None if of is None else getattr(of, node.attr, None)
        return None


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _pointers_in(node: ast.expr) -> Iterator[str]:
    """Yields the names in an expression, except those that only a load reads through."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "load":
        return
    elif not isinstance(node, ast.Compare):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _pointers_in(child)
            elif isinstance(child, ast.keyword):
                yield from _pointers_in(child.value)
