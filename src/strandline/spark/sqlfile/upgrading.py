"""Compares two versions of an SQL program: what becomes of the operators of its views."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from strandline.format.manifest import OperatorInfo
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Operator
from strandline.plan.upgrade import Upgrade, plan_upgrade
from strandline.spark.sqlfile.build import Build, make_sinks
from strandline.spark.sqlfile.program import Program
from strandline.spark.sqlfile.statements import CreateView
from strandline.spark.views.relations import Part
from strandline.spark.views.upgrading import PartChange, ViewUpgrade
from strandline.spark.views.view import View


@dataclass(frozen=True)
class Version:
    """One version of a program: the operators of each view, and those of the job."""

    views: dict[str, Sequence[Part]]
    operators: list[Operator]

    @staticmethod
    def of(program: Program, name: str, spark: SparkSession, stored: Sequence[OperatorInfo] = ()) -> Version:
        """Plan the job of a program; nothing starts. `name` is that of its file."""
        program.check_job(name)
        build = Build(program, spark)
        job = build.job(program.settings(name), make_sinks(program))
        views: dict[str, Sequence[Part]] = {}
        for entry in program.entries(CreateView):
            relation = build.relation(entry.declaration.name.text)
            if isinstance(relation, View):
                views[f"view {entry.declaration.name.text}"] = relation._relation.parts
        for insert, script in program.inserts:
            if not insert.query.relation:
                view = build.view(insert.query, script, insert.sink.text)
                views[f"INSERT INTO {insert.sink.text}"] = view._relation.parts
        return Version(views, job._plan.pipeline.settle(Parallelism(default=1), stored))


def compare_versions(
    old: Version | None,
    new: Version,
    stored: Sequence[OperatorInfo] | None,
    drop: Collection[str] = (),
    from_now: Collection[str] = (),
) -> tuple[list[PartChange], Upgrade]:
    """Return what becomes of each operator, by the rules of a start.

    `stored` are the operators of a snapshot; without one, they are those of the old version.
    """
    if stored is None:
        stored = [operator.info("rocksdb") for operator in old.operators] if old else []
    upgrade = plan_upgrade(stored, new.operators, drop, from_now)
    before = old or Version({}, [])
    texts = {each.uid: each.aggregated.texts for each in before.operators if each.aggregated}
    return ViewUpgrade(before.views, new.views, stored, new.operators, upgrade, texts).changes(), upgrade
