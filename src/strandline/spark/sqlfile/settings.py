"""The settings of a job in SQL: `SET name = value`, with the names of the parameters of Job, Checkpoints and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strandline.api.config import Changelog, Checkpoints, Continuous, Restart
from strandline.checkpoint.jobdir import check_job_name
from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings, parse_duration_ms
from strandline.spark.sqlfile.options import Parameters, Secrets, as_text
from strandline.spark.sqlfile.statements import Option
from strandline.spark.sqlfile.text import Script
from strandline.spark.views.hints import duration_ms
from strandline.spark.views.names import nearest

_OF_JOB = {"name": str, "trigger": str, "drain": bool}
_OF_VIEWS = {"state_ttl": str}
_OF_SPARK = "spark."
_CHECKPOINTS = {"directory": "checkpoints", "every": "10s"}
"""The checkpoints of a program that sets none."""
_GROUPS = {
    "": Parameters({**_OF_JOB, **_OF_VIEWS, **Parameters.of(Settings).hints}, ()),
    "checkpoints": Parameters.of(Checkpoints, without=("changelog", "continuous")),
    "checkpoints.changelog": Parameters.of(Changelog, without=("log",)),
    "checkpoints.continuous": Parameters.of(Continuous),
    "restart": Parameters.of(Restart),
}


def _check_of_job(
    name: str = "job", trigger: str | None = None, drain: bool = False, state_ttl: str | None = None, **settings: Any
) -> None:
    """Raise ConfigurationError for a wrong value of one of the settings without a prefix."""
    check_job_name(name)
    if trigger is not None and trigger != "available-now":
        parse_duration_ms(trigger, "trigger")
    if state_ttl is not None:
        duration_ms(state_ttl, "state_ttl")
    Settings(**settings)


_CHECKS: dict[str, Callable[..., object]] = {
    "": _check_of_job,
    "checkpoints": lambda **setting: Checkpoints(**{**_CHECKPOINTS, **setting}),
    "checkpoints.changelog": Changelog,
    "checkpoints.continuous": Continuous,
    "restart": Restart,
}
"""Functions that raise an error for a wrong value of one setting, which the error then locates."""
SETTINGS = sorted(f"{group}.{name}".lstrip(".") for group, parameters in _GROUPS.items() for name in parameters.hints)
"""The names of all settings, except those of Spark."""


@dataclass(frozen=True)
class JobSettings:
    """The arguments of a Job and of its session."""

    name: str
    arguments: dict[str, Any]
    spark: dict[str, str]
    state_ttl: str | None = None
    """The time to live of the state of all views."""


def job_settings(settings: Iterable[tuple[Script, Option]], script_name: str, secrets: Secrets) -> JobSettings:
    """Return the settings of a program; the last one of a name counts."""
    values: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
    spark: dict[str, str] = {}
    places: dict[str, tuple[Script, int]] = {}
    for script, option in settings:
        check_setting(script, option)
        if option.name.lower().startswith(_OF_SPARK):
            spark[option.name] = as_text(secrets.resolve(script, option))
            continue
        group, inner = _group_of(option.name)
        what = f"the settings {group}.*" if group else "the job"
        parameters = replace(_GROUPS[group], required=())
        value = parameters.arguments(script, what, option.at, [replace(option, name=inner)], secrets)
        try:
            _CHECKS[group](**value)
        except StrandlineError as error:
            raise secrets.located(error, script, option.value_at) from None
        for name, each in value.items():
            before = values[group].get(name)
            values[group][name] = {**before, **each} if isinstance(before, dict) else each
            places[name] = script, option.value_at
    try:
        _check_of_job(**values[""])
    except StrandlineError as error:
        # One that does not fit the other.
        raise secrets.located(error, *places["max_parallelism"]) from None
    of_job = {name: values[""].pop(name) for name in _OF_JOB if name in values[""]}
    state_ttl = values[""].pop("state_ttl", None)
    limits = {
        name: kind(**values[f"checkpoints.{name}"])
        for name, kind in (("changelog", Changelog), ("continuous", Continuous))
        if values[f"checkpoints.{name}"]
    }
    arguments = {
        **{name: value for name, value in of_job.items() if name != "name"},
        "checkpoints": Checkpoints(**{**_CHECKPOINTS, **values["checkpoints"], **limits}),
        "restart": Restart(**values["restart"]),
        "settings": Settings(**values[""]),
    }
    return JobSettings(of_job.get("name", Path(script_name).stem), arguments, spark, state_ttl)


def check_setting(script: Script, option: Option) -> None:
    """Raise ConfigurationError for a setting that does not exist."""
    group, inner = _group_of(option.name)
    is_entry = inner.partition(".")[0].lower() in _GROUPS[group].hints
    if not is_entry and not option.name.lower().startswith(_OF_SPARK):
        raise script.error(
            f"there is no setting '{option.name}'{nearest(option.name, SETTINGS)}",
            option.at,
            hint="settings are name, trigger, parallelism, checkpoints.directory, checkpoints.every and others: those "
            "of Job, Settings, Checkpoints and Restart, and of Spark, as spark.sql.session.timeZone",
        )


def _group_of(name: str) -> tuple[str, str]:
    """Return the group of a setting, and its name there."""
    group = max((each for each in _GROUPS if not each or name.lower().startswith(f"{each}.")), key=len)
    return group, name[len(group) + 1 if group else 0 :]
