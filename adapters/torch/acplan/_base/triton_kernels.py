"""Kernels of Triton that Python launches, as operators.

`kernel[grid](x, y, n)` bypasses PyTorch's dispatcher: neither a trace nor a checkpoint would
see what the kernel writes. Therefore, while a mode of acplan is on, a launch is an operator,
`triton.<name of the kernel>_`, that reads its tensors and writes to some of them. On fake
tensors nothing runs. In a unit the kernel is launched as usual, with the recomputation's
tensors in place of those of forward.

The tensors that a kernel writes to are found in its source: those from which the pointers of
`tl.store` and `tl.atomic_*` are computed, in the kernel and in the functions of Triton that it
calls. A tensor whose pointer is passed to any other function counts as written to, and so do
all tensors of a kernel without source.

Kernels that torch.compile has compiled into its graphs are not covered here.
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

from acplan._base import watch

NAMESPACE = "triton"
_SCHEMA = "(Tensor(a!)[] targets, Tensor[] sources, int launch) -> ()"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

# The launches in progress, indexed by their number.
_Launch = Callable[[list[torch.Tensor]], None]
_LAUNCHES: dict[int, _Launch] = {}
_NUMBERS = itertools.count()


class _ThreadState(threading.local):
    """The flag of each thread that launches a kernel, whose autotuner may launch others."""

    launches = False


_THREAD = _ThreadState()


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
    """Yields the classes of objects that can be launched: kernels, and those that choose the
    parameters of kernels."""
    for name, kinds in (
        ("runtime.jit", ["JITFunction"]),
        ("runtime.autotuner", ["Autotuner", "Heuristics"]),
        ("runtime.interpreter", ["InterpretedFunction"]),
    ):
        module = sys.modules.get(f"triton.{name}")
        yield from (vars(module)[kind] for kind in kinds if hasattr(module, kind))


def _launch(kernel: Any, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if _THREAD.launches or kwargs.get("warmup") or not _is_watched():
        return run(kernel, *args, **kwargs)
    targets, sources = _by_use(kernel, args, kwargs)
    returned: list[Any] = []

    def launch(tensors: list[torch.Tensor]) -> None:
        others = dict(zip(map(id, (*targets, *sources)), tensors))
        call = _with_others((args, kwargs), others)
        with _launching():
            returned.append(run(kernel, *call[0], **call[1]))

    number = next(_NUMBERS)
    _LAUNCHES[number] = launch
    try:
        # Autograd does not see a launch, and counts no version.
        with torch._C._AutoDispatchBelowAutograd():
            _operator(_name_of(kernel))(targets, sources, number)
    finally:
        del _LAUNCHES[number]
    return returned[-1] if returned else None


def _is_watched() -> bool:
    return watch.is_watching() or any(
        hasattr(mode, "sees_launches") for mode in _get_current_dispatch_mode_stack()
    )


@contextlib.contextmanager
def _launching() -> Iterator[None]:
    _THREAD.launches = True
    try:
        yield
    finally:
        _THREAD.launches = False


@functools.cache
def _operator(name: str) -> Any:
    _LIBRARY.define(name + _SCHEMA)
    _LIBRARY.impl(name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _run_on_fakes, lib=_LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _run(targets: list[torch.Tensor], sources: list[torch.Tensor], launch: int) -> None:
    _LAUNCHES[launch]([*targets, *sources])


def _run_on_fakes(*_: Any) -> None:
    pass


def _by_use(
    kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the tensors that a launch writes to, and the others, each once."""
    inner = _innermost(kernel)
    stored = stored_to(inner)
    arguments = [*zip(inner.arg_names, args), *kwargs.items()]
    targets: dict[int, torch.Tensor] = {}
    sources: dict[int, torch.Tensor] = {}
    for name, value in arguments:
        tensors = [t for leaf in tree_leaves(value) if (t := _tensor_of(leaf)) is not None]
        group = targets if stored is None or name in stored else sources
        group |= {id(tensor): tensor for tensor in tensors}
    return [*targets.values()], [t for key, t in sources.items() if key not in targets]


def _tensor_of(value: Any) -> torch.Tensor | None:
    """Returns the value if it is a tensor, the tensor of a descriptor, or None."""
    tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
    return tensor if isinstance(tensor, torch.Tensor) else None


