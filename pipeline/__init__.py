"""The data pipeline on Spark: archive, restore, rebuild, audit and report, all from the request log.

    session.py   makes the Spark session: one place that knows jars, time zone and Python
    sources/     the request log as a DataFrame: Spark's own connector, and one over any log
    judging/     the notary's judgement in parallel: pure functions over columns
    jobs/        what runs on Spark: judge the log, rebuild the index, list the verdicts
    archive/     the log as Parquet files with a signed manifest: write, verify, restore, copy
    audit/       everything held against the log: signatures, database, answers; trace and index diff
    reports/     tables for machines, one page for people

Nothing that serves requests imports this package.
"""
