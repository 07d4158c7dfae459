"""Checks every annotated signature of clearhead while tests run: types by beartype, and shapes by jaxtyping.

jaxtyping's wrapper binds the arguments of each call, which takes longer than most functions: only signatures that name
shapes have it. Functions inside of functions have none, because they would be wrapped again in every call.
"""

import ast
from contextlib import contextmanager, suppress
from functools import wraps
from types import FunctionType

import jaxtyping
from beartype import beartype
from jaxtyping import _import_hook, install_import_hook

SHAPES = {"Float", "Int", "Bool", "UInt8"}  # the names that jaxtyping's annotations begin with
TYPES = "jaxtyping._import_hook.Typechecker.lookup['types']"  # found from every module that jaxtyping's hook changes


class Decorate(_import_hook.JaxtypingTransformer):
    """Adds a decorator to the functions and classes of a module."""

    def visit_FunctionDef(self, node):  # noqa: N802  (a name of ast)
        # a kernel must stay a plain function: Triton compiles its source, with the names of its module
        if any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list):
            return node
        hints = [node.args, node.returns or node.args]
        names = {one.id for hint in hints for one in ast.walk(hint) if isinstance(one, ast.Name)}
        if names & SHAPES:
            return super().visit_FunctionDef(node)
        node.decorator_list.append(ast.copy_location(ast.parse(TYPES, mode="eval").body, node))
        return node

    def generic_visit(self, node):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            super().generic_visit(node)


def check_types(function):
    """A function whose types are checked, unless checks are off; it is prepared when it is first called."""
    checked = None

    @wraps(function)
    def call(*args, **kwargs):
        nonlocal checked
        if STATE.jaxtyping_disable:
            return function(*args, **kwargs)
        if checked is None:
            checked = beartype(with_known_hints(function))
        return checked(*args, **kwargs)

    return call


def with_known_hints(function):
    """A copy of a function with the annotations that can be evaluated: not those that only mypy imports."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__, made.__qualname__, made.__module__ = (
        function.__kwdefaults__, function.__qualname__, function.__module__
    )  # fmt: skip
    for name, hint in function.__annotations__.items():
        with suppress(NameError, TypeError, AttributeError):
            made.__annotations__[name] = eval(hint, function.__globals__) if isinstance(hint, str) else hint
    return made


STATE = jaxtyping.config
_import_hook.Typechecker.lookup["types"] = check_types
_import_hook.JaxtypingTransformer = Decorate


def install():
    install_import_hook("clearhead", "beartype.beartype")


@contextmanager
def without_checks():
    before = STATE.jaxtyping_disable
    STATE.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        STATE.update("jaxtyping_disable", before)
