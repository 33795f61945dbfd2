"""Ticket servers under attack: the chaos suite, in the shape of Jepsen's unique-ids workload.

Processes draw tickets through the public API and write down what they asked for and what they got;
meanwhile a nemesis kills, freezes, cuts off, misconfigures and restores the servers, and kills and
forks the processes. Afterwards every journal is read and the tickets are counted::

    make chaos SECONDS=600
    python -m tests.chaos --seconds 600 --servers mariadb,mysql --layouts replace,counter
    python -m tests.chaos --seconds 30 --servers mariadb --only frozen --seed 7

There are two acts. *Outages* are what the design promises to hide: no duplicate, and no failed draw
while one server serves. *Mistakes* are made by a person (a table lowered, an old backup restored): no
ticket comes twice, as the other server knows better, save after the one that takes back only what was
issued a moment ago, which the report counts, and no client can promise. ``--seed`` repeats a schedule.

The way through: `run` (the acts) starts `workers` (processes) that run `workloads`, which draw and
write a `journal`; `nemesis` has what is done to a `cluster` (two servers, each behind a `proxy`);
`checker` reads the journals. All of it on loopback, and every process ends by itself.
"""
