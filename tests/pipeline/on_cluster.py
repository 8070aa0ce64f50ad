"""A rebuild and an audit as an operator would run them: `python -m tests.pipeline.on_cluster MASTER FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.audit.audit import Scope, audit_log
from pipeline.jobs.rebuild import rebuild_index
from pipeline.jobs.slices import parquet_log
from pipeline.session import spark_session
from tests.pipeline.judged import TOPIC

if __name__ == "__main__":
    master, folder = sys.argv[1], Path(sys.argv[2])
    log = parquet_log(TOPIC, sorted((folder / "log").glob("*.parquet")))
    (folder / "events").mkdir()
    further = {
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # begin with both workers, not with the quicker one
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }
    session = spark_session("cluster-test", master, shuffle_partitions=4, further=further)
    rebuild_index(session, log, folder / "index", folder / "work", ranges=4)
    report = audit_log(session, log, folder / "work-audit", Scope(), now_us=1)
    print(*[part for finding in report.findings for part in (finding.code.value, finding.offset)])
    session.stop()
