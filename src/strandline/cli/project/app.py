"""Visits by user. End it with Ctrl-C, or kill -9; run it again: it goes on where it was."""

import strandline as sl


class Visits(sl.KeyedProcess):
    count = sl.Value("bigint", default=0)  # state: declared, typed by Spark DDL, named by the attribute
    pages = sl.Map("string", "bigint")

    def on_event(self, event, ctx):  # columns are attributes of the event
        self.count.value += 1
        self.pages[event.page] = self.pages.get(event.page, 0) + 1
        if self.count.value % 5 == 0:
            yield {"user": ctx.key, "visits": self.count.value, "pages": len(self.pages)}


def clicks(spark):
    """Twenty clicks a second, made up by Spark. Yours come from Kafka, files or a table."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    return rate.selectExpr("concat('user-', value % 7) AS user", "concat('/page/', value % 4) AS page")


def build(spark):
    visits = (
        sl.stream(clicks(spark))  # any Structured Streaming DataFrame
        .where("page <> '/page/0'")  # stateless steps stay Spark
        .key_by("user")
        .process(Visits(), output="user string, visits bigint, pages int", uid="visits")
    )
    return sl.Job(
        "@job@",
        sinks=[visits.to(sl.sinks.console()), visits.to(sl.sinks.files("out/", format="json"))],
        checkpoints=sl.Checkpoints("checkpoints/", every="10s", retain=2),
        trigger="1s",
    )


if __name__ == "__main__":
    spark = sl.session("@job@")
    build(spark).start(spark).await_termination()
