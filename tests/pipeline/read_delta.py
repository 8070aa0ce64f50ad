"""What Spark reads of the tables, as JSON: `python -m tests.pipeline.read_delta TABLES OUT [METASTORE]`.

TABLES is their folder; or with a metastore, `thrift://HOST:PORT`, the schema in which Spark finds them by name.

A process of its own: Delta's extension counts only in the first session of a JVM, and a session with other jars that is
there already is handed out instead. The jars are those of scripts/jars/delta; nothing is fetched at run time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline.session import spark_session

JARS = Path(__file__).parents[2] / ".tools" / "delta" / "libs"

if __name__ == "__main__":
    tables, out, *metastore = sys.argv[1:]
    of_hive = {"spark.sql.catalogImplementation": "hive"}
    further = of_hive | {"spark.hadoop.hive.metastore.uris": metastore[0]} if metastore else {}
    session = spark_session("read-delta", "local[1]", shuffle_partitions=1, delta=True, further=further)

    def table(name: str) -> str:
        return f"{tables}.{name}" if metastore else f"delta.`{tables}/{name}`"

    decided = session.sql(
        f"SELECT log_offset, outcome, notarised_offset, unix_micros(stamp_at) AS stamp_us, size(inputs) AS inputs"
        f" FROM {table('verdicts')} JOIN {table('requests')} USING (log_offset) ORDER BY log_offset"
    )
    found = {
        "decided": [row.asDict() for row in decided.collect()],
        "conflicts": [
            row[0] for row in session.sql(f"SELECT log_offset FROM {table('conflicts')} ORDER BY 1").collect()
        ],
        "days": session.sql(f"SELECT COUNT(DISTINCT day) FROM {table('completions')}").first()[0],
        "versions": session.sql(f"DESCRIBE HISTORY {table('requests')}").count(),
        "earlier": session.sql(f"SELECT COUNT(*) FROM {table('requests')} VERSION AS OF 1").first()[0],
    }
    Path(out).write_text(json.dumps(found))
    session.stop()
