"""Arguments of sources and sinks from OPTIONS: checked against the parameters of the function that gets them."""

from __future__ import annotations

import inspect
import os
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from strandline.core.errors import StrandlineError
from strandline.spark.sqlfile.statements import Option, OptionValue
from strandline.spark.sqlfile.text import Script
from strandline.spark.views.names import nearest

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_FURTHER = "options"
"""The prefix of options that are passed on unchecked: `options.name`."""


@dataclass
class Secrets:
    """Values of environment variables that options have used: errors name the variables instead."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    _used: dict[str, str] = field(default_factory=dict, repr=False)

    def resolve(self, script: Script, option: Option) -> OptionValue:
        """Return the value of an option, with the value of each `${NAME}` from the environment."""
        if not isinstance(option.value, str):
            return option.value

        def value_of(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self.environment:
                raise script.error(
                    f"the environment has no variable '{name}'{nearest(name, self.environment)}", option.value_at,
                    hint=f"set it before the start: export {name}=…" if name.isidentifier() else "write ${NAME}",
                )  # fmt: skip
            self._used[self.environment[name]] = name
            return self.environment[name]

        return _VARIABLE.sub(value_of, option.value)

    def hide(self, text: str) -> str:
        """Return a text with the names of variables in place of their values."""
        for value, name in sorted(self._used.items(), key=lambda item: -len(item[0])):
            if value.strip():
                text = text.replace(value, f"${{{name}}}")
        return text

    def located(self, error: StrandlineError, script: Script, at: int) -> StrandlineError:
        """Return an error of a statement's function with the statement's place, and without secrets."""
        return type(error)(script.located(self.hide(error.message), at), hint=self.hide(error.hint), **error.fields)


@dataclass(frozen=True)
class Parameters:
    """The options that a connector takes."""

    hints: Mapping[str, Any]
    required: Collection[str]
    spark: Collection[str] = ()
    """Options of Spark's readers and writers, in Spark's spelling."""
    prefixes: Collection[str] = ()
    """Prefixes of names that are passed on with their values as text, into `options`."""

    @staticmethod
    def of(
        function: Callable[..., Any],
        *,
        without: Collection[str] = (),
        spark: Collection[str] = (),
        prefixes: Collection[str] = (),
    ) -> Parameters:
        """Return the parameters of a function or class, except those in `without`."""
        called = function.__init__ if inspect.isclass(function) else function
        hints, all_hints = dict[str, Any](), get_type_hints(called)
        required = []
        for name, parameter in inspect.signature(function).parameters.items():
            hint = all_hints.get(name, str)
            if parameter.kind is parameter.VAR_KEYWORD:
                # Unpack[TransactionalOptions], or any options of Spark.
                unpacked = next(iter(get_args(hint)), None)
                if is_typeddict(unpacked):
                    hints.update(get_type_hints(unpacked))
            elif name not in without:
                hints[name] = hint
                if parameter.default is parameter.empty:
                    required.append(name)
        return Parameters(hints, required, spark, prefixes)

    def arguments(
        self, script: Script, what: str, at: int, options: Sequence[Option], secrets: Secrets
    ) -> dict[str, Any]:
        """Return the keyword arguments that options are; options of Spark and further ones are in "options"."""
        arguments: dict[str, Any] = {}
        further: dict[str, str] = {}
        spark = {name.lower(): name for name in self.spark}
        for option in options:
            value = secrets.resolve(script, option)
            head, _, rest = option.name.partition(".")
            if option.name.lower() in self.hints:
                name = option.name.lower()
                arguments[name] = converted(script, option, value, self.hints[name], what)
            elif rest and head.lower() == _FURTHER:
                further[rest] = as_text(value)
            elif rest and head.lower() in self.hints and _is_mapping(self.hints[head.lower()]):
                entries = arguments.setdefault(head.lower(), {})
                if not isinstance(entries, dict):
                    raise script.error(f"{what} has both '{head}' and '{option.name}'", option.at, hint="write one")
                entries[rest] = as_text(value)
            elif option.name.startswith(tuple(self.prefixes)):
                further[option.name] = as_text(value)
            elif option.name.lower() in spark:
                further[spark[option.name.lower()]] = as_text(value)
            else:
                known = [*self.hints, *self.spark]
                raise script.error(
                    f"{what} has no option '{option.name}'{nearest(option.name, known)}",
                    option.at,
                    hint=f"its options are {', '.join(self.hints)}"
                    + (f"; and those of Spark; options.{option.name} is passed on as it is" if self.spark else ""),
                )
        for name in self.required:
            if name not in arguments:
                raise script.error(f"{what} needs the option '{name}'", at, hint=f"write OPTIONS ({name} '…', …)")
        if further:
            arguments[_FURTHER] = {**arguments.get(_FURTHER, {}), **further}
        return arguments


def as_text(value: OptionValue) -> str:
    """Return a value as Spark's options have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def converted(script: Script, option: Option, value: OptionValue, hint: Any, what: str) -> Any:
    """Return a value as one of the types that a parameter has, by its type hint."""
    kinds = _alternatives(hint)
    origins = [get_origin(kind) or kind for kind in kinds]
    text = as_text(value).strip()
    if bool in origins and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if int in origins and re.fullmatch(r"-?\d+", text):
        return int(text)
    if float in origins and re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", text):
        return float(text)
    if Sequence in origins and "," in text:
        return [part.strip() for part in text.split(",")]
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if text in words or str in origins:
        return text
    if words:
        expected = f"{', '.join(map(repr, words))}{nearest(text, words)}"
    elif bool in origins:
        expected = "TRUE or FALSE"
    elif _is_mapping(hint):
        expected = f"its entries one by one, as {option.name}.name '…'"
    else:
        expected = "a number"
    raise script.error(f"{what}: wrong value of '{option.name}', expected {expected}", option.value_at)


def _alternatives(hint: Any) -> list[Any]:
    """Return the types of a type hint."""
    if get_origin(hint) in (Union, types.UnionType):
        return [kind for each in get_args(hint) for kind in _alternatives(each)]
    return [hint]


def _is_mapping(hint: Any) -> bool:
    origins = [get_origin(kind) or kind for kind in _alternatives(hint)]
    return any(inspect.isclass(origin) and issubclass(origin, Mapping) for origin in origins)
