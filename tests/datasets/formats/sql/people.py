"""A table that tests write to databases."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

COUNT = 40
COLUMNS = ("id", "name", "height", "photo", "note")


def rows(count: int = COUNT) -> list[tuple[Any, ...]]:
    return [
        (i * 2 - 10, f"nämé {i} '; DROP TABLE people; --", i / 4, bytes([i % 256, 0, 255]), None if i % 5 else f"{i}")
        for i in range(count)
    ]


def samples(count: int = COUNT) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows(count)]


def make_sqlite(path: Path, count: int = COUNT) -> str:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, height REAL, photo BLOB, note TEXT)")
        database.executemany("INSERT INTO people VALUES (?, ?, ?, ?, ?)", rows(count)[::-1])
    return f"sqlite:///{path}"


def make_duckdb(path: Path, count: int = COUNT) -> str:
    import duckdb

    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE people (id BIGINT PRIMARY KEY, name TEXT, height DOUBLE, photo BLOB, note TEXT)")
        values = [value for row in rows(count)[::-1] for value in row]
        if values:  # one statement takes a tenth of the time of executemany
            marks = ", ".join(["(?, ?, ?, ?, ?)"] * count)
            database.execute(f"INSERT INTO people VALUES {marks}", values)
    return f"duckdb:///{path}"


def make_postgres(server: Any, count: int = COUNT) -> str:
    with server.connection() as connection:
        connection.execute("DROP TABLE IF EXISTS people")
        connection.execute(
            "CREATE TABLE people (id BIGINT PRIMARY KEY, name TEXT, height FLOAT8, photo BYTEA, note TEXT)"
        )
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO people VALUES (%s, %s, %s, %s, %s)", rows(count)[::-1])
    address: str = server.address()
    return address
