"""A view of the JVM that looks up each class once.

PySpark looks up classes by name ten times an epoch, and for each of them the JVM searches all of its jars.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView
from pyspark import SparkContext
from pyspark.sql import SparkSession


class CachingView(JVMView):  # type: ignore[misc]
    """Caches classes, which stay the same while the JVM lives; looks up packages again."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if isinstance(value, JavaClass):
            value = self.__dict__[name] = _CachingClass(value._fqn, self._gateway_client)
        return value


class _CachingClass(JavaClass):  # type: ignore[misc]
    """Caches methods, but not the values of fields."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if isinstance(value, JavaMember):
            self.__dict__[name] = value
        return value


def cache_classes(spark: SparkSession) -> None:
    """Replace the JVM view of PySpark, of a session and of its context by one that caches classes."""
    view: Any = spark._jvm
    if type(view) is JVMView:
        SparkContext._jvm = spark._jvm = CachingView(view._gateway_client, view._jvm_name, id=view._id)
