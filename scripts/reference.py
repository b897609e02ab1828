"""The reference: every public name, its signature and its docstring, as Markdown."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import strandline as sl
import strandline.testing
from strandline.core.errors import StrandlineError

GROUPS: dict[str, tuple[str, ...]] = {
    "Streams": ("session", "spark_settings", "stream", "files_source", "Stream", "KeyedStream",
                "WindowedStream", "OperatorOptions", "uid"),
    "Views": ("sql", "table", "View", "Table"),
    "Jobs": ("Job", "Run", "Status"),
    "Functions": (
        "KeyedProcess", "KeyedBatchProcess", "KeyedCoProcess", "KeyedBroadcastProcess", "Context", "BatchContext",
        "Timer", "OnError", "Retry",
    ),
    "State": ("Value", "List", "Map", "Reducing", "Aggregating", "Broadcast", "TTL"),
    "Windows": ("Tumbling", "Sliding", "Session", "Global", "Early", "Window"),
    "Settings": (
        "Checkpoints", "Changelog", "KafkaLog", "Continuous", "Restart", "Settings", "FollowExecutors", "Telemetry",
    ),
    "Aggregates, `sl.agg`": ("agg",),
    "Sinks, `sl.sinks`": ("sinks",),
    "Kafka as a source, `sl.kafka`": ("kafka",),
    "State from outside, `sl.state`": ("state",),
    "Tests, `strandline.testing`": ("testing",),
    "Errors, `sl.errors`": ("errors",),
}  # fmt: skip
_GIVEN = (
    "Stream",
    "KeyedStream",
    "WindowedStream",
    "View",
    "Table",
    "Run",
    "Status",
    "Context",
    "BatchContext",
    "Timer",
    "Window",
)
"""What programs are given, and do not make."""
_PROMPT = re.compile(r"^(>>>|\.\.\.)( |$)")


def pages() -> dict[str, str]:
    """Return each page by its file's name."""
    return {
        f"{title.lower().partition(',')[0].replace(' ', '-')}.md": "\n".join([f"# {title}\n", *_page(names)])
        for title, names in GROUPS.items()
    }


def _page(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        thing = strandline.testing if name == "testing" else getattr(sl, name)
        if isinstance(thing, ModuleType):
            yield _prose(thing.__doc__)
            prefix = "" if name in ("testing", "errors") else f"sl.{name}."
            for inner in _names_of(thing):
                yield from _described(f"{prefix}{inner}", getattr(thing, inner))
        else:
            yield from _described(f"sl.{name}", thing)


def _names_of(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = inspect.getmembers(module, lambda thing: getattr(thing, "__module__", "") == module.__name__)
    return [name for name, _ in own if not name.startswith("_")]


def _described(name: str, thing: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if not inspect.isclass(thing):
        if callable(thing):
            yield _signature(name, thing)
        yield _prose(thing.__doc__)
        return
    if issubclass(thing, StrandlineError):
        yield _prose(thing.__doc__)
        return
    if thing.__name__ not in _GIVEN:
        yield _signature(name, thing)
    yield _prose(thing.__doc__)
    documented = _attributes(thing)
    yield from (f"- `{attribute}`: {said}\n" for attribute, said in documented.items())
    for member, value in _members(thing):
        short = name.rpartition(".")[2]
        if isinstance(value, property):
            kind = f": {_plain(value.fget.__annotations__['return'])}" if value.fget else ""
            yield f"### {short}.{member}\n\n```text\n{member}{kind}\n```\n"
        else:
            yield f"### {short}.{member}\n\n{_signature(member, value)}"
        yield _prose(value.__doc__)


def _members(thing: type) -> list[tuple[str, Any]]:
    """Return the public methods and properties that have a docstring, of all classes of ours, in the order written."""
    found: dict[str, Any] = {}
    for owner in reversed(thing.__mro__):
        if owner.__module__.startswith("strandline"):
            for name, value in vars(owner).items():
                value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    found[name] = value
    return [(name, value) for name, value in found.items() if value.__doc__]


def _attributes(thing: type) -> dict[str, str]:
    """Return what is said of a class's attributes, below each of them."""
    said: dict[str, str] = {}
    for owner in reversed(thing.__mro__):
        if not owner.__module__.startswith("strandline"):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and is_text and isinstance(text.value.value, str):
                name = ast.unparse(field.target)
                if not name.startswith("_"):
                    said[name] = " ".join(text.value.value.split())
    return said


def _signature(name: str, thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    texts, starred = [], False
    for parameter, bare in zip(signature.parameters.values(), parameters, strict=True):
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            texts.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        text = str(bare.replace(default=inspect.Parameter.empty))
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {_plain(parameter.annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {_default(parameter.default)}"
        texts.append(text)
    result = "" if inspect.isclass(thing) or signature.return_annotation is inspect.Signature.empty else (
        f" -> {_plain(signature.return_annotation)}"
    )  # fmt: skip
    line = f"{name}({', '.join(texts)}){result}"
    if len(line) > 110:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){result}"
    return f"```text\n{line}\n```\n"


def _plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", text)


def _default(value: Any) -> str:
    if callable(value) or "object at 0x" in repr(value) or repr(value) == "<factory>":
        return "…"
    return repr(value)


def _prose(text: str | None) -> str:
    """Return a docstring as Markdown: what is typed at a prompt, and what is indented, stands in fences."""
    lines = inspect.cleandoc(text or "").splitlines()
    out: list[str] = []
    fence = False
    for line in lines:
        code = bool(_PROMPT.match(line)) or line.startswith("    ") or (fence and bool(line.strip()))
        if code != fence:
            out += ["```text"] if code else ["```"]
            if not code and line:
                out.append("")
        fence = code
        out.append(re.sub(r" *# doctest:.*", "", line))
    if fence:
        out.append("```")
    return "\n".join(out) + "\n"
