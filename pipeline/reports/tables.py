"""The tables of a report on Spark. Each is small: at most 500 intervals, at most 50 parties and states."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.reports.intervals import HOT_REFUSED_MIN, TOP
from replica.notary.codes import Code
from replica.notary.outcomes import NOTARISED


def throughput(decided: DataFrame, seconds: int) -> DataFrame:
    """In: verdicts (`pipeline.jobs.verdicts`). Out: `at_us` (an interval's start), `outcome`, `requests`, `states`."""
    start = F.floor(F.col("stamp_us") / (seconds * 1_000_000)) * (seconds * 1_000_000)
    return (
        decided.groupBy(start.cast("bigint").alias("at_us"), "outcome")
        .agg(F.count("*").alias("requests"), F.sum(F.col("inputs_n") + F.col("references_n")).alias("states"))
        .orderBy("at_us", "outcome")
    )


def outcomes(decided: DataFrame) -> DataFrame:
    """In: verdicts. Out: `outcome`, `requests`, `share` of all requests; `repeated` of the successes: no new entry."""
    again = F.col("notarised_offset") != F.col("offset")
    counts = decided.groupBy("outcome").agg(F.count("*").alias("requests"), F.count_if(again).alias("repeated"))
    total = counts.agg(F.sum("requests").alias("total"))
    return counts.crossJoin(total).select(
        "outcome", "requests", "repeated", (F.col("requests") / F.col("total")).alias("share")
    ).orderBy(F.desc("requests"), "outcome")  # fmt: skip


def parties(decided: DataFrame) -> DataFrame:
    """In: verdicts. Out: the parties with most requests: `party`, `requests`, `notarised`, `conflicts`, `states`,
    `keys` (different public keys), `first_us`, `last_us`.
    """
    outcome = F.col("outcome")
    return (
        decided.groupBy("party")
        .agg(
            F.count("*").alias("requests"),
            F.count_if(outcome == NOTARISED).alias("notarised"),
            F.count_if(outcome == Code.STATE_CONFLICT.name).alias("conflicts"),
            F.sum(F.col("inputs_n") + F.col("references_n")).alias("states"),
            F.countDistinct("public_key").alias("keys"),
            F.min("stamp_us").alias("first_us"),
            F.max("stamp_us").alias("last_us"),
        )
        .orderBy(F.desc("requests"), "party")
        .limit(TOP)
    )


def hot_states(conflicts: DataFrame, decided: DataFrame) -> DataFrame:
    """In: conflicting states and verdicts. Out: the states that most requests were refused for, several at least:
    `state` (text form), `refused`, `as_reference`, `parties`, `consumed_at` (log offset).
    """
    refused = decided.where(F.col("outcome") == Code.STATE_CONFLICT.name).select("offset", "party")
    index = F.conv(F.hex(F.substring("state", 33, 4)), 16, 10)
    text = F.concat(F.lower(F.hex(F.substring("state", 1, 32))), F.lit(":"), index)
    return (
        conflicts.join(refused, "offset", "inner")
        .groupBy(text.alias("state"))
        .agg(
            F.count("*").alias("refused"),
            F.sum("referred").alias("as_reference"),
            F.countDistinct("party").alias("parties"),
            F.min("consumed_at").alias("consumed_at"),
        )
        .where(F.col("refused") >= HOT_REFUSED_MIN)
        .orderBy(F.desc("refused"), "state")
        .limit(TOP)
    )


def fail_overs(decided: DataFrame, epochs: DataFrame) -> DataFrame:
    """In: verdicts, and `from_offset`, `until_offset`, `epoch`, `replica` of each activation.
    Out: the same with `requests`, `first_us`, `last_us`, and `pause_us` since the last request of the one before.
    """
    inside = (F.col("offset") > F.col("from_offset")) & (F.col("offset") < F.col("until_offset"))
    led = epochs.join(decided.select("offset", "stamp_us"), inside, "left").groupBy(*epochs.columns)
    activations = led.agg(
        F.count("offset").alias("requests"),
        F.min("stamp_us").alias("first_us"),
        F.max("stamp_us").alias("last_us"),
    )
    before = activations.where("requests > 0").select(
        F.col("until_offset").alias("before_until"), F.col("last_us").alias("before_last_us")
    )
    latest_before = (
        activations.join(before, F.col("before_until") <= F.col("from_offset"), "left")
        .groupBy(*activations.columns)
        .agg(F.max("before_last_us").alias("before_last_us"))
    )
    pause = F.col("first_us") - F.col("before_last_us")
    return latest_before.withColumn("pause_us", pause).drop("before_last_us").orderBy("epoch")
