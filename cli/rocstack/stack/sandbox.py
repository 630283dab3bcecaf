"""What templates can do, an overlay's among them: read plain data and the fields of our values, and call what is
marked for them. All else is closed: a pydantic model has a public `parse_raw` that unpickles, and `parse_file`."""

import dataclasses
from collections.abc import Callable
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, TypeVar

from jinja2 import runtime, utils
from jinja2.environment import TemplateModule
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel

_MARK = "for_templates"
_DATA = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset, range)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
# Jinja's own: `loop`, `self`, macros, modules of macros, namespaces. They hide their works behind underscores.
_JINJA = (
    *(runtime.LoopContext, runtime.TemplateReference, runtime.BlockReference, runtime.Macro, runtime.Undefined),
    *(TemplateModule, utils.Cycler, utils.Joiner, utils.Namespace),
)
_GLOBALS = (dict, utils.Cycler, utils.Joiner, utils.Namespace, utils.generate_lorem_ipsum)  # and `range`, bounded
F = TypeVar("F", bound=Callable[..., Any])


def for_templates(function: F) -> F:
    """Marks what a template may call: it computes from its arguments, and neither reads files nor runs anything."""
    setattr(function, _MARK, True)
    return function


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which knows what is forbidden, with a list of what is allowed."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and _readable(obj, attr)

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, MethodType):
            return _marked(obj.__func__) or isinstance(obj.__self__, _JINJA)
        if isinstance(obj, BuiltinMethodType):  # of data alone: `part.name.startswith`
            return type(obj.__self__) in _DATA
        return _marked(obj) or isinstance(obj, _JINJA) or obj in (*_GLOBALS, self.globals["range"])

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`"{}".format(...)`, which Jinja binds to its own formatter; that asks `is_safe_attribute` too."""
        wrapped = super().wrap_str_format(value)
        return wrapped and for_templates(wrapped)


def _marked(obj: Any) -> bool:
    return isinstance(obj, FunctionType) and bool(obj.__dict__.get(_MARK))


def _readable(obj: Any, attr: str) -> bool:
    kind = type(obj)
    if kind in _DATA or kind in _VIEWS or isinstance(obj, _JINJA):
        return True
    fields: set[str]
    base: type
    if isinstance(obj, BaseModel):
        fields, base = set(type(obj).model_fields), BaseModel
    elif dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        fields, base = {each.name for each in dataclasses.fields(obj)}, object
    else:
        return False
    own = {
        name: value
        for each in reversed(kind.__mro__)
        if not issubclass(base, each)
        for name, value in vars(each).items()
    }
    found = own.get(attr)
    return attr in fields or isinstance(found, property) or _marked(found)
