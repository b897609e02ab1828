"""Classes of the JVM are asked for once; what may change is asked for again. All but one test without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JVMView
from py4j.protocol import Py4JError

from strandline.spark.base.jvm_cache import CachingView, cache_classes

CLASS, METHOD, PACKAGE, NOTHING = "ycorg.Known", "ym", "yp", "x"


class Gateway:
    """A JVM that knows one class, with one method and one field, and one package."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.converters: list[Any] = []
        self.gateway_property = SimpleNamespace(pool=None)
        self.field = 0

    def send_command(self, command: str) -> str:
        kind, what = command.split("\n")[1:3]
        what = command.split("\n")[3] if kind == "m" else what
        self.asked.append(what)
        self.field += what == "field"
        known = {"org.Known": CLASS, "Known": CLASS, "method": METHOD, "field": f"yi{self.field}", "org": PACKAGE}
        return known.get(what, NOTHING)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def view(gateway: Gateway) -> CachingView:
    return CachingView(gateway, "default", id="rj")


def test_a_class_and_its_methods_are_asked_for_once(gateway: Gateway, view: CachingView) -> None:
    for _ in range(3):
        assert getattr(view, "org.Known") is getattr(view, "org.Known")
        assert view.Known._fqn == "org.Known"
        assert view.Known.method.name == "method"
    assert sorted(gateway.asked) == ["Known", "method", "org.Known"]


def test_a_field_is_what_it_is_now(view: CachingView) -> None:
    assert [view.Known.field, view.Known.field] == [1, 2]


def test_what_is_no_class_may_become_one(gateway: Gateway, view: CachingView) -> None:
    for _ in range(2):
        with pytest.raises(Py4JError, match="Later does not exist in the JVM"):
            _ = view.Later
        assert view.org._fqn == "org"
    assert gateway.asked == ["Later", "org"] * 2


def test_a_session_and_its_context_ask_through_it(spark: Any) -> None:
    assert type(spark._jvm) is CachingView
    assert spark.sparkContext._jvm is spark._jvm
    cache_classes(spark)
    assert spark._jvm is spark.sparkContext._jvm
    assert isinstance(spark._jvm.java.lang.Integer, JavaClass)
    assert type(spark._sc._gateway.jvm) is JVMView
    assert spark._jvm.java.lang.Integer.parseInt("7") == 7
