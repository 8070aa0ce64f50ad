"""The jobs on a log in files as an operator would run them: rebuild, audit, trace, report, and the tables where the
driver is here.

`python -m tests.pipeline.on_cluster MASTER FOLDER DATABASE [PYTHON]`, where DATABASE is empty or is held against the
log, and PYTHON is a packed environment for the workers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from threading import Event

from pipeline import session as sessions
from pipeline.audit.audit import Scope, audit_log
from pipeline.audit.trace import trace
from pipeline.jobs.rebuild import rebuild_index
from pipeline.jobs.slices import parquet_log
from pipeline.judging.subjects import of_party
from pipeline.reports.report import write_report
from pipeline.tables.query import SparkWriter, run_query
from pipeline.tables.write import open_judge
from tests.pipeline.judged import TOPIC
from tests.pipeline.signed_log import PARTY

START_MAX_S = 400.0  # a busy machine starts JVMs slowly; what the product promises is tested elsewhere

if __name__ == "__main__":
    master, folder, database, *packed = sys.argv[1], Path(sys.argv[2]), sys.argv[3], *map(Path, sys.argv[4:])
    log = parquet_log(TOPIC, sorted((folder / "log").glob("*.parquet")))
    (folder / "events").mkdir()
    further = {
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # begin with both workers, not with the quicker one
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }
    python_archive = packed[0] if packed else None
    sessions.START_MAX_S = sessions.EXECUTOR_MAX_S = START_MAX_S
    session = sessions.spark_session(
        "cluster-test", master, python_archive=python_archive, shuffle_partitions=4, delta=True, further=further
    )
    rebuild_index(session, log, folder / "index", folder / "work", ranges=4)
    scope = Scope({"the database": database} if database else {})
    report = audit_log(session, log, folder / "work-audit", scope, now_us=1)
    print(*[part for finding in report.findings for part in (finding.code.value, finding.offset)])
    traced = trace(session, log, folder / "work-trace", of_party(PARTY), 3)
    (folder / "traced.json").write_text(json.dumps([one["offset"] for one in traced.entries]))
    write_report(session, log, folder / "work-report", folder / "report", [], made_us=1)
    if not master.startswith("sc://"):  # the judge of the tables is beside Spark's driver
        stream = session.readStream.schema("offset bigint, value binary").parquet((folder / "log").as_uri())
        with open_judge(folder / "tables", folder / "tables-index", TOPIC) as (tables, judge):
            writer = SparkWriter(tables, judge, lambda name: None, lambda batch: None)
            run_query(stream, writer, interval_s=None, stopping=Event())
    session.stop()
