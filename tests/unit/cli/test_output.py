"""What ``status`` and ``doctor`` show in a terminal of 80 columns, of records that are made up."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from sqla_tickets import TableStatus
from sqla_tickets.cli.audit import Anomaly, Report, not_read
from sqla_tickets.cli.doctor import Finding
from sqla_tickets.cli.output import FIRST_TO_GO, audit_view, findings_table, status_view
from sqla_tickets.connect.failures import IS_IT_RUNNING
from sqla_tickets.maintenance.status import State

SERVERS = [f"mysql://ticket{n}.example:3306/tickets (offset {n})" for n in (1, 2)]
NAMES = [f"albums_of_users_{n:02}" for n in range(30)]
GONE = f"{SERVERS[1]}: the connection, or the server, is gone ((2003, 'refused')): {IS_IT_RUNNING}"


def shown(view: RenderableType, columns: int = 80) -> str:
    console = Console(width=columns, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def record(sequence: str, offset: int, state: State = "up", **more: object) -> TableStatus:
    well = TableStatus(
        sequence=sequence,
        server=SERVERS[offset - 1],
        pool="default",
        stride=2,
        offset=offset,
        state=state,
        has_moved=state == "moved",
        up=True,
        last_ticket=1_204_567_890 + offset,
        high_water_mark=1_204_567_890,
        lead=17,
        layout="replace",
        rate=240.5,
    )
    return replace(well, **more)  # type: ignore[arg-type]  # by name


def pair(sequence: str, state: State = "up", error: str | None = None) -> list[TableStatus]:
    """A sequence that is well on the first server."""
    last = 7 if state in ("set back", "quarantined") else None if error else 9
    return [record(sequence, 1), record(sequence, 2, state, error=error, last_ticket=last)]


def of(sequences: Sequence[str], state: State, error: str) -> list[TableStatus]:
    return [s for name in sequences for s in pair(name, state, error.replace("NAME", name))]


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_no_name_and_no_number_is_cut_in_two(columns: int) -> None:
    text = shown(
        status_view([s for name in NAMES for s in pair(name)], [], 2, width=columns), columns
    )
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    for name in NAMES:
        (line,) = (line for line in lines if name in line)
        assert "ticket1.example:3306/tickets" in line or columns < 80
        assert " UP " in line
        assert "1,204,567,891" in line
    assert lines[0].rstrip() == "2 of 2 ticket servers are UP. Ids are issued."
    # neither blank lines nor findings; a server's name is in two lines where nothing else is left to go
    assert len(lines) == 1 + 3 + (2 if columns < 80 else 1) * 2 * len(NAMES) + 1


def test_a_terminal_of_80_columns_shows_fewer() -> None:
    statuses = pair("photos")
    heads = [
        shown(status_view(statuses, [], 2, width=width), width).splitlines()[2]
        for width in (60, 80, 100, 120, 200)
    ]
    counts = [sum(f" {name} " in f"{head} " for name in FIRST_TO_GO) for head in heads]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(FIRST_TO_GO))
    assert "peers know" in heads[2]
    assert "below" not in heads[2]


CASES: list[tuple[State, str, str]] = [
    ("down", GONE, "Start the server"),
    (
        "busy",
        f"the ticket table 'NAME' on {SERVERS[1]}: another session holds it: find it.",
        "Wait",
    ),
    (
        "no database",
        f"{SERVERS[1]}: it has no such database ((1049, 'x')): load it.",
        "create the users",
    ),
    (
        "no login",
        f"{SERVERS[1]}: the server refuses this user ((1045, 'x')): check the user.",
        "create the users",
    ),
    ("read-only", "", "restore --offset 2"),
    ("set back", "", "restore --offset 2"),
    ("quarantined", "", "pool.unquarantine('albums_of_users_"),
    ("no table", f"{SERVERS[1]} has no ticket table 'NAME': create it", "sqla-tickets create"),
    ("unfit", f"the ticket table 'NAME' on {SERVERS[1]} is empty", "Never edit the metadata"),
    (
        "moved",
        f"the ticket table 'NAME' on {SERVERS[1]} has moved: it is in media: so",
        "In each process that still draws",
    ),
    ("closed", f"the ticket table 'NAME' on {SERVERS[1]} is converted: run it", "migration again"),
    (
        "used up",
        f"the sequence 'NAME' on {SERVERS[1]} is at 9: its tickets would exceed 9. Widen it",
        "Begin another sequence.",
    ),
]


@pytest.mark.parametrize(("state", "error", "fix"), CASES)
def test_one_finding_for_a_server_and_a_reason(state: State, error: str, fix: str) -> None:
    """Whatever the number of sequences; each state has a next step of its own."""
    alone, many = (
        shown(status_view(of(names, state, error), [], 2), 200) for names in (NAMES[:1], NAMES)
    )
    verb = "has" if state.startswith("no ") else "is"
    verdict = f"1 of 2 ticket servers {verb} {state.upper()}. Ids are still issued."
    if state == "moved":
        verdict = "2 of 2 ticket servers are UP. Ids are issued."
    for text in (alone, many):
        assert text.splitlines()[0].rstrip() == verdict
        assert text.count("Do: ") == text.count(fix) == 1
        assert text.count(SERVERS[1]) == 1, "the message does not say again what stands above it"
        assert ".." not in text
        assert IS_IT_RUNNING not in text, "what to do is said once, below"
    assert ("and 24 more" in many) == (
        state not in ("down", "no database", "no login", "read-only")
    )
    assert "more" not in alone


@pytest.mark.parametrize(
    ("state", "error", "command"),
    [
        ("set back", "", "sqla-tickets restore --offset 2"),
        ("no table", f"{SERVERS[1]} has no ticket table 'photos': create it", "sqla-tickets create photos"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("pool", "option"), [("default", ""), ("my media", " --pool 'my media'")])
def test_a_command_that_is_advised_names_the_pool(
    state: State, error: str, command: str, pool: str, option: str
) -> None:
    """Without it, the command is about the default pool, whose server is well."""
    statuses = [replace(status, pool=pool) for status in pair("photos", state, error)]
    text = " ".join(shown(status_view(statuses, [], 2), 200).split())
    assert command + option in text
    assert ("--pool" in text) == bool(option)


NUMBERED = f"the ticket table 'photos' on {SERVERS[1]} is numbered differently. The table has 2"


@pytest.mark.parametrize(
    ("state", "error", "why", "fix"),
    [
        ("read-only", "", "It answers, but takes no writes.", "restore --offset 2"),
        ("growing", f"{NUMBERED}: That is expected while it grows", "The table has 2.", "If the pool grows, run sqla-tickets grow --finish"),
        ("no table", f"the ticket table 'photos' on {SERVERS[1]} was dropped by a migration, at 9: create it again", "at 9.", "create photos"),
        ("retired", f"the ticket table 'photos' on {SERVERS[1]} is retired, at 9: remove it", "It is retired, at 9.", "Remove that server from the configuration"),
        ("down", f"{SERVERS[1]}: is gone (certificate): its certificate is not for its host.", "its certificate is not for its host.", "Start the server"),
    ],
)  # fmt: skip
def test_the_next_step_fits_the_reason(state: State, error: str, why: str, fix: str) -> None:
    text = shown(status_view(pair("photos", state, error), [], 2), 200)
    assert f"{why}\n" in "\n".join(map(str.rstrip, text.splitlines()))
    assert fix in text
    assert "Never edit the metadata" not in text
    assert "That is expected while" not in text


def test_audit_shows_columns_without_anomalies_in_one_table() -> None:
    """The others come last, where a terminal shows them."""
    well = [Report(f"{name}.id", name, rows=10, largest=20) for name in NAMES]
    repeated = Anomaly(
        kind="duplicate", shards=["shard1"], count=1, ids=[4711], why="So.", fix="Do."
    )
    ill = Report("photos.id", "photos", rows=3, largest=4711, anomalies=[repeated])
    lines = shown(audit_view([ill, *well])).splitlines()
    assert any("issued at most" in line for line in lines), "marks cover what was not issued, too"
    assert sum("No duplicate id" in line for line in lines) == 1
    assert sum(name in line for name in NAMES for line in lines) == len(NAMES)
    assert max(n for n, line in enumerate(lines) if NAMES[-1] in line) < min(
        n for n, line in enumerate(lines) if "photos.id" in line
    )
    assert len(lines) < len(NAMES) + 20
    assert max(map(len, lines)) <= 80


def test_audit_says_once_what_is_wrong_with_a_server() -> None:
    """Whatever the number of columns; an advice may name the sequence."""
    names = [f"photos_{letter}" for letter in "abcdefghijklmnop"]
    reports = [Report(f"{name}.id", name, rows=10, largest=20) for name in names]
    for n, report in enumerate(reports):
        why = f"It was set back: it shows {n}, and its peers know that it issued 100."
        report.anomalies += [
            Anomaly(
                kind="set back",
                server=server,
                why=why,
                fix=f"Do restore. Call pool.unquarantine({report.sequence!r}).",
            )
            for server in SERVERS
        ]
    lines = shown(audit_view(reports)).splitlines()
    assert sum("Do restore." in line for line in lines) == len(SERVERS)
    assert len(lines) < len(names) + 30
    assert "No duplicate ids." in lines


def test_audit_groups_servers_findings_of_columns_with_anomalies() -> None:
    """Ids above a server that was set back are found in each of its columns."""
    foreign = Anomaly(kind="foreign", shards=["shard1"], count=1, ids=[4711], why="So.", fix="Do.")
    old = Anomaly(kind="set back", server=SERVERS[0], why="Old.", fix="Do restore.")
    reports = [Report(f"{name}.id", name, anomalies=[foreign, old]) for name in NAMES[:3]]
    text = shown(audit_view(reports))
    assert (text.count("FOREIGN"), text.count("SET BACK")) == (3, 1)
    said = " ".join(text.split())
    assert said.endswith(f"Do restore. The same for {NAMES[1]}.id, {NAMES[2]}.id.")


def test_names_in_advice_are_quoted_for_the_shell() -> None:
    """The advice about a name in quotes is still the same advice."""
    error = f"{SERVERS[1]} has no ticket table 'NAME': create it"
    text = shown(status_view(of(["my photos", "people"], "no table", error), [], 2), 200)
    assert "sqla-tickets create 'my photos'" in text
    assert "The same for people." in text


def test_audit_says_nothing_good_about_ids_that_were_not_read() -> None:
    read = Report("photos.id", "photos", rows=3, largest=5)
    for reports, good in (([read, not_read("people")], 1), ([not_read("people")], 0)):
        text = shown(audit_view(reports))
        assert text.count("No duplicate ids") == good
        assert text.count("people") == 3, "one anomaly: of what, why, and what to do"


def test_each_reason_has_its_finding() -> None:
    empty, other = (
        f"the ticket table 'NAME' on {SERVERS[1]} {why}" for why in ("is empty", "fits not")
    )
    text = shown(status_view([*of(["a", "b"], "unfit", empty), *of(["c"], "unfit", other)], [], 2))
    assert text.count("Do: ") == 2
    assert text.index("Do: ") < text.index("The same for b."), "the advice is for all of them"


def test_a_server_that_is_down_is_restored_apart_by_its_offset() -> None:
    """Without the offset, the command would raise the healthy servers."""
    lines = shown(status_view([record("", 2, "down", error=GONE)], [], 2)).splitlines()
    said = " ".join(" ".join(lines).split())
    assert "start it under an address that no client has; then run sqla-tickets restore" in said
    assert "--offset 2, with --server and --shard" in said
    assert max(map(len, lines)) <= 80


def test_an_old_number_is_said_with_what_is_known() -> None:
    """What a client has raised the fence to is above all that was issued."""
    issued = record("photos", 2, "set back", last_ticket=3_000, high_water_mark=3_412)
    fence = replace(issued, state="quarantined", high_water_mark=203_413)
    said = [" ".join(shown(status_view([s], [], 1)).split()) for s in (issued, fence)]
    assert "it shows 3,000, and its peers know that it issued 3,412." in said[0]
    assert "it shows 3,000. Processes refuse its tickets up to 203,413: the last known" in said[1]
    assert "a margin of 100,000 tickets (200,000 numbers)." in said[1]


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ([], "2 of 2 ticket servers are UP. There are no sequences: create one, or name a foreign table."),
        (of(["a"], "moved", "so")[1:], "2 of 2 ticket servers are UP. Every sequence has MOVED."),
        ([record("", 2, "down")], "1 of 2 ticket servers is DOWN. No ids are issued."),
        ([*pair("a"), record("b", 2, "down", error=GONE)], "1 of 2 ticket servers is DOWN. No ids are issued for b."),
        ([record("a", 1, "unfit"), record("a", 2, "down")], "1 of 2 ticket servers is UNFIT, 1 is DOWN. This configuration gets no ids."),
        ([record("a", 1, "busy"), record("a", 2, "down")], "1 of 2 ticket servers is BUSY, 1 is DOWN. Draws of a wait for a server that is BUSY."),
        ([record("a", 1), record("a", 2, "set back"), record("b", 1), record("b", 2, "quarantined")], "1 of 2 ticket servers is SET BACK and is QUARANTINED. Ids are still issued."),
        ([record("a", 1, "used up"), record("a", 2)], "1 of 2 ticket servers is USED UP. Ids are still issued."),
        ([record("a", 1, "used up")], "1 of 2 ticket servers is USED UP. No ids are issued."),
        ([record("a", 1, "used up", ends_at=9)], "1 of 2 ticket servers is USED UP. This configuration gets no ids."),
    ],
)  # fmt: skip
def test_the_first_line_is_a_verdict(statuses: list[TableStatus], verdict: str) -> None:
    assert shown(status_view(statuses, [], 2), 200).splitlines()[0].rstrip() == verdict


def test_what_is_redrawn_begins_with_the_findings() -> None:
    text = shown(status_view(of(NAMES, "down", GONE), [], 2, is_live=True), 200)
    assert text.index("ticket servers is") < text.index("Do: ") < text.index(" sequence ")


def test_doctor_says_once_what_is_wrong_with_many_tables() -> None:
    found = [
        Finding(
            server=SERVERS[0],
            code="table-missing",
            severity="stops",
            sequence=name,
            variable=f"table {name}",
            value="missing",
            why="Draws of it need the other servers.",
            fix=f"sqla-tickets create {name}",
        )
        for name in NAMES
    ]
    text = shown(findings_table([*found, replace(found[0], server=SERVERS[1])]))
    assert text.count("Do: ") == 2
    assert "and 24 more" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_doctor_gives_the_same_advice_about_servers_once() -> None:
    shared = Finding(
        server=SERVERS[0],
        code="grants-dangerous",
        severity="advice",
        variable="grants on `tickets`.*",
        value="ALTER, CREATE, DROP",
        why="Only migrations need that.",
        fix="Nothing, if only migrations use 'tickets'@'%'.",
    )
    other = replace(shared, value="DROP")
    found = [shared, other, *(replace(shared, server=each) for each in SERVERS[1:])]
    text = shown(findings_table(found), 200)
    assert text.count("ALTER, CREATE, DROP") == 1
    assert ", ".join(SERVERS) in text
    assert text.count("Do: ") == 2


def test_ids_of_thirteen_digits_are_whole_numbers() -> None:
    last = 10**12 + 1
    statuses = [record("photos", 1, last_ticket=last, lead=last - 3), record("photos", 2)]
    report = Report("photos.id", "photos", rows=3, largest=last, high_waters={1: last})
    for text in (shown(status_view(statuses, [], 2, width=200), 200), shown(audit_view([report]))):
        assert f"{last:,}" in text
        assert "e+12" not in text


def test_unfit_configuration_does_not_say_that_no_ids_are_issued() -> None:
    """Clients with another configuration may draw."""
    statuses = [record(name, n, "unfit") for name in ("a", "b") for n in (1, 2)]
    for found, verdict in (
        (statuses, "2 of 2 ticket servers are UNFIT. This configuration gets no ids."),
        ([*statuses[:2], record("b", 1)], "2 of 2 ticket servers are UNFIT. This configuration gets no ids for a."),
    ):  # fmt: skip
        assert shown(status_view(found, [], 2), 200).splitlines()[0].rstrip() == verdict
