"""Models of the servers that issue tickets, held against the real ones by ``tests/simulation/test_models_on_servers.py``.

`mysql.MySQLServer` is MySQL or MariaDB, by its version, `postgresql.PostgreSQLServer` PostgreSQL. `drivers.model_engine`
makes an engine that reaches one through DBAPI modules of its own. A model knows the statements that the package sends, and those of operators and foreign clients in the
tests; another one raises `SyntaxNotModelled` with its text.

What is modelled of MySQL and MariaDB:

* AUTO_INCREMENT: the number is taken before the row's lock is waited for; stride and offset of the session, of a hint and
  of SET STATEMENT; the counter after ids that are named, after UPDATE, ALTER, TRUNCATE, at its end, and after a restart
  by version (kept, or forgotten and computed from the rows).
* REPLACE, INSERT, ON DUPLICATE KEY UPDATE, UPDATE, DELETE, SELECT, FOR UPDATE; LAST_INSERT_ID and the number in the OK
  packet; the four isolation levels; CHECKs, ranges of types, unique keys.
* The deadlock of REPLACEs: one that has taken its number earlier writes it later, below the row's. Its entry goes into
  the gap that all those have asked for who wait to replace the row, and each of them gets 1213 (measured on 10.11, 9.7).
* Metadata locks with the server's two matrices: LOCK TABLES goes before later readers and writers; time-outs; row locks,
  their queues and time-outs; deadlocks among rows and among tables, not across both.
* Several statements in one packet; KILL and KILL QUERY; read_only and super_read_only; max_connections.
* Definitions: CREATE TABLE with a row, ALTER to a tombstone and back, RENAME, DROP, TRUNCATE, comments, SHOW CREATE TABLE,
  and the questions to information_schema that the package asks.
* Durability: ``innodb_flush_log_at_trx_commit`` 1, or else a crash loses commits of the last second, the latest first.
  A step of the counter whose statement was not acknowledged may be lost in any case. Images and restores.
* Identity and uptime, which differ for each start, and for a copy only as they do on a real server.

What is modelled of PostgreSQL:

* Transactions with definitions in them (CREATE, DROP, COMMENT, RENAME), which others see from the commit on; a failed
  transaction; names that two sessions create at once.
* READ COMMITTED: an UPDATE that has waited looks at the row again. ON CONFLICT, RETURNING, FOR UPDATE, CHECKs, unique keys.
* Locks of tables, fair; lock_timeout; a deadlock ends the one that finds it after deadlock_timeout.
* synchronous_commit, default_transaction_read_only, a standby, max_connections, pg_terminate_backend, pg_cancel_backend.

What playing the same scripts on the servers has shown (MariaDB 10.11.19, MySQL 9.7.4, PostgreSQL 15.18):

* ``CREATE TABLE ... SELECT``: the selected columns come last, in the order of the SELECT. Its OK packet has the number.
* An id that is named, and an UPDATE, move the counter by the stride of the table's latest generated number, not by their own.
* MySQL 9.7 does not step its counter back when a smaller stride follows a larger one, as 8.0's source has it.
* MariaDB writes the number of an inserted row to the disk, and the number after that of a replaced one; a restart goes on
  one above. So it leaves numbers out.
* ALTER TABLE says what is wrong with its columns, then with its keys, before it waits for anybody.
* CREATE TABLE of a table that is there: MariaDB waits for LOCK TABLES before it refuses, if it has a SELECT.
* Under LOCK TABLES, SHOW CREATE TABLE, CREATE and DROP of another table are refused, too (1100).
* In a deadlock of tables the one that reads or writes is ended, not the one that locks.
* On PostgreSQL a transaction that has failed gives its locks up at once, and not with its ROLLBACK.

What is not:

* Gap locks, but for one case: an UPDATE or a DELETE that finds no row locks nothing.
* Privileges, users' passwords, TLS, character sets and collations (texts are compared exactly), storage engines but InnoDB,
  the binary log, replication, clusters, events, triggers, views.
* REPEATABLE READ and SERIALIZABLE of PostgreSQL, prepared statements ("cached plan must not change result type").
* Several strides for one table at once: InnoDB remembers one in each of its handlers, which clients share by chance. An
  offset above the stride.
* The order in which MySQL serves those who wait for a row ("contention-aware transaction scheduling"): here, in turn.
* Locks of a row by a key that a transaction has changed and not committed yet.
"""
