"""`strandline state`: the state in a snapshot as tables, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strandline.cli import patching
from strandline.cli.output import Table, print_json
from strandline.cli.stores import AsJson, StorageOptions, parse_options
from strandline.core.texts import size_text

app = typer.Typer(
    help="Show, query and change the state in snapshots.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="A savepoint, a checkpoint (…/job/chk-17), or a job's folder: its newest checkpoint."
    ),
]

AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV; what is not plain in a cell is JSON.")]
ToParquet = Annotated[
    Path | None, typer.Option("--parquet", metavar="OUT", help="Write a Parquet file, which must not be there yet.")
]


@app.command("tables")
def tables_(url: Url, option: StorageOptions = None, json: AsJson = False) -> None:
    """List the tables of a snapshot, and their columns.

    Each state of each operator is a table.
    """
    from dataclasses import asdict

    from strandline.snapshot.opening.snapshot import pinned_snapshot
    from strandline.snapshot.tables.table import tables

    with pinned_snapshot(url, parse_options(option)) as snapshot:
        snapshot_tables = tables(snapshot)
    if json:
        for entry in snapshot_tables:
            print_json(asdict(entry))
        return
    output = Table("table", "kind", "rows", "size", "columns", right=("rows", "size"))
    for entry in snapshot_tables:
        columns = ", ".join(f"{name} {kind}" for name, kind in entry.columns.items())
        rows = "-" if entry.rows is None else entry.rows
        output.add(entry.table, entry.kind, rows, "-" if entry.bytes is None else size_text(entry.bytes), columns)
    output.print()


@app.command("show")
def show(
    url: Url,
    name: Annotated[
        str, typer.Argument(metavar="TABLE", help="uid.state, or state; or metadata.operators and the like.")
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE",
            help="Only the rows of one key; repeat it for each key column. Binary in hex, structs in JSON.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="No more rows than these.")] = None,
    option: StorageOptions = None,
    json: AsJson = False,
    csv: AsCsv = False,
    parquet: ToParquet = None,
) -> None:
    """Show the rows of a table, or those of one key.

    Of one key, only the files are read that may hold it.
    """
    from strandline.cli.rows import print_rows
    from strandline.keeper.lean import defer_pandas
    from strandline.snapshot.opening.snapshot import pinned_snapshot
    from strandline.snapshot.rows.keys import key_from_text
    from strandline.snapshot.tables.metadata import METADATA_TABLES, metadata
    from strandline.snapshot.tables.reader import StateReader
    from strandline.snapshot.tables.table import all_tables, find_table

    # Importing pandas would take a third of a look-up's time.
    defer_pandas()
    options = parse_options(option)
    with pinned_snapshot(url, options) as snapshot:
        group, _, view = name.partition(".")
        if group == "metadata" and view in METADATA_TABLES and name not in {one.name for one in all_tables(snapshot)}:
            if key:
                raise typer.BadParameter("metadata has no keys", param_hint="--key")
            rows = metadata(snapshot, view, options)
            print_rows(rows.schema, rows.to_batches(), json=json, csv=csv, parquet=parquet, limit=limit)
            return
        state_table = find_table(snapshot, name)
        with StateReader() as reader:
            if key:
                batches = iter([reader.look_up(state_table, key_from_text(state_table.operator, key))])
            else:
                batches = reader.rows(state_table)
            print_rows(state_table.schema, batches, json=json, csv=csv, parquet=parquet, limit=limit)


@app.command("query")
def query_(
    url: Url,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT, of DuckDB's SQL.")],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="No more rows than these.")] = None,
    option: StorageOptions = None,
    json: AsJson = False,
    csv: AsCsv = False,
    parquet: ToParquet = None,
) -> None:
    """Run SQL over the tables of a snapshot.

    Only the tables that it names are read, and no more at a time than fits. FROM uid.state, or state where one operator
    has it: FROM detect.seen. Names that are not plain stand in double quotes: FROM "my op"."timers.event". Metadata:
    FROM metadata.operators, and .snapshot, .states, .partitions, .files, .history.
    """
    from strandline.cli.rows import print_rows
    from strandline.keeper.lean import defer_pandas
    from strandline.snapshot.opening.snapshot import pinned_snapshot
    from strandline.snapshot.tables.sql import query

    defer_pandas()
    options = parse_options(option)
    with pinned_snapshot(url, options) as snapshot, query(snapshot, sql, options) as result:
        print_rows(result.schema, result, json=json, csv=csv, parquet=parquet, limit=limit)


app.command("patch")(patching.patch)
