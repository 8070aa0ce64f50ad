"""A double of python-oracledb and of an Oracle database behind it, with answers and error codes from Oracle's manuals.

`server` keeps sessions, user locks and what the V$ views say; `driver` is what `oracledb.connect_async` gives, and its
errors are classified by the real driver's own code; `tables` parses the store's SQL in Oracle's dialect and runs it on
SQLite. It shows that our code asks and understands as intended. That Oracle answers so, only a real server can show.
"""
