"""Random scripts of what the package, its operators and foreign clients send, for each kind of server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Literal

from tests.simulation.models.scripts import Step

__all__ = ["MAKERS", "Kind", "random_script", "script_of_draws"]

Kind = Literal["mariadb", "mysql", "postgresql"]

_MARKS_MYSQL: Final = (
    "CREATE TABLE sqla_tickets_marks (\n\tsequence VARCHAR(255) COLLATE utf8mb4_bin NOT NULL, \n\tstride INTEGER NOT"
    " NULL, \n\t`offset` INTEGER NOT NULL, \n\ttoken BIGINT NOT NULL, \n\tmark BIGINT UNSIGNED NOT NULL, \n\tPRIMARY"
    " KEY (sequence, stride, `offset`)\n)ENGINE=InnoDB COMMENT='sqla_tickets: marks'"
)
_REPLACE_TABLE: Final = (
    "CREATE TABLE `photos` (\n\tid BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,\n\tstub CHAR(1) NOT NULL DEFAULT ''"
    ",\n\tPRIMARY KEY (id),\n\tUNIQUE KEY stub (stub)\n) ENGINE=InnoDB AUTO_INCREMENT=1 COMMENT='sqla_tickets {}'"
    " SELECT 1 AS id, 'a' AS stub"
)
_COUNTER_TABLE: Final = (
    "CREATE TABLE `albums` (\n\tstub CHAR(1) NOT NULL PRIMARY KEY,\n\tid BIGINT UNSIGNED NOT NULL"
    " CHECK (id > 0 AND id <= 9223372036854775807)\n) ENGINE=InnoDB COMMENT='sqla_tickets {}' SELECT 1 AS id, 'c' AS stub"
)
_CLOSE: Final = {
    "photos": (
        "ALTER TABLE `photos` DROP PRIMARY KEY, DROP KEY `stub`, CHANGE id high_water BIGINT UNSIGNED NOT NULL,"
        " CHANGE stub was_stub CHAR(1) NOT NULL DEFAULT '', ADD PRIMARY KEY (high_water), COMMENT='closed'"
    ),
    "albums": (
        "ALTER TABLE `albums` DROP PRIMARY KEY,{check} CHANGE id high_water BIGINT UNSIGNED NOT NULL,"
        " CHANGE stub was_stub CHAR(1) NOT NULL DEFAULT '', ADD PRIMARY KEY (high_water), COMMENT='closed'"
    ),
}
_OPEN: Final = {
    "photos": (
        "ALTER TABLE `photos` DROP PRIMARY KEY, CHANGE high_water id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,"
        " CHANGE was_stub stub CHAR(1) NOT NULL DEFAULT '', ADD PRIMARY KEY (id), ADD UNIQUE KEY stub (stub),"
        " AUTO_INCREMENT=100, ENGINE=InnoDB, COMMENT='open'"
    ),
    "albums": (
        "ALTER TABLE `albums` DROP PRIMARY KEY, CHANGE high_water id BIGINT UNSIGNED NOT NULL"
        " CHECK (id > 0 AND id <= 9223372036854775807), CHANGE was_stub stub CHAR(1) NOT NULL FIRST,"
        " ADD PRIMARY KEY (stub), ENGINE=InnoDB, COMMENT='open'"
    ),
}


def _inserting(marks: Sequence[tuple[int, int, int]]) -> str:
    """The statement that inserts marks, or raises them: each is an offset, a token and a number."""
    rows = ", ".join(f"('s', 2, {offset}, {token}, {mark})" for offset, token, mark in marks)
    return (
        f"INSERT INTO sqla_tickets_marks (sequence, stride, `offset`, token, mark) VALUES {rows}"
        " ON DUPLICATE KEY UPDATE mark = CASE WHEN (sqla_tickets_marks.token = VALUES(token)) THEN"
        " greatest(sqla_tickets_marks.mark, VALUES(mark)) ELSE sqla_tickets_marks.mark END"
    )


def _raising(offset: int, token: int, mark: int) -> str:
    """The statement that raises one mark, and shows the stored one."""
    return (
        f"UPDATE `sqla_tickets_marks` SET mark = LAST_INSERT_ID(GREATEST(mark, CAST({mark} AS UNSIGNED)))"
        f" WHERE `sequence` = 's' AND `stride` = 2 AND `offset` = {offset} AND `token` = {token}"
    )


class _MySQL:
    """Statements of MySQL and MariaDB.

    Args:
        random: by which they are chosen.
        kind: of the server.
    """

    tables = ("photos", "albums")

    def __init__(self, random: Random, kind: Kind) -> None:
        self._random, self._kind = random, kind
        # of several strides, InnoDB remembers one in each of its handlers, which clients share
        self._stride, self._offset = random.choice([(2, 1), (2, 2), (4, 3), (1, 1)])

    def creation(self) -> list[str]:
        """The tables."""
        return [_REPLACE_TABLE, _COUNTER_TABLE, _MARKS_MYSQL]

    def session(self, seconds: int) -> str:
        """What a connection begins with, and how long it waits for locks."""
        return (
            f"SET SESSION autocommit = 1, lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds},"
            " sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES')"
        )

    def _carried(self, statement: str) -> str:
        stride, offset = self._stride, self._offset
        if self._kind == "mariadb":
            pair = f"auto_increment_increment={stride}, auto_increment_offset={offset}"
            return f"SET STATEMENT {pair} FOR REPLACE INTO {statement}"
        hint = f"SET_VAR(auto_increment_increment={stride}) SET_VAR(auto_increment_offset={offset})"
        return f"REPLACE /*+ {hint} */ INTO {statement}"

    def draw(self) -> str:
        """A draw of one ticket or of a block, by whatever layout."""
        one = self._carried("`photos` (stub) VALUES ('a')")
        last = self._carried("`photos` (id, stub) VALUES (LAST_INSERT_ID() + 18, 'a')")
        return self._random.choice(
            [
                one,
                one,
                one,
                f"LOCK TABLES `photos` WRITE; {one}; {last}; UNLOCK TABLES",
                "UPDATE `albums` SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'c'",
                "UPDATE `albums` SET id = LAST_INSERT_ID(id + 20) WHERE stub = 'c'",
            ]
        )

    def read(self) -> str:
        """A look at a table."""
        return self._random.choice(
            [
                "SELECT id FROM `photos` WHERE stub = 'a'",
                "SELECT id FROM `albums` WHERE stub = 'c'",
                "SELECT * FROM sqla_tickets_marks",
                "SHOW CREATE TABLE `photos`",
                "SHOW CREATE TABLE `albums`",
                "SELECT LAST_INSERT_ID()",
                "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'innodb_read_only')",
            ]
        )

    def write(self) -> str:
        """A change of rows besides draws."""
        r = self._random
        marks = [
            (offset, r.choice((7, 7, 8)), r.randint(1, 99))
            for offset in sorted(r.sample((1, 2, 3), r.randint(1, 2)))
        ]
        return r.choice(
            [
                _raising(*marks[0]) if marks[0][2] % 2 else _inserting(marks),
                f"UPDATE `albums` SET id = {r.randint(1, 90)} WHERE stub = 'c' AND id < {r.randint(1, 90)}",
                f"UPDATE photos SET id = {r.randint(1, 300)} WHERE stub = 'a'",
                f"REPLACE INTO photos (id, stub) VALUES ({r.randint(1, 300)}, 'a')",
                self._carried("`photos` (stub) VALUES ('a')").replace(
                    "REPLACE INTO", "INSERT INTO"
                ),
                "REPLACE INTO albums (stub) VALUES ('a')",
                "UPDATE albums SET id = 0 WHERE stub = 'c'",
                "UPDATE albums SET id = LAST_INSERT_ID(id + 9223372036854775807) WHERE stub = 'c'",
            ]
        )

    def transaction(self) -> str:
        """The beginning or end of a transaction, or a lock within it."""
        return self._random.choice(
            [
                "BEGIN",
                "BEGIN",
                "COMMIT",
                "COMMIT",
                "ROLLBACK",
                "SELECT id FROM `photos` WHERE stub = 'a' FOR UPDATE",
                "SELECT id FROM `albums` WHERE stub = 'c' FOR UPDATE",
            ]
        )

    def lock(self) -> str:
        """The lock of a table."""
        return self._random.choice(
            [
                "LOCK TABLES `photos` WRITE",
                "LOCK TABLES `albums` WRITE, `sqla_tickets_marks` READ",
                "UNLOCK TABLES",
                "UNLOCK TABLES",
                "UNLOCK TABLES",
            ]
        )

    def definition(self) -> str:
        """A change of a table."""
        table = self._random.choice(self.tables)
        check = " DROP CHECK `albums_chk_1`," if self._kind == "mysql" else ""
        return self._random.choice(
            [
                f"ALTER TABLE `{table}` COMMENT='changed'",
                _CLOSE[table].format(check=check),
                _OPEN[table],
                f"DROP TABLE IF EXISTS `{table}`",
                _REPLACE_TABLE if table == "photos" else _COUNTER_TABLE,
                f"TRUNCATE TABLE {table}",
                f"ALTER TABLE photos AUTO_INCREMENT = {self._random.randint(1, 400)}",
            ]
        )


_MARKS_POSTGRESQL: Final = (
    "CREATE TABLE sqla_tickets_marks (\n\tsequence VARCHAR(255) NOT NULL, \n\tstride INTEGER NOT NULL, \n\t"
    '"offset" INTEGER NOT NULL, \n\ttoken BIGINT NOT NULL, \n\tmark BIGINT NOT NULL, \n\tPRIMARY KEY'
    ' (sequence, stride, "offset")\n)'
)


class _PostgreSQL:
    """Statements of PostgreSQL.

    Args:
        random: by which they are chosen.
        kind: of the server.
    """

    tables = ("photos", "albums")

    def __init__(self, random: Random, kind: Kind) -> None:
        self._random = random

    def _create(self, table: str) -> str:
        return (
            f'CREATE TABLE "{table}" (\n\tstub CHAR(1) NOT NULL PRIMARY KEY,\n\tid BIGINT NOT NULL'
            " CHECK (id > 0 AND id <= 9223372036854775807)\n)"
        )

    def creation(self) -> list[str]:
        """The tables."""
        found = [_MARKS_POSTGRESQL]
        for table in self.tables:
            found += [self._create(table), f"INSERT INTO \"{table}\" (id, stub) VALUES (1, 'c')"]
        return found

    def session(self, seconds: int) -> str:
        """What a connection begins with, and how long it waits for locks."""
        return (
            "SELECT set_config('synchronous_commit', 'on', false),"
            f" set_config('lock_timeout', '{seconds * 1000}', false)"
        )

    def draw(self) -> str:
        """A draw of one ticket or of a block."""
        table, span = self._random.choice(self.tables), self._random.choice((2, 2, 20))
        return f"UPDATE \"{table}\" SET id = id + {span} WHERE stub = 'c' RETURNING id"

    def read(self) -> str:
        """A look at a table."""
        table = self._random.choice(self.tables)
        return self._random.choice(
            [
                f"SELECT id FROM \"{table}\" WHERE stub = 'c'",
                'SELECT sequence, stride, mark FROM sqla_tickets_marks ORDER BY "offset"',
                "SELECT 'transaction_read_only', current_setting('transaction_read_only')",
            ]
        )

    def write(self) -> str:
        """A change of rows besides draws."""
        r, table = self._random, self._random.choice(self.tables)
        marks = ", ".join(
            f"('s', 2, {offset}, {r.choice((7, 7, 8))}, {r.randint(1, 99)})"
            for offset in sorted(r.sample((1, 2, 3), r.randint(1, 2)))
        )
        return r.choice(
            [
                (
                    f'INSERT INTO sqla_tickets_marks (sequence, stride, "offset", token, mark) VALUES {marks}'
                    ' ON CONFLICT (sequence, stride, "offset") DO UPDATE SET mark = excluded.mark WHERE'
                    " sqla_tickets_marks.token = excluded.token AND sqla_tickets_marks.mark < excluded.mark"
                ),
                f"UPDATE \"{table}\" SET id = {r.randint(1, 90)} WHERE stub = 'c' AND id < {r.randint(1, 90)}",
                f"INSERT INTO \"{table}\" (id, stub) VALUES (5, 'c')",
                f"INSERT INTO \"{table}\" (id, stub) VALUES (5, 'd')",
                f"DELETE FROM \"{table}\" WHERE stub = 'd'",
                f"UPDATE {table} SET id = 0",
                f"UPDATE \"{table}\" SET id = id + 9223372036854775807 WHERE stub = 'c' RETURNING id",
            ]
        )

    def transaction(self) -> str:
        """The beginning or end of a transaction, or a lock within it."""
        table = self._random.choice(self.tables)
        return self._random.choice(
            [
                "BEGIN",
                "BEGIN",
                "COMMIT",
                "COMMIT",
                "ROLLBACK",
                f"SELECT id FROM \"{table}\" WHERE stub = 'c' FOR UPDATE",
            ]
        )

    def lock(self) -> str:
        """The lock of a table."""
        table = self._random.choice(self.tables)
        return self._random.choice(
            [f'LOCK TABLE "{table}" IN ACCESS EXCLUSIVE MODE', "SET LOCAL lock_timeout = '50s'"]
        )

    def definition(self) -> str:
        """A change of a table."""
        table = self._random.choice(self.tables)
        return self._random.choice(
            [
                f"COMMENT ON TABLE \"{table}\" IS 'changed'",
                f'DROP TABLE IF EXISTS "{table}"',
                self._create(table),
                f'CREATE TABLE "{table}" (high_water BIGINT NOT NULL, was_stub CHAR(1) NOT NULL)',
                f"INSERT INTO \"{table}\" (id, stub) VALUES (1, 'c')",
            ]
        )


_Maker = _MySQL | _PostgreSQL
MAKERS: Final[dict[Kind, Callable[[Random, Kind], _Maker]]] = {
    "mariadb": _MySQL,
    "mysql": _MySQL,
    "postgresql": _PostgreSQL,
}


def _beginning(maker: _Maker, connections: int) -> list[Step]:
    begun = [Step(n, maker.session(50)) for n in range(connections)]
    return begun + [Step(0, text) for text in maker.creation()]


def script_of_draws(kind: Kind, random: Random, length: int = 30) -> list[Step]:
    """Draws, reads and locks alone, with whatever ends a wait."""
    maker = MAKERS[kind](random, kind)
    choices: Sequence[Callable[[], str]] = (maker.draw, maker.draw, maker.read, maker.lock)
    steps = _beginning(maker, 3)
    steps += [Step(random.randrange(3), random.choice(choices)()) for _ in range(length)]
    return steps


def random_script(
    kind: Kind,
    random: Random,
    *,
    length: int = 40,
    connections: int = 3,
    restarts: bool = False,
) -> list[Step]:
    """All that is modelled.

    Args:
        kind: of the server.
        random: by which it is chosen.
        length: how many steps it has after the beginning.
        connections: how many there are.
        restarts: whether the server is restarted now and then.
    """
    maker = MAKERS[kind](random, kind)
    steps = _beginning(maker, connections)
    parts: list[tuple[int, Callable[[], str]]] = [
        (8, maker.draw),
        (3, maker.read),
        (3, maker.write),
        (5, maker.transaction),
        (3, maker.lock),
        (2, maker.definition),
        (1, lambda: "@kill"),
        (1, lambda: "@kill query"),
        (1, lambda: "@close"),
    ]
    if restarts:
        parts.append((1, lambda: random.choice(("@restart", "@crash"))))
    weights, makers = zip(*parts, strict=True)
    for _ in range(length):
        (make,) = random.choices(makers, weights)
        connection, text = random.randrange(connections), make()
        steps.append(Step(connection, text))
        if text in ("@restart", "@crash"):
            steps += [Step(n, maker.session(50)) for n in range(connections)]
        elif text in ("@kill", "@close"):
            steps.append(Step(connection, maker.session(50)))
    return steps
