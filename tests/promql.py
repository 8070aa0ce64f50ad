"""A small evaluator of PromQL for recorded series: as much of the language as our alerts use, by Prometheus' rules."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import promql_parser

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Series = Mapping[tuple[str, Labels], Sequence[tuple[float, float]]]
"""Name and labels of each series, and its samples: seconds and value, ascending."""

LOOKBACK_S = 300.0
_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan,
}
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min}


def labels(**pairs: str) -> Labels:
    """The labels of a series."""
    return frozenset(pairs.items())


def fires(rule: Mapping[str, Any], series: Series, now_s: float, step_s: float = 5.0) -> list[dict[str, str]]:
    """The labels for which an alert fires at a moment: its condition held all through its `for`."""
    expression = promql_parser.parse(rule["expr"])
    held_s = _seconds(rule.get("for", "0s"))
    held: set[Labels] | None = None
    at_s = now_s - held_s
    while at_s <= now_s:
        value = evaluate(expression, series, at_s)
        assert isinstance(value, dict), "an alert's expression is a vector"
        held = set(value) if held is None else held & set(value)
        at_s += step_s
    return sorted((dict(one) for one in held or ()), key=str)


def evaluate(node: Any, series: Series, at_s: float) -> Vector | float:
    """The value of an expression at a moment."""
    match type(node).__name__:
        case "NumberLiteral":
            return float(node.val)
        case "ParenExpr":
            return evaluate(node.expr, series, at_s)
        case "VectorSelector":
            return _instant(node, series, at_s)
        case "AggregateExpr":
            return _aggregated(node, series, at_s)
        case "BinaryExpr":
            return _binary(node, evaluate(node.lhs, series, at_s), evaluate(node.rhs, series, at_s))
        case "Call":
            return _called(node, series, at_s)
    raise NotImplementedError(type(node).__name__)


def _chosen(node: Any, series: Series) -> dict[Labels, Sequence[tuple[float, float]]]:
    return {
        found: samples
        for (name, found), samples in series.items()
        if name == node.name and all(_matches(matcher, dict(found)) for matcher in node.matchers.matchers)
    }


def _matches(matcher: Any, found: Mapping[str, str]) -> bool:
    value = found.get(matcher.name, "")
    match str(matcher.op).split(".")[-1]:
        case "Equal":
            return bool(value == matcher.value)
        case "Re":
            return re.fullmatch(matcher.value, value) is not None
    raise NotImplementedError(str(matcher.op))


def _instant(node: Any, series: Series, at_s: float) -> Vector:
    at_s -= node.offset.total_seconds() if node.offset is not None else 0.0
    result: Vector = {}
    for found, samples in _chosen(node, series).items():
        recent = [value for sampled_s, value in samples if at_s - LOOKBACK_S < sampled_s <= at_s]
        if recent and not math.isnan(recent[-1]):
            result[found] = recent[-1]
    return result


def _called(node: Any, series: Series, at_s: float) -> Vector:
    name = node.func.name
    if name == "abs":
        inner = evaluate(node.args[0], series, at_s)
        assert isinstance(inner, dict)
        return {found: abs(value) for found, value in inner.items()}
    if name == "delta":
        return _deltas(node.args[0], series, at_s)
    if name in ("increase", "rate"):
        window = node.args[0]
        range_s = window.range.total_seconds()
        result: Vector = {}
        for found, samples in _chosen(window.vector_selector, series).items():
            inside = [(sampled_s, value) for sampled_s, value in samples if at_s - range_s <= sampled_s <= at_s]
            if len(inside) >= 2:
                grown = sum(max(later - sooner, 0.0) for (_, sooner), (_, later) in pairwise(inside))
                covered_s = inside[-1][0] - inside[0][0]
                result[found] = grown * range_s / covered_s if name == "increase" else grown / covered_s
        return result
    if name == "histogram_quantile":
        wanted, buckets = (evaluate(argument, series, at_s) for argument in node.args)
        assert isinstance(wanted, float) and isinstance(buckets, dict)
        return _quantiles(wanted, buckets)
    raise NotImplementedError(name)


def _deltas(window: Any, series: Series, at_s: float) -> Vector:
    """How much a gauge has changed in a window, as if the window were covered to its ends."""
    range_s = window.range.total_seconds()
    result: Vector = {}
    for found, samples in _chosen(window.vector_selector, series).items():
        inside = [(sampled_s, value) for sampled_s, value in samples if at_s - range_s <= sampled_s <= at_s]
        if len(inside) >= 2:
            (first_s, first), (last_s, last) = inside[0], inside[-1]
            result[found] = (last - first) * range_s / (last_s - first_s)
    return result


def _quantiles(wanted: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for found, count in buckets.items():
        rest = frozenset(pair for pair in found if pair[0] != "le")
        groups.setdefault(rest, []).append((float(dict(found)["le"]), count))
    result: Vector = {}
    for rest, bounds in groups.items():
        ordered = sorted(bounds)
        target = wanted * ordered[-1][1]
        if ordered[-1][1] > 0:
            result[rest] = _interpolated(ordered, target)
    return result


def _interpolated(ordered: list[tuple[float, float]], target: float) -> float:
    """Where in its bucket the quantile is; in the last one, which has no end, its beginning."""
    before, below = 0.0, 0.0
    for bound, count in ordered:
        if count >= target:
            return before if math.isinf(bound) else before + (bound - before) * (target - below) / (count - below)
        before, below = bound, count
    raise AssertionError("the last bucket has all")


def _aggregated(node: Any, series: Series, at_s: float) -> Vector:
    inner = evaluate(node.expr, series, at_s)
    assert isinstance(inner, dict)
    by = set(node.modifier.labels) if node.modifier is not None else set()
    groups: dict[Labels, list[float]] = {}
    for found, value in inner.items():
        groups.setdefault(frozenset(pair for pair in found if pair[0] in by), []).append(value)
    combine = _AGGREGATES[str(node.op)]
    return {group: combine(values) for group, values in groups.items()}


def _binary(node: Any, left: Vector | float, right: Vector | float) -> Vector | float:
    name = str(node.op)
    if isinstance(left, float) and isinstance(right, float):
        return _ARITHMETIC[name](left, right)
    if isinstance(right, float):
        return _with_scalar(name, left, lambda value: (value, right))
    if isinstance(left, float):
        return _with_scalar(name, right, lambda value: (left, value))
    matching = node.modifier.matching if node.modifier is not None else None
    by = None if matching is None else set(matching.labels)

    def key(found: Labels) -> Labels:
        return found if by is None else frozenset(pair for pair in found if pair[0] in by)

    others = {key(found): value for found, value in right.items()}
    match name:
        case "and":
            return {found: value for found, value in left.items() if key(found) in others}
        case "unless":
            return {found: value for found, value in left.items() if key(found) not in others}
        case "or":
            mine = {key(found) for found in left}
            return left | {found: value for found, value in right.items() if key(found) not in mine}
    result: Vector = {}
    for found, value in left.items():
        if (other := others.get(key(found))) is None:
            continue
        if name in _COMPARE:
            if _COMPARE[name](value, other):
                result[found] = value
        else:
            result[key(found)] = _ARITHMETIC[name](value, other)
    return result


def _with_scalar(name: str, vector: Vector, pair: Callable[[float], tuple[float, float]]) -> Vector:
    if name in _COMPARE:
        return {found: value for found, value in vector.items() if _COMPARE[name](*pair(value))}
    return {found: _ARITHMETIC[name](*pair(value)) for found, value in vector.items()}


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3_600}[text[-1]]
