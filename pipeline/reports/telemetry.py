"""What clients measured: histories (docs/formats.md) as telemetry of outcomes. The log knows nothing of latency.

A line that ends an operation may also have `estimate_s`, the notary's upper estimate of the time; further fields of
other lines are ignored. Telemetry is evidence of speed and of nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.session import on_this_machine

QUANTILES = (0.5, 0.9, 0.99, 0.999)
_LINE = "type string, process string, op bigint, at_ns bigint, code string, estimate_s double, replica string"


def operations(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Operations that ended: `answer` (ok, or the code), `took_s`, `estimate_s` (null if none was sent), `replica`."""
    lines = spark.read.schema(_LINE).json([on_this_machine(file) for file in files])
    sent = lines.where("type = 'invoke'").select("process", "op", F.col("at_ns").alias("sent_ns"))
    ended = lines.where("type <> 'invoke'")
    return ended.join(sent, ["process", "op"], "inner").select(
        F.coalesce("code", "type").alias("answer"),
        ((F.col("at_ns") - F.col("sent_ns")) / 1e9).alias("took_s"),
        "estimate_s",
        "replica",
    )


def latency(of_operations: DataFrame) -> DataFrame:
    """Out: `answer`, `operations`, `p50_s`, `p90_s`, `p99_s`, `p99_9_s`, `max_s`."""
    quantiles = F.percentile("took_s", F.array(*[F.lit(quantile) for quantile in QUANTILES]))
    names = [f"p{quantile * 100:g}_s".replace(".", "_") for quantile in QUANTILES]
    return (
        of_operations.groupBy("answer")
        .agg(F.count("*").alias("operations"), quantiles.alias("quantiles"), F.max("took_s").alias("max_s"))
        .select("answer", "operations", *[F.col("quantiles")[at].alias(name) for at, name in enumerate(names)], "max_s")
        .orderBy(F.desc("operations"))
    )


def latency_histogram(of_operations: DataFrame) -> DataFrame:
    """Out: `up_to_s` (bounds that grow by a fifth of a decade), `operations`: at most some 60 rows."""
    step = F.ceil(F.log10(F.greatest("took_s", F.lit(1e-6))) * 5)
    return (
        of_operations.groupBy(F.pow(F.lit(10.0), step / 5).alias("up_to_s"))
        .agg(F.count("*").alias("operations"))
        .orderBy("up_to_s")
    )


def estimates(of_operations: DataFrame) -> DataFrame:
    """Out, of operations that got an estimate: `operations`, `kept` (it took no longer), `p50_ratio` and
    `p90_ratio` of time taken to estimate. One row; no operation is null ratios.
    """
    estimated = of_operations.where("estimate_s > 0")
    ratio = F.percentile(F.col("took_s") / F.col("estimate_s"), F.array(F.lit(0.5), F.lit(0.9)))
    return estimated.agg(
        F.count("*").alias("operations"),
        F.count_if(F.col("took_s") <= F.col("estimate_s")).alias("kept"),
        ratio.alias("ratio"),
    ).select("operations", "kept", F.col("ratio")[0].alias("p50_ratio"), F.col("ratio")[1].alias("p90_ratio"))
