"""The statements about rows on PostgreSQL, in READ COMMITTED: one that has waited looks at the row again."""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.models.expressions import Parameters, UnknownColumn, Value, Values
from tests.simulation.models.plans import Plan, select_rows
from tests.simulation.models.postgresql.session import PostgreSQLSession
from tests.simulation.models.protocol import Result
from tests.simulation.models.statements import Delete, Insert, RowStatement, Select, Update
from tests.simulation.models.storage import Row, Table
from tests.simulation.runtime import ServerError

__all__ = ["run_rows"]

_BIGINT: Final = 2**63


def run_rows(
    session: PostgreSQLSession, statement: RowStatement, text: str, parameters: Parameters
) -> Result:
    """Run a statement about rows.

    Raises:
        ServerError: it has failed, and its transaction with it.
    """
    if isinstance(statement, Select):
        table = session.table(statement.table, "ROW SHARE" if statement.locks else "ACCESS SHARE")
        if statement.locks:
            session.check_writable("SELECT FOR UPDATE")
    else:
        session.check_writable(type(statement).__name__.upper())
        table = session.table(statement.table, "ROW EXCLUSIVE")
    plan = table.plans.get(text)
    if plan is None:
        plan = table.plans[text] = _bind(statement, table)
    if isinstance(statement, Select):
        return _select(session, plan, table, parameters)
    if isinstance(statement, Update):
        return _update(session, plan, table, parameters)
    if isinstance(statement, Delete):
        return _delete(session, plan, table, parameters)
    return _insert(session, plan, table, parameters)


def _bind(statement: RowStatement, table: Table) -> Plan[Any]:
    try:
        return Plan.of(statement, table, _stored, in_sequence=False)
    except UnknownColumn as unknown:
        raise ServerError("42703", f'column "{unknown}" does not exist') from None


def _stored(table: Table, number: int, value: Value) -> Value:
    """A value as a column has it."""
    column = table.columns[number]
    if value is None:
        raise ServerError(
            "23502",
            f'null value in column "{column.name}" of relation "{table.key[1]}" violates not-null constraint',
        )
    if column.least is None:
        text = str(value)
        if len(text) > column.largest:
            kind = column.type_.partition("(")[0]
            raise ServerError("22001", f"value too long for type {kind}({column.largest})")
        return text
    whole = int(value)
    if not -_BIGINT <= whole < _BIGINT:
        raise ServerError("22003", "bigint out of range")
    if not column.least <= whole <= column.largest:
        raise ServerError("22003", "integer out of range")
    return whole


def _check(session: PostgreSQLSession, table: Table, values: Values) -> None:
    for check in table.checks:
        if not check.holds(values, (), (), session):
            raise ServerError(
                "23514",
                f'new row for relation "{table.key[1]}" violates check constraint "{check.name}"',
            )


def _locked(session: PostgreSQLSession, row: Row) -> Values | None:
    session.lock_row(row, session.lock_seconds())
    return row.values


def _select(session: PostgreSQLSession, plan: Plan[Select], table: Table, p: Parameters) -> Result:
    meets = plan.filter.meets
    found: list[Values] = []
    if plan.statement.locks:
        for row in _rows_that_meet(session, plan, table, p):
            values = _locked(session, row)
            if values is not None and meets(values, p, session):
                found.append(values)
    else:
        found = [values for values in session.visible(table) if meets(values, p, session)]
    rows = select_rows(plan, table, found, p, session)
    return Result(rows, plan.items.names, len(rows))


def _rows_that_meet(
    session: PostgreSQLSession, plan: Plan[Any], table: Table, p: Parameters
) -> list[Row]:
    """The rows whose committed state, or own one, meets the condition: only these are waited for."""
    found: list[Row] = []
    for row in plan.filter.candidates(table, p, session):
        seen = row.seen_by(session.transaction)
        if seen is not None and plan.filter.meets(seen, p, session):
            found.append(row)
    return found


def _update(session: PostgreSQLSession, plan: Plan[Update], table: Table, p: Parameters) -> Result:
    assert plan.sets is not None
    changed: list[Values] = []
    for row in _rows_that_meet(session, plan, table, p):
        old = _locked(session, row)
        if old is None or not plan.filter.meets(old, p, session):
            continue
        new = plan.sets.new_values(table, old, (), p, session)
        _put(session, table, row, new)
        changed.append(new)
    return _returned(plan, changed, p, session)


def _returned(
    plan: Plan[Any], changed: list[Values], p: Parameters, session: PostgreSQLSession
) -> Result:
    if not plan.items.names:
        return Result(affected=len(changed))
    rows = plan.items.rows(changed, p, session)
    return Result(rows, plan.items.names, len(rows))


def _put(session: PostgreSQLSession, table: Table, row: Row, new: Values) -> None:
    _check(session, table, new)
    conflict = table.conflict(new, session.transaction, row)
    if conflict is not None:
        raise _duplicate(table, conflict[0])
    table.set(session.transaction, row, new)


def _duplicate(table: Table, key: int) -> ServerError:
    name = table.keys[key].name
    return ServerError("23505", f'duplicate key value violates unique constraint "{name}"')


def _delete(session: PostgreSQLSession, plan: Plan[Delete], table: Table, p: Parameters) -> Result:
    deleted = 0
    for row in _rows_that_meet(session, plan, table, p):
        old = _locked(session, row)
        if old is not None and plan.filter.meets(old, p, session):
            table.set(session.transaction, row, None)
            deleted += 1
    return Result(affected=deleted)


def _insert(session: PostgreSQLSession, plan: Plan[Insert], table: Table, p: Parameters) -> Result:
    changed: list[Values] = []
    for row in plan.rows:
        values: list[Value] = [column.default for column in table.columns]
        for number, function in zip(plan.columns, row, strict=True):
            if function is not None:
                values[number] = function((), (), p, session)
        new = tuple(_stored(table, number, value) for number, value in enumerate(values))
        _check(session, table, new)
        written = _insert_row(session, plan, table, new, p)
        if written is not None:
            changed.append(written)
    return _returned(plan, changed, p, session)


def _insert_row(
    session: PostgreSQLSession, plan: Plan[Insert], table: Table, new: Values, p: Parameters
) -> Values | None:
    """The row that was written; None for one that ON CONFLICT has left as it was."""
    upsert = plan.statement.upsert
    while True:
        conflict = table.conflict(new, session.transaction)
        if conflict is None:
            row = session.store.new_row()
            session.lock_row(row, 0.0)
            table.set(session.transaction, row, new)
            return new
        key, row = conflict
        if upsert is None and row.changed_by in (None, session.transaction):
            raise _duplicate(table, key)
        if upsert is not None and not upsert.sets:
            return None
        # an INSERT waits for the end of the other transaction, too, and needs no lock after that
        old = _locked(session, row)
        if old is None or table.conflict(new, session.transaction) != conflict:
            continue
        if upsert is None:
            raise _duplicate(table, key)
        assert plan.sets is not None
        if plan.upsert_filter is not None and not plan.upsert_filter(old, new, p, session):
            return None
        values = plan.sets.new_values(table, old, new, p, session)
        _put(session, table, row, values)
        return values