def _with_others(arguments: Any, others: dict[int, torch.Tensor]) -> Any:
    """Replaces the tensors in `arguments` by those that `others` has for their ids."""

    def other(value: Any) -> Any:
        tensor = _tensor_of(value)
        replacement = others.get(id(tensor), tensor)
        if replacement is tensor:
            return value
        if tensor is value:
            return replacement
        copied = object.__new__(type(value))
        copied.__dict__.update({**vars(value), "base": replacement})
        return copied

    return tree_map(other, arguments)


def _innermost(kernel: Any) -> Any:
    """Returns the kernel inside of autotuners and heuristics."""
    while hasattr(kernel.fn, "arg_names"):
        kernel = kernel.fn
    return kernel


def _name_of(kernel: Any) -> str:
    """Returns the operator's name, which ends in an underscore like those of operators that
    write to their arguments."""
    name = str(_innermost(kernel).fn.__name__)
    return re.sub(r"\W", "_", name).rstrip("_") + "_"


def stored_to(kernel: Any) -> frozenset[str] | None:
    """Returns the names of the parameters of a kernel that its code stores to, or None if they
    are not known."""
    attributes: dict[str, frozenset[str] | None] = vars(kernel)
    if _STORED not in attributes:
        attributes[_STORED] = _stored_to(kernel, ())
    return attributes[_STORED]


_STORED = "acplan_stored"


def _stored_to(kernel: Any, callers: tuple[Any, ...]) -> frozenset[str] | None:
    if any(kernel is caller for caller in callers):
        return frozenset()  # The outer call of this kernel finds its stores.
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn)))
    except (OSError, TypeError, SyntaxError):
        return None
    stores = _Stores(kernel, (*callers, kernel))
    stores.visit(tree)
    return stores.stored()


class _Stores(ast.NodeVisitor):
    """The variables that the code of a kernel stores to, in any order of its statements."""

    def __init__(self, kernel: Any, callers: tuple[Any, ...]) -> None:
        self._parameters = frozenset(kernel.arg_names)
        self._globals: dict[str, Any] = inspect.unwrap(kernel.fn).__globals__
        self._callers = callers
        # For each variable, the variables from which it is computed.
        self._sources: dict[str, set[str]] = {}
        self._stored: set[str] = set()

    def stored(self) -> frozenset[str]:
        names, queue = set(), [*self._stored]
        while queue:
            name = queue.pop()
            if name not in names:
                names.add(name)
                queue += self._sources.get(name, ())
        return frozenset(names & self._parameters)

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
        sources = set(_pointers_in(value))
        for target in targets:
            for name in _pointers_in(target):
                self._sources.setdefault(name, set()).update(sources)
        self.generic_visit(value)
        if isinstance(value, ast.Call):
            self.visit_Call(value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        function = self._value_of(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_store = method == "store" or method.startswith("atomic_")
        if is_store and isinstance(node.func, ast.Attribute):
            is_function = function is not None
            keywords = [k.value for k in node.keywords if k.arg == "pointer"]
            pointer = (node.args or keywords)[0] if is_function else node.func.value
            self._stored.update(_pointers_in(pointer))
        elif hasattr(function, "arg_names"):
            self._add_stores_of(function, node)
        elif function is None and not method:
            self._stored.update(*map(_pointers_in, _arguments(node)))

    def _add_stores_of(self, function: Any, node: ast.Call) -> None:
        """Adds the variables that a call passes to parameters that `function` stores to."""
        inner = _innermost(function)
        stored = _stored_to(inner, self._callers)
        arguments = [*zip(inner.arg_names, node.args)]
        arguments += [(k.arg, k.value) for k in node.keywords]
        for name, value in arguments:
            if stored is None or name in stored or name is None:
                self._stored.update(_pointers_in(value))

    def _value_of(self, node: ast.expr) -> Any:
        """Returns the global, or the attribute of one, that an expression names; otherwise
        None."""
        if isinstance(node, ast.Name):
            builtin = getattr(sys.modules["builtins"], node.id, None)
            return self._globals.get(node.id, builtin)
        if isinstance(node, ast.Attribute):
            owner = self._value_of(node.value)
            return None if owner is None else getattr(owner, node.attr, None)
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
