CREATE DATABASE site;
CREATE USER 'site'@'%' IDENTIFIED BY 'site-secret';
GRANT SELECT, INSERT, UPDATE, DELETE ON `site`.* TO 'site'@'%';
CREATE USER 'migrations'@'%' IDENTIFIED BY 'migrations-secret';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES ON `site`.* TO 'migrations'@'%';
