"""The steps of the page "Taking over from AUTO_INCREMENT", and the tables that they begin with."""

from __future__ import annotations

from sqlalchemy import URL

from tests.support.draws import run
from tests.support.servers import MySQLLike, Server

#: Make a table of `rows` rows that counts for itself, from `first` on.
FILL = {
    "mariadb": (
        "CREATE TABLE photos (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, title VARCHAR(100))",
        "ALTER TABLE photos AUTO_INCREMENT = {first}",
        "INSERT INTO photos (title) SELECT 'old' FROM seq_1_to_{rows}",
    ),
    "mysql": (
        "CREATE TABLE photos (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, title VARCHAR(100))",
        "ALTER TABLE photos AUTO_INCREMENT = {first}",
        "SET cte_max_recursion_depth = {rows}",
        (
            "INSERT INTO photos (title) WITH RECURSIVE rows_ (n) AS (SELECT 1 UNION ALL"
            " SELECT n + 1 FROM rows_ WHERE n < {rows}) SELECT 'old' FROM rows_"
        ),
    ),
    "postgresql": (
        "CREATE TABLE photos (id BIGSERIAL PRIMARY KEY, title VARCHAR(100))",
        "ALTER SEQUENCE photos_id_seq RESTART {first}",
        "INSERT INTO photos (title) SELECT 'old' FROM generate_series(1, {rows})",
    ),
}
#: The edit of the page "Taking over a table", and its one line that is another on PostgreSQL.
GENERATED = "op.create_ticket_table('photos', start_above=('photos', 'id'))"
CREATED = "op.create_ticket_table('photos', start_above=('photos', 'id', [SHARD1, SHARD2]))"
ALTERED = """\
op.alter_column('photos', 'id', existing_type=sa.BigInteger(), existing_nullable=False,
                    autoincrement=False)"""
#: What the page has old processes' ids get out of the tickets' way with.
STRIDE = 16
COUNT_APART = {
    "mysql": (
        "SET GLOBAL auto_increment_increment = 16",
        "SET GLOBAL auto_increment_offset = 16",
        "ALTER TABLE photos AUTO_INCREMENT = 2000000",
    ),
    "postgresql": ("ALTER SEQUENCE photos_id_seq INCREMENT BY 16 RESTART WITH 2000000",),
}


def count_apart(server: Server, shard: URL, number: int) -> None:
    """Step 1 of the page, on one shard."""
    if isinstance(server, MySQLLike):
        *of_server, of_table = COUNT_APART["mysql"]
        with server.administrator() as cursor:
            for statement in of_server:
                cursor.execute(statement.replace("offset = 16", f"offset = {16 - number}"))
        run(shard, of_table)
        return
    for statement in COUNT_APART["postgresql"]:
        run(shard, statement.replace("2000000", str(2000000 - number)))
