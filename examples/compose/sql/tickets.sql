-- The grants are those that `sqla-tickets grants draw` and `sqla-tickets grants migrate` print.
CREATE DATABASE tickets;
CREATE USER 'tickets'@'%' IDENTIFIED BY 'tickets-secret';
GRANT SELECT, INSERT, UPDATE, DELETE, LOCK TABLES ON `tickets`.* TO 'tickets'@'%';
CREATE USER 'migrations'@'%' IDENTIFIED BY 'migrations-secret';
GRANT SELECT, INSERT, UPDATE, DELETE, LOCK TABLES, CREATE, ALTER, DROP ON `tickets`.* TO 'migrations'@'%';
