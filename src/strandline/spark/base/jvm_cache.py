"""A view of the JVM that asks for each class once.

PySpark asks by name whenever it needs one, ten times an epoch; and the JVM looks into every one of its jars for what
that name could stand for.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView
from pyspark import SparkContext
from pyspark.sql import SparkSession


class RememberingView(JVMView):  # type: ignore[misc]
    """Names of classes stand for the same ones as long as the JVM lives. All else is asked for again."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaClass):
            found = self.__dict__[name] = _RememberingClass(found._fqn, self._gateway_client)
        return found


class _RememberingClass(JavaClass):  # type: ignore[misc]
    """Keeps methods, and not what a field has."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


def remember_classes(spark: SparkSession) -> None:
    """Have PySpark, and whoever asks a session or its context, look at the JVM in this way."""
    seen: Any = spark._jvm
    if type(seen) is JVMView:
        view = RememberingView(seen._gateway_client, seen._jvm_name, id=seen._id)
        SparkContext._jvm = spark._jvm = view
