"""The statements about rows on MySQL and MariaDB, and AUTO_INCREMENT.

InnoDB takes the number of a new row before it waits for any lock of a row. So the row of Flickr's table can go back,
and only the counter tells how far the table has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.simulation.models.expressions import Parameters, UnknownColumn, Value, Values
from tests.simulation.models.mysql.session import MySQLSession
from tests.simulation.models.plans import Plan, select_rows
from tests.simulation.models.protocol import Result
from tests.simulation.models.statements import Delete, Insert, RowStatement, Select, Update
from tests.simulation.models.storage import Row, Table
from tests.simulation.runtime import ServerError

__all__ = ["counter_of", "duplicate", "next_number", "run_rows"]

#: Of BIGINT UNSIGNED, which every expression of ours has.
_LARGEST: Final = 2**64 - 1


def run_rows(
    session: MySQLSession,
    statement: RowStatement,
    text: str,
    parameters: Parameters,
    variables: Mapping[str, int],
) -> Result:
    """Run a statement about rows.

    Args:
        session: whose it is.
        statement: as it was parsed.
        text: by which its plan is remembered.
        parameters: of the client's.
        variables: that the statement carries, by a hint or by SET STATEMENT.

    Raises:
        ServerError: it has failed, and was taken back.
    """
    begun = session.before_statement()
    try:
        writes = not isinstance(statement, Select) or statement.locks
        if writes:
            session.check_writable()
        table = session.table(statement.table, writes=writes)
        plan = table.plans.get(text)
        if plan is None:
            plan = table.plans[text] = _bind(statement, table)
        if isinstance(statement, Select):
            result = _select(session, plan, table, parameters)
        elif isinstance(statement, Update):
            result = _update(session, plan, table, parameters)
        elif isinstance(statement, Delete):
            result = _delete(session, plan, table, parameters)
        else:
            result = _insert(session, plan, table, parameters, variables)
        if writes:
            session.spend(session.server.costs.write)
        session.after_statement()
    except Exception as error:
        session.failed_statement(begun, error)
        raise
    return result


def _bind(statement: RowStatement, table: Table) -> Plan[Any]:
    try:
        plan = Plan.of(statement, table, _stored, in_sequence=True)
    except UnknownColumn as unknown:
        raise ServerError(1054, f"Unknown column '{unknown}' in 'field list'") from None
    if isinstance(statement, Insert):
        named = set(plan.columns)
        for number, column in enumerate(table.columns):
            if number not in named and not column.has_default and not column.counts:
                raise ServerError(1364, f"Field '{column.name}' doesn't have a default value")
        if any(len(row) != len(plan.columns) for row in plan.rows):
            raise ServerError(1136, "Column count doesn't match value count at row 1")
    return plan


def _stored(table: Table, number: int, value: Value) -> Value:
    """A value as a column has it, in strict mode."""
    column = table.columns[number]
    if column.least is None:
        text = str(value)
        if len(text) > column.largest:
            raise ServerError(1406, f"Data too long for column '{column.name}' at row 1")
        return text
    if value is None:
        raise ServerError(1048, f"Column '{column.name}' cannot be null")
    whole = int(value)
    if whole > _LARGEST:
        raise ServerError(1690, f"BIGINT UNSIGNED value is out of range in '({column.name} + ...)'")
    if not column.least <= whole <= column.largest:
        raise ServerError(1264, f"Out of range value for column '{column.name}' at row 1")
    return whole


def _check(session: MySQLSession, table: Table, values: Values) -> None:
    for check in table.checks:
        if not check.holds(values, (), (), session):
            if session.server.is_mariadb:
                where = f"`{table.key[0]}`.`{table.key[1]}`"
                raise ServerError(4025, f"CONSTRAINT `{check.name}` failed for {where}")
            raise ServerError(3819, f"Check constraint '{check.name}' is violated.")


def duplicate(session: MySQLSession, table: Table, key: int, values: Values) -> ServerError:
    """The error for a row whose key another one has."""
    name = table.keys[key].name
    if not session.server.is_mariadb:
        name = f"{table.key[1]}.{name}"
    entry = "-".join(str(values[column]) for column in table.keys[key].columns)
    return ServerError(1062, f"Duplicate entry '{entry}' for key '{name}'")


def _locked(session: MySQLSession, row: Row, *, with_gap: bool = False) -> Values | None:
    """The latest values of a row, once its lock is held; None when it is gone."""
    session.lock_row(row, session.seconds("innodb_lock_wait_timeout"), with_gap=with_gap)
    return row.values


# -- SELECT, UPDATE, DELETE


def _select(session: MySQLSession, plan: Plan[Select], table: Table, p: Parameters) -> Result:
    found: list[Values] = []
    if plan.statement.locks:
        for row in plan.filter.candidates(table, p, session):
            values = _locked(session, row)
            if values is not None and plan.filter.meets(values, p, session):
                found.append(values)
    else:
        meets = plan.filter.meets
        found = [values for values in session.visible(table) if meets(values, p, session)]
    rows = select_rows(plan, table, found, p, session)
    return Result(rows, plan.items.names, len(rows))


def _update(session: MySQLSession, plan: Plan[Update], table: Table, p: Parameters) -> Result:
    assert plan.sets is not None
    found = changed = 0
    for row in plan.filter.candidates(table, p, session):
        old = _locked(session, row)
        if old is None or not plan.filter.meets(old, p, session):
            continue
        found += 1
        new = plan.sets.new_values(table, old, (), p, session)
        if new != old:
            _put(session, table, row, new)
            changed += 1
    affected = found if session.login.found_rows else changed
    return Result(affected=affected, insert_id=session.generated_id)


def _put(session: MySQLSession, table: Table, row: Row, new: Values) -> None:
    """Write a row whose lock is held; a number that is larger than the counter moves it."""
    _check(session, table, new)
    conflict = table.conflict(new, session.transaction, row)
    if conflict is not None:
        raise duplicate(session, table, conflict[0], new)
    _move(session, table, row, new)
    if table.counting is not None and session.server.keeps_counter:
        number = int(new[table.counting] or 0)
        if number >= counter_of(table):
            following = next_number(number + 1, *table.stepped)
            session.store.count_on(table, following, session.runtime.now())


def _at(values: Values, column: int) -> int:
    return int(values[column] or 0)


def _move(session: MySQLSession, table: Table, row: Row, new: Values) -> None:
    """Write a row. Where its number becomes smaller, those who wait to replace it find a deadlock.

    Its new entry in the index of ``stub`` goes into the gap before the old one, which they have asked for with that.
    """
    old, column = row.values, table.counting
    moves_down = column is not None and old is not None and _at(new, column) < _at(old, column)
    for wait in [wait for wait in row.waits if wait.with_gap and moves_down]:
        row.waits.remove(wait)
        victim = wait.transaction.session
        assert isinstance(victim, MySQLSession)
        victim.end("victim")
    if column is not None:
        following = next_number(_at(new, column) + 1, *table.stepped)
        table.persisted = max(table.persisted, following)
    table.set(session.transaction, row, new)


def _delete(session: MySQLSession, plan: Plan[Delete], table: Table, p: Parameters) -> Result:
    deleted = 0
    for row in plan.filter.candidates(table, p, session):
        old = _locked(session, row)
        if old is not None and plan.filter.meets(old, p, session):
            table.set(session.transaction, row, None)
            deleted += 1
    return Result(affected=deleted)


# -- INSERT, REPLACE


def _insert(
    session: MySQLSession,
    plan: Plan[Insert],
    table: Table,
    p: Parameters,
    variables: Mapping[str, int],
) -> Result:
    rows = [_new_values(plan, table, row, p, session) for row in plan.rows]
    first = _number(session, table, rows, variables) if table.counting is not None else 0
    if first:
        session.spend(session.server.costs.number)
    affected = 0
    for values in rows:
        new = tuple(values)
        if plan.statement.replaces:
            affected += _replace(session, table, new, is_generated=first > 0)
        elif plan.sets is not None:
            affected += _upsert(session, plan, table, new, p)
        else:
            _insert_row(session, table, new)
            affected += 1
    if first:
        session.last_insert_id = first
    insert_id = first or session.generated_id
    if not insert_id and table.counting is not None:
        insert_id = int(rows[-1][table.counting] or 0)
    return Result(affected=affected, insert_id=insert_id)


def _new_values(
    plan: Plan[Insert], table: Table, row: tuple[Any, ...], p: Parameters, session: MySQLSession
) -> list[Value]:
    values: list[Value] = [column.default for column in table.columns]
    for number, function in zip(plan.columns, row, strict=True):
        if function is None:
            continue
        value = function((), (), p, session)
        counts = number == table.counting and not value
        values[number] = None if counts else _stored(table, number, value)
    return values


def _number(
    session: MySQLSession, table: Table, rows: list[list[Value]], variables: Mapping[str, int]
) -> int:
    """Give numbers to new rows that have none; the first that was generated, or 0."""
    column = table.counting
    assert column is not None
    step = variables.get("auto_increment_increment") or int(
        session.variables["auto_increment_increment"] or 1
    )
    offset = variables.get("auto_increment_offset") or int(
        session.variables["auto_increment_offset"] or 1
    )
    now, store, first = session.runtime.now(), session.store, 0
    for values in rows:
        if values[column] is None:
            number = next_number(counter_of(table), step, offset)
            table.stepped = step, offset
            largest = table.columns[column].largest
            if number > largest:
                number = _at_the_end(session, table, largest)
            else:
                store.count_on(table, number + step, now)
            values[column] = number
            first = first or number
        else:
            number = int(values[column] or 0)
            if number >= counter_of(table):
                # by the stride of the statement before, which the handler remembers (measured on 10.11 and 9.7)
                store.count_on(table, next_number(number + 1, *table.stepped), now)
    return first


def _at_the_end(session: MySQLSession, table: Table, largest: int) -> int:
    """MariaDB refuses; MySQL stays at the last number, which the table holds already."""
    assert table.counting is not None
    if session.server.is_mariadb:
        name = table.columns[table.counting].name
        raise ServerError(167, f"Out of range value for column '{name}' at row 1")
    if largest >= 2**63:
        raise ServerError(1467, "Failed to read auto-increment value from storage engine")
    return largest


def counter_of(table: Table) -> int:
    """The least number that comes next; of a counter that a restart has forgotten, above the largest row."""
    if table.counter is None:
        table.counter = table.largest_number() + 1
    return table.counter


def next_number(least: int, step: int, offset: int) -> int:
    """The least number from ``least`` on that is ``offset`` modulo ``step``.

    An offset above the step is ignored (MySQL manual, auto_increment_offset).
    """
    if step <= 1:
        return least
    if offset > step:
        offset = 0
    return least + (offset - least) % step


def _insert_row(session: MySQLSession, table: Table, new: Values) -> None:
    _check(session, table, new)
    while True:
        conflict = table.conflict(new, session.transaction)
        if conflict is None:
            break
        key, row = conflict
        old = _locked(session, row, with_gap=key > 0)
        if old is not None and table.conflict(new, session.transaction):
            raise duplicate(session, table, key, new)
    _add(session, table, new)


def _add(session: MySQLSession, table: Table, new: Values) -> None:
    row = session.store.new_row()
    session.lock_row(row, 0.0)
    if table.counting is not None:
        table.persisted = max(table.persisted, _at(new, table.counting))
    table.set(session.transaction, row, new)


def _replace(session: MySQLSession, table: Table, new: Values, *, is_generated: bool) -> int:
    """Put a row into the place of all that hold one of its keys; how many rows that has changed."""
    _check(session, table, new)
    affected = 1
    while True:
        conflict = table.conflict(new, session.transaction)
        if conflict is None:
            _add(session, table, new)
            return affected
        key, row = conflict
        seconds = session.seconds("innodb_lock_wait_timeout")
        waited = session.lock_row(row, seconds, with_gap=key > 0)
        if waited and session.runtime.random.random() < session.server.deadlock_chance:
            raise session.interrupted("victim")
        if waited and (row.values is None or table.conflict(new, session.transaction) != conflict):
            continue
        if is_generated and table.counting in table.keys[key].columns:
            raise duplicate(session, table, key, new)
        if key == len(table.keys) - 1:
            # InnoDB updates the row; one that is the same was not changed
            affected += row.values != new
            _move(session, table, row, new)
            return affected
        table.set(session.transaction, row, None)
        affected += 1


def _upsert(
    session: MySQLSession, plan: Plan[Insert], table: Table, new: Values, p: Parameters
) -> int:
    """ON DUPLICATE KEY UPDATE: 1 for a new row, 2 for a changed one, 0 (or 1, see ``found_rows``) for one that stays."""
    assert plan.sets is not None
    while True:
        conflict = table.conflict(new, session.transaction)
        if conflict is None:
            _check(session, table, new)
            _add(session, table, new)
            return 1
        old = _locked(session, conflict[1])
        if old is None or table.conflict(new, session.transaction) != conflict:
            continue
        values = plan.sets.new_values(table, old, new, p, session)
        if values == old:
            return int(session.login.found_rows)
        _put(session, table, conflict[1], values)
        return 2
