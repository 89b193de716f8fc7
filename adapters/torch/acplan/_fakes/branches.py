"""Answers questions about the truth of values that a trace does not have, if one answer goes
on.

Models check their inputs: `assert (x > 0).all()`, `if (a <= b).any(): raise`, arguments of
`torch.distributions`. If such a check fails, there is no step that a plan could be for; so the
answer is the one with which the step goes on.

The rule. A question is answered if its answer is the test of an `assert`, or of an `if` one
side of which always raises and the other one does not, through nothing but `not`, `and`, `or`,
chains of comparisons, `bool`, `any`, `all` and the `return` of a function that is called there.
It is answered as well if the side that is left out does nothing but report: the body only
prints or logs.

This is sound for the following reason. The answer goes nowhere but into the branch: it is the
test itself, so no variable holds it and no operator reads it. Every step that does not raise
there has taken the same side. The raise must leave the step: if a handler around it, in this
function or in one that called it, may catch it and go on, the question is a decision and has no
answer. If the source is not available, there is no answer, either.
"""

import ast
import builtins
import contextlib
import dis
import functools
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

from acplan._base.package import FOLDER
from acplan._base.source_lines import file_of

_OF_ACPLAN = os.path.join(FOLDER, "")
_STEP_FILE = os.path.join(_OF_ACPLAN, "_step/step.py")
# The functions that ask for the truth of a value and whose result is a truth again.
_OF_TRUTH = (bool, any, all)
_TELLING = frozenset(
    {"debug", "info", "warning", "warn", "error", "exception", "critical", "log"}
)
_SUPPRESSING = frozenset({"suppress", "raises"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def asker() -> FrameType:
    """Returns the innermost current frame outside of acplan."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OF_ACPLAN):
        frame = frame.f_back
    assert frame is not None
    return frame


def answer_of(frame: FrameType, is_value: bool = False) -> bool | None:
    """Returns the answer to a frame's question with which the step goes on, or None if there is
    none. `is_value`: the frame asks for the value that its current expression returns, not for
    a truth that it tests."""
    node = node_of(frame)
    if isinstance(node, ast.Call) and not is_value and _calls(frame):
        if not _is_any_of(node.func, frame, _OF_TRUTH):
            return None
    return None if node is None else _answer(frame, node, True)


def node_of(frame: FrameType) -> ast.expr | None:
    """Returns the expression that a frame evaluates, or whose truth it asks for, or None if its
    source is not available."""
    code = frame.f_code
    source = _source_of(code.co_filename, _LinesOf(frame.f_globals))
    if source is None:
        return None
    if sys.version_info < (3, 11):
        return source.test_at(frame.f_lineno)
    instruction = _instructions(code, frame.f_lasti)[0]
    if instruction is None or None in (place := instruction.positions):
        return None
    node = source.at((place.lineno, place.col_offset, place.end_lineno, place.end_col_offset))
    if instruction.opname == "UNARY_NOT" and isinstance(node, ast.UnaryOp):
        return node.operand
    return node


@functools.lru_cache(maxsize=256)
def _instructions(code: CodeType, place: int) -> tuple[Any, bool]:
    """Returns the instruction at a place, or, if that is a jump, the instruction that makes the
    value that the jump tests; and whether it is a jump."""
    before = at = None
    jumps = False
    for instruction in dis.get_instructions(code):
        # A frame that has called another one is at a place after the instruction.
        if instruction.offset > place:
            break
        if at is not None and not jumps and at.opname not in _MOVES:
            before = at
        jumps = "JUMP" in instruction.opname or instruction.opname == "TO_BOOL"
        at = instruction
    return (before if jumps else at), jumps


# These leave the value that the jump tests unchanged.
_MOVES = frozenset({"COPY", "SWAP", "NOP", "EXTENDED_ARG", "CACHE", "DUP_TOP", "ROT_THREE"})


def _calls(frame: FrameType) -> bool:
    """Returns whether a function that the frame calls asks for the truth."""
    instruction, jumps = _instructions(frame.f_code, frame.f_lasti)
    return instruction is not None and not jumps and "CALL" in instruction.opname


def line_of(frame: FrameType | None, line: int = 0) -> str:
    """Returns the line of the user's code in which a frame is, or from which it was called,
    such as `model.py:12: text`, or ""."""
    while frame is not None and not _is_end(frame.f_code):
        name = frame.f_code.co_filename
        file = file_of(name)
        if file:
            line = line or frame.f_lineno or 1
            text = linecache.getline(name, line, frame.f_globals).strip()
            return f"{file}:{line}: {text}" if text else f"{file}:{line}"
        frame, line = frame.f_back, 0
    return ""


def line_of_error(error: BaseException) -> str:
    """Returns the user's line that an error came from, the innermost one, or ""."""
    traceback, line = error.__traceback__, ""
    while traceback is not None:
        frame = traceback.tb_frame
        if file_of(frame.f_code.co_filename):
            line = line_of(frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def is_formatting(frame: FrameType) -> bool:
    """Returns whether a frame evaluates text `%` values: the result is only text."""
    node = node_of(frame)
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)


class _LinesOf:
    """The globals of a module; only its lines are read."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self.variables = variables

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LinesOf)

    def __hash__(self) -> int:
        return 0


class _Source:
    """The expressions of a file by their places, and the parent of each."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_place: dict[tuple[Any, ...], ast.expr] = {}
        self._calls: dict[tuple[Any, ...], ast.expr] = {}
        self._tests: dict[int, list[ast.expr]] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                vars(child)["acplan_parent"] = node
            if isinstance(node, ast.expr):
                end = (node.end_lineno, node.end_col_offset)
                self._by_place[(node.lineno, node.col_offset, *end)] = node
                if isinstance(node, ast.Call):
                    # A method's call may begin at the method.
                    self._calls.setdefault(end, node)
            test = node.value if isinstance(node, ast.Return) else _test_of(node)
            if test is not None:
                for line in range(test.lineno, (test.end_lineno or test.lineno) + 1):
                    self._tests.setdefault(line, []).append(test)
            if isinstance(node, ast.Assert):
                # Libraries of tests replace assertions by others at the same place.
                place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
                self._by_place[place] = node.test

    def at(self, place: tuple[Any, ...]) -> ast.expr | None:
        return self._by_place.get(place) or self._calls.get(place[2:])

    def test_at(self, line: int) -> ast.expr | None:
        """Returns the test of the only statement in a line, for a Python that has no
        columns."""
        tests = self._tests.get(line, ())
        if len(tests) != 1:
            return None
        test = tests[0]
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        inner = (n.op for n in ast.walk(test) if isinstance(n, ast.UnaryOp))
        return None if any(isinstance(op, ast.Not) for op in inner) else test


def _test_of(node: ast.AST) -> ast.expr | None:
    return node.test if isinstance(node, (ast.If, ast.Assert)) else None


@functools.lru_cache(maxsize=64)
def _source_of(name: str, variables: _LinesOf) -> _Source | None:
    text = "".join(linecache.getlines(name, variables.variables))
    try:
        return _Source(ast.parse(text)) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _parent(node: ast.AST) -> ast.AST | None:
    parent: ast.AST | None = vars(node).get("acplan_parent")
    return parent


def _answer(frame: FrameType, node: ast.expr, truth: bool) -> bool | None:
    """Returns the value that an expression's truth must have, or, with `truth` False, must not
    have."""
    inner: ast.AST = node
    outer = _parent(inner)
    while isinstance(outer, (ast.expr, ast.comprehension)):
        if isinstance(outer, ast.UnaryOp) and isinstance(outer.op, ast.Not):
            truth = not truth
        elif isinstance(outer, ast.Call):
            if inner not in outer.args or not _is_any_of(outer.func, frame, _OF_TRUTH):
                return None
        elif isinstance(outer, (ast.GeneratorExp, ast.ListComp)):
            if inner is not outer.elt:
                return None
        elif not isinstance(outer, ast.BoolOp):
            return None
        inner, outer = outer, _parent(outer)
    if isinstance(outer, ast.Return):
        back = frame.f_back
        call = None if back is None else node_of(back)
        if back is None or not isinstance(call, ast.Call):
            return None
        return _answer(back, call, truth)
    side = _side_of(frame, outer)
    return None if side is None else side is truth


def _side_of(frame: FrameType, statement: ast.AST | None) -> bool | None:
    """Returns the value that the test of a statement must have."""
    if isinstance(statement, ast.Assert):
        raised: set[Any] = {AssertionError}
        return None if _is_caught(frame, statement, raised) else True
    if not isinstance(statement, ast.If):
        return None
    ends, goes_on = _always_raises(statement.body), _always_raises(statement.orelse)
    if ends != goes_on:
        body = statement.body if ends else statement.orelse
        raised = {cls for node in body for cls in _raised_by(frame, node)}
        return None if _is_caught(frame, statement, raised) else not ends
    return False if _only_tells(statement.body) and not statement.orelse else None


def _always_raises(body: Iterable[ast.stmt]) -> bool:
    for statement in body:
        if isinstance(statement, ast.Raise) or _is_failing(statement):
            return True
        inner: list[list[ast.stmt]] = []
        if isinstance(statement, ast.If):
            inner = [statement.body, statement.orelse]
        elif isinstance(statement, ast.With) and not _suppresses(statement):
            inner = [statement.body]
        if inner and all(map(_always_raises, inner)):
            return True
        if _leaves(statement):
            return False
    return False


def _leaves(node: ast.AST, is_in_loop: bool = False) -> bool:
    """Returns whether the code that follows the node may not run."""
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, (ast.Break, ast.Continue)):
        return not is_in_loop
    if isinstance(node, _FUNCTIONS):
        return False
    is_in_loop = is_in_loop or isinstance(node, (ast.For, ast.While))
    return any(_leaves(child, is_in_loop) for child in ast.iter_child_nodes(node))


def _is_failing(statement: ast.stmt) -> bool:
    """Returns whether a statement is `assert False`, or `torch._assert(False, ...)`, as it is
    written for scripts."""
    if isinstance(statement, ast.Assert):
        return _is_false(statement.test)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not call.args:
        return False
    return _name_of(call.func) in ("_assert", "_check") and _is_false(call.args[0])


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _only_tells(body: Iterable[ast.stmt]) -> bool:
    return all(
        isinstance(statement, ast.Pass)
        or isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and _tells(statement.value.func)
        for statement in body
    )


def _tells(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "print"
    if not isinstance(function, ast.Attribute) or function.attr not in _TELLING:
        return False
    owner = _name_of(function.value).lower()
    return owner == "warnings" or "log" in owner


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _name_of(node.func)
    return node.id if isinstance(node, ast.Name) else ""


def _raised_by(frame: FrameType, statement: ast.stmt) -> Iterator[Any]:
    """Yields the classes that a body raises; None stands for any class."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Raise):
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            yield None if raised is None else _evaluated(raised, frame)
        elif isinstance(node, ast.stmt) and _is_failing(node):
            yield AssertionError


def _is_caught(frame: FrameType, node: ast.AST, raised: set[Any]) -> bool:
    """Returns whether an exception of these classes may be caught before it leaves the step, by
    code that goes on."""
    current: FrameType | None = frame
    place: ast.AST | None = node
    while current is not None:
        code = current.f_code
        if _is_end(code):
            return False
        if not code.co_filename.startswith(_OF_ACPLAN) and _may_catch(code):
            if current is not frame:
                place = node_of(current)
            if place is None or _catches(current, place, raised):
                return True
        current = current.f_back
    return False


# Functions of acplan that run the user's step; frames beyond these are not part of it.
_ENDS = frozenset({"loss_of", "backward", "update"})


def _is_end(code: CodeType) -> bool:
    return code.co_name in _ENDS and os.path.abspath(code.co_filename) == _STEP_FILE


def _may_catch(code: CodeType) -> bool:
    return bool(getattr(code, "co_exceptiontable", b"unknown"))


def _catches(frame: FrameType, node: ast.AST, raised: set[Any]) -> bool:
    inner, outer = node, _parent(node)
    while outer is not None and not isinstance(outer, _FUNCTIONS):
        if isinstance(outer, _CATCHING) and inner in outer.body:
            if isinstance(outer, (ast.With, ast.AsyncWith)):
                goes_on = _suppresses(outer)
            else:
                goes_on = any(_goes_on(frame, one, raised) for one in outer.handlers)
            if goes_on:
                return True
        inner, outer = outer, _parent(outer)
    return False


_CATCHING = (ast.Try, ast.With, ast.AsyncWith)


def _suppresses(statement: ast.With | ast.AsyncWith) -> bool:
    return any(_name_of(item.context_expr) in _SUPPRESSING for item in statement.items)


def _goes_on(frame: FrameType, handler: ast.ExceptHandler, raised: set[Any]) -> bool:
    if _always_raises(handler.body):
        return False
    if handler.type is None:
        return True
    listed = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for caught in (_evaluated(node, frame) for node in listed):
        for cls in raised:
            if not isinstance(caught, type) or not isinstance(cls, type):
                return True
            if issubclass(cls, caught):
                return True
    return False


def _is_any_of(node: ast.expr, frame: FrameType, values: tuple[Any, ...]) -> bool:
    value = _evaluated(node, frame)
    return any(value is v or getattr(value, "stands_for", None) is v for v in values)


def _evaluated(node: ast.expr, frame: FrameType) -> Any:
    """Returns the value of a name, or None if it is not known without running anything."""
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if node.id in names:
                return names[node.id]
    if isinstance(node, ast.Attribute):
        owner = _evaluated(node.value, frame)
        with contextlib.suppress(AttributeError):
            return vars(owner)[node.attr] if hasattr(owner, "__dict__") else None
    return None
