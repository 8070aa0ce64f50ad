-- Rights on Oracle. A participant is one user: it owns the tables, its replicas log in as it, and the lock's id is made
-- of its name. Run this as an administrator (SYS grants on V$ views and DBMS_LOCK), with NOTARY as that user's name.
-- It may be run any number of times. runbooks/oracle.md says what each right is for, and how people and front ends
-- (database.reader_user) are given the right to read, and no more.

GRANT CREATE SESSION, CREATE TABLE, CREATE VIEW TO notary;
GRANT EXECUTE ON sys.dbms_lock TO notary;
GRANT SELECT ON sys.v_$database TO notary;
GRANT SELECT ON sys.gv_$lock TO notary;
GRANT SELECT ON sys.gv_$session TO notary;
GRANT SELECT ON sys.v_$parameter TO notary;
