"""A small mutator: every way in which one spot of a module's code can be wrong by a slip."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}  # fmt: skip
RESULTS = ("FITS", "UNFIT", "UNKNOWN")
Change = tuple[str, Callable[[Any], ast.AST]]


@dataclass(frozen=True)
class Mutant:
    """Named by its function and its line's text, so that the name survives edits elsewhere."""

    name: str
    code: CodeType
    original: ModuleType

    def load(self) -> ModuleType:
        """The mutated module; what it imports is the original's."""
        module = ModuleType(self.original.__name__)
        module.__dict__.update(__package__=self.original.__package__, __file__=self.original.__file__)
        exec(self.code, module.__dict__)
        return module


def mutants(original: ModuleType) -> Iterator[Mutant]:
    """One after the other: the tree is changed, compiled and put back."""
    source = Path(str(original.__file__)).read_text()
    lines = source.splitlines()
    tree = ast.parse(source)
    skipped = set(_skipped(tree))
    for spot in list(_spots(tree, "module", 1)):
        if id(spot.node) in skipped:
            continue
        for what, change in _changes(spot.node):
            spot.put(ast.fix_missing_locations(change(copy.copy(spot.node))))
            code = compile(tree, str(original.__file__), "exec")
            spot.put(spot.node)
            yield Mutant(f"{spot.function}: {lines[spot.line - 1].strip()} -> {what}", code, original)


@dataclass(frozen=True)
class _Spot:
    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    function: str
    line: int

    def put(self, new: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.index] = new


def _spots(parent: ast.AST, function: str, line: int) -> Iterator[_Spot]:
    if isinstance(parent, ast.FunctionDef | ast.ClassDef):
        function = parent.name
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                at = getattr(node, "lineno", line)
                yield _Spot(node, parent, field, index, function, at)
                yield from _spots(node, function, at)


def _skipped(tree: ast.Module) -> Iterator[int]:
    """Docstrings, annotations and decorators: nothing of the logic is in them."""
    for node in ast.walk(tree):
        parts = list(getattr(node, "decorator_list", []))
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            parts.append(node.body[0])
        parts += [part for name in ("annotation", "returns") if (part := getattr(node, name, None)) is not None]
        for part in parts:
            yield from map(id, ast.walk(part))


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for at, old in enumerate(node.ops):
                for new in COMPARISONS[type(old)]:
                    yield f"{type(old).__name__} to {new.__name__}", lambda n, at=at, new=new: _set(n, "ops", at, new())
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield f"to {type(other).__name__}", lambda n: ast.BoolOp(other, n.values)
            for at in range(len(node.values)):
                yield f"without part {at + 1}", lambda n, at=at: _without(n, at)
        case ast.UnaryOp(op=ast.Not()):
            yield "without not", lambda n: n.operand
        case ast.IfExp():
            yield "branches swapped", lambda n: ast.IfExp(n.test, n.orelse, n.body)
        case ast.comprehension(ifs=[_, *_]):
            for at in range(len(node.ifs)):
                yield f"without filter {at + 1}", lambda n, at=at: _set(n, "ifs", at, ast.Constant(True))
        case ast.Constant():
            yield from _constants(node.value)
        case ast.Name(ctx=ast.Load()) if node.id in RESULTS:
            for name in RESULTS:
                if name != node.id:
                    yield f"{node.id} to {name}", lambda n, name=name: ast.Name(name, ast.Load())
        case ast.If():
            yield "always", lambda n: ast.If(ast.Constant(True), n.body, n.orelse)
            yield "never", lambda n: ast.If(ast.Constant(False), n.body, n.orelse)
        case ast.Return(value=value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "returns nothing", lambda n: ast.Return(ast.Constant(None))
            yield "gone", lambda n: ast.Pass()
        case ast.Return() | ast.Assign() | ast.AugAssign() | ast.Expr():
            yield "gone", lambda n: ast.Pass()


def _constants(value: object) -> Iterator[Change]:
    if isinstance(value, bool) or value is None:
        yield f"{value} to {not value}", lambda n: ast.Constant(not value)
    elif isinstance(value, int):
        for new in (value + 1, value - 1):
            yield f"{value} to {new}", lambda n, new=new: ast.Constant(new)
    elif isinstance(value, str):
        yield f"{value!r} to another text", lambda n: ast.Constant("?" + value)


def _set(node: Any, name: str, at: int, new: ast.AST) -> ast.AST:
    row = list(getattr(node, name))
    row[at] = new
    setattr(node, name, row)
    changed: ast.AST = node
    return changed


def _without(node: ast.BoolOp, at: int) -> ast.AST:
    values = [each for index, each in enumerate(node.values) if index != at]
    return values[0] if len(values) == 1 else ast.BoolOp(node.op, values)
