"""The formats of the values in DBOS's database: any format except JSON is a sign of an attack."""

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import String, column, inspect, make_url, select, table

from moerge.errors import MoergeError
from moerge_coordinator.storage.database import reading_engine

TODO = "restore an earlier backup: the workflow database was changed from outside"
_JSON = "portable_json"
_SCHEMA = "dbos"  # on PostgreSQL


def require_json(url: str) -> None:
    """Checks the format of every row of the database at `url`; the error names the row's table and key."""
    for problem in foreign_rows(url):
        raise MoergeError(problem, where="the workflow database", todo=TODO)


def foreign_rows(url: str) -> Iterator[str]:
    """Descriptions of the rows in another format than JSON; none without a database."""
    address = make_url(url)
    if address.drivername == "postgresql":
        engine, schema = reading_engine(url), _SCHEMA
    elif not (path := Path(address.database or "")).exists():
        return
    else:
        engine, schema = reading_engine(path), None
    try:
        tables = inspect(engine)
        for name in sorted({*tables.get_table_names(schema), *tables.get_view_names(schema)}):
            columns = [item["name"] for item in tables.get_columns(name, schema)]
            if "serialization" in columns:
                key, form = column(columns[0], String), column("serialization", String)
                query = select(key, form).select_from(table(name, schema=schema)).where(form != _JSON)
                with engine.connect() as connection:
                    for row, format_ in connection.execute(query):
                        yield f"row {str(row)!r} of table {name} has values of format {format_!r}, not {_JSON!r}"
    finally:
        engine.dispose()
