#!/usr/bin/env bash
# test.sh [--all | --rest] [PHASE...]: runs the tests phase by phase, each with a time budget, and ends with a table and
# one line. Without an option the quick ones: those without the marks `thorough` and `slow`. --rest: the `thorough` ones;
# --all: both. All phases run even if one fails; the exit code is 1 if any did. A phase without test files is left out.
#
# Real servers on a machine that others use too are late now and then: where a phase has them, up to REPEAT_MAX failed
# tests run once more, and the last line names them. What is deterministic is never repeated, nor is a phase in which a
# test saw a promise broken (tests/promises.py): a finding, a lost answer, a double spend, a process that ended by itself.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

REPEAT_MAX=3
NEVER_REPEATED=build/never-repeated # tests/conftest.py writes it: one node id a line
PURE=" core simulation "           # the phases of deterministic tests
PARALLEL="-n 2 --dist worksteal"   # for those
BY_MODULE="-n 2 --dist loadfile"   # real servers and whole clusters, of each process its own
#            phase         quick_s rest_s  options and folders; `cluster`, `no-cluster`: tests with that mark, without it
PHASES=( #              (both on two quiet cores; a phase may take BUDGET_FACTOR times that)
    "core          190 120 $PARALLEL tests/unit tests/model tests/golden tests/raft"
    "simulation    100 180 $PARALLEL tests/simulation"
    "integration   260 240 $BY_MODULE no-cluster tests/integration tests/lognode"
    "clusters      200 380 $BY_MODULE cluster tests/integration"
    "clients       150 110 tests/clients"
    "pipeline      340 520 $BY_MODULE --no-loadscope-reorder tests/pipeline"
    "faults-quick  90  270 tests/faults"
    "runbooks      80  230 tests/runbooks"
)
BUDGET_FACTOR=4

has_tests() { [[ -n $(find "$1" -name 'test_*.py' -print -quit 2>/dev/null) ]]; }

# seconds_of QUICK_S REST_S: what a phase takes, of the part that was asked for.
seconds_of() {
    case $part in
    quick) echo "$1" ;;
    rest) echo "$2" ;;
    all) echo $(($1 + $2)) ;;
    esac
}

# run_phase NAME QUICK_S REST_S WORD...: words that begin with tests/ are folders; see PHASES for the others.
run_phase() {
    local name=$1 usual_s budget_s word started code repeated=0 words=() found= marks=$PART_MARKS
    usual_s=$(seconds_of "$2" "$3") budget_s=$((usual_s * BUDGET_FACTOR))
    shift 3
    for word in "$@"; do
        if [[ $word == cluster ]]; then
            marks+=" and cluster"
        elif [[ $word == no-cluster ]]; then
            marks+=" and not cluster"
        elif [[ $word != tests/* ]]; then
            words+=("$word")
        elif has_tests "$word"; then
            words+=("$word")
            found=yes
        fi
    done
    [[ -n $found ]] || return 0
    printf '\n=== %s: usually %s s, at most %s s; all from here: about %s min\n' "$name" "$usual_s" "$budget_s" $(((to_go_s + 59) / 60))
    to_go_s=$((to_go_s - usual_s))
    words=(-m "$marks" "${words[@]}")
    started=$EPOCHREALTIME
    rm -f "$NEVER_REPEATED"
    run_pytest "$budget_s" "${words[@]}"
    code=$?
    if [[ $code -eq 1 && $PURE != *" $name "* ]]; then
        repeat "$budget_s" "${words[@]}"
        code=$?
    fi
    report "$name" "$code" "$(awk "BEGIN {print $EPOCHREALTIME - $started}")" "$repeated"
}

run_pytest() {
    local budget_s=$1
    shift
    timeout --foreground --signal=INT --kill-after=30 "$budget_s" .venv/bin/pytest -q --durations 12 --durations-min 5 "$@"
}

# repeat BUDGET_S WORD...: the failed tests of the last run once more, unless there are too many for bad luck, or one of
# them is not to be forgiven.
repeat() {
    local names
    if [[ -s $NEVER_REPEATED ]]; then
        printf '\n=== a promise was broken, which no second try mends:\n'
        sort -u "$NEVER_REPEATED"
        return 1
    fi
    mapfile -t names < <(.venv/bin/python -c 'import json; print(*json.load(open(".pytest_cache/v/cache/lastfailed")), sep="\n")' |
        grep -E "^($(printf '%s\n' "${@:2}" | grep '^tests/' | paste -sd '|'))/")
    [[ ${#names[@]} -ge 1 && ${#names[@]} -le $REPEAT_MAX ]] || return 1
    repeated=${#names[@]}
    repeated_names+=("${names[@]}")
    printf '\n=== once more, what failed: %s\n' "$repeated"
    run_pytest "$1" --last-failed "${@:2}"
}

report() {
    local result=passed
    [[ $4 -eq 0 ]] || result="passed, $4 only when repeated"
    case $2 in
    0) ;;
    124 | 137) result="FAILED: over its time budget" ;;
    *) result="FAILED: pytest's exit code $2" ;;
    esac
    [[ $2 -eq 0 ]] || failed=1
    table+=$(printf '%-14s %7.1f s  %s' "$1" "$3" "$result")$'\n'
}

part=quick
case ${1:-} in
--all | --rest) part=${1#--} && shift ;;
esac
case $part in
quick) PART_MARKS="not slow and not thorough" ;;
rest) PART_MARKS="not slow and thorough" ;;
all) PART_MARKS="not slow" ;;
esac

failed=0 table= repeated_names=() to_go_s=0 began_s=$EPOCHSECONDS
asked() { [[ -z $phases || " $phases " == *" $1 "* ]]; }
phases=$*
for phase in "${PHASES[@]}"; do
    read -ra words <<<"$phase"
    asked "${words[0]}" && to_go_s=$((to_go_s + $(seconds_of "${words[1]}" "${words[2]}")))
done
for phase in "${PHASES[@]}"; do
    read -ra words <<<"$phase"
    asked "${words[0]}" && run_phase "${words[@]}"
done
[[ -n $table ]] || { echo "no tests in: ${*:-any phase}" >&2 && exit 5; }
printf '\n%s' "$table"
[[ $failed -eq 0 ]] && result=passed || result=FAILED
took_s=$((EPOCHSECONDS - began_s))
printf '%s (%s) in %s min %s s; repeated: %s' "$result" "$part" $((took_s / 60)) $((took_s % 60)) "${#repeated_names[@]}"
[[ ${#repeated_names[@]} -eq 0 ]] || printf ' %s' "${repeated_names[@]}"
printf '\n'
exit "$failed"
