"""Every example in a docstring of the public surface runs."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import pytest

import strandline as sl
from strandline.api import config, process, states

_PARSER = doctest.DocTestParser()


def examples_of(thing: Any) -> list[str]:
    return [example.source for example in _PARSER.get_examples(inspect.getdoc(thing) or "")]


def run(thing: Any, **names: Any) -> dict[str, Any]:
    namespace: dict[str, Any] = {**{name: getattr(sl, name) for name in sl.__all__}, **names, "__name__": "doc"}
    for source in examples_of(thing):
        exec(compile(source, f"docstring of {thing.__name__}", "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "thing",
    [
        thing
        for module in (config, process, states)
        for _, thing in inspect.getmembers(module, inspect.isclass)
        if thing.__module__ == module.__name__ and examples_of(thing)
    ],
    ids=lambda thing: thing.__name__,
)
def test_api(thing):
    namespace = run(thing)
    for made in namespace.values():
        if isinstance(made, type) and made.__module__ == "doc":
            assert states.declared_states(made)


def test_what_users_declare_has_an_example():
    for name in ("Value", "List", "Map", "Reducing", "Aggregating", "KeyedProcess", "KeyedBatchProcess", "Checkpoints"):
        assert examples_of(getattr(sl, name)), name


def test_mean_of_the_aggregating_example():
    declared = states.declared_states(run(sl.Aggregating)["Mean"])["mean"]
    assert isinstance(declared, sl.Aggregating)
    assert declared.result(declared.add(declared.add(declared.create(), 1.0), 2.0)) == 1.5


@pytest.mark.spark
def test_spark(spark, tmp_path):
    (tmp_path / "in").mkdir()
    schema = "customer string, amount bigint"
    source = re.sub("in/", str(tmp_path / "in"), "\n".join(examples_of(sl.stream)))
    namespace = {"stream": sl.stream, "spark": spark, "schema": schema}
    exec(source, namespace)
    payments = namespace["payments"]
    assert isinstance(payments, sl.Stream)
    exec(
        re.sub("in/", str(tmp_path / "in"), "\n".join(examples_of(sl.files_source))), {"files_source": sl.files_source}
    )
    job = run(sl.Job, alerts=payments)["job"]
    assert (job.name, job.checkpoints.interval_ms) == ("alerts", 10_000)
