#!/usr/bin/env bash
# run.sh [CELL...]: what each part decides, on its oldest and on its newest version; all cells, or those that are named.
# run.sh --turn: one cell, another one with each day of the newest commit.
#
# Debian 12 has the oldest Python and HAProxy, 3.11 and 2.6: all other tests run there. Debian 13 has the newest that a
# stable Debian has. Kafka and Postgres come from Maven's repository, as scripts/jars/CELL pins them.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# shellcheck source=scripts/common.sh
source scripts/common.sh

CELLS=(kafka-oldest kafka-newest postgres-oldest postgres-newest debian-13)
MARKS="not slow and not thorough"
CLUSTER=tests/integration/test_cluster.py
KAFKA="tests/integration/test_log_kafka.py tests/integration/test_log_kafka_payloads.py"
POSTGRES="tests/integration/test_lock_postgres.py tests/integration/test_election_postgres.py tests/integration/store_postgres tests/integration/log_postgres"
DEBIAN="tests/integration/test_haproxy.py tests/integration/test_lock_postgres.py"
PURE="tests/unit tests/golden" # left out of a turn: they take as long as all the rest of a cell
STANDBYS=tests/integration/log_postgres/test_replication.py # and a dump: Maven's repository has the server without its tools

tests() { .venv/bin/pytest -q -m "$MARKS" "$@"; }

# version_of CELL: of the part that scripts/jars/CELL pins.
version_of() { sed -nE 's/^(org.apache.kafka:kafka_2.13|io.zonky.*-amd64):(.*)/\2/p' "scripts/jars/$1/coordinates.txt"; }

# shellcheck disable=SC2086 # lists of files
run_cell() {
    local cell=$1 server=$PWD/.tools/$1/server
    case $cell in
    kafka-*)
        scripts/jars/fetch.sh "$cell" || return
        NOTARY_KAFKA_LIBS=$PWD/.tools/$cell/libs tests $KAFKA $CLUSTER
        ;;
    postgres-*)
        scripts/jars/fetch.sh "$cell" || return
        rm -rf "$server"
        mkdir -p "$server"
        unzip -p ".tools/$cell/libs/"*.jar postgres-linux-x86_64.txz | tar -xJ -C "$server" || return
        NOTARY_POSTGRES_BIN=$server/bin tests --ignore "$STANDBYS" -k "not dump" $POSTGRES &&
            NOTARY_POSTGRES_BIN=$server/bin tests --log-kind postgres $CLUSTER
        ;;
    debian-13)
        scripts/matrix/debian_13.sh .venv/bin/pytest -q -m "$MARKS" -n 2 --dist loadfile $PURE $DEBIAN &&
            scripts/matrix/debian_13.sh .venv/bin/pytest -q -m "$MARKS" $CLUSTER
        ;;
    *) stop "no cell $cell; there are: ${CELLS[*]}" ;;
    esac
}

wanted=("$@")
[[ $# -gt 0 ]] || wanted=("${CELLS[@]}")
if [[ ${1:-} == --turn ]]; then
    PURE=
    day=$(($(git log -1 --format=%ct) / 86400))
    wanted=("${CELLS[day % ${#CELLS[@]}]}")
fi
failed=0 results=()
for cell in "${wanted[@]}"; do
    printf '\n=== %s\n' "$cell"
    started=$SECONDS result=passed
    run_cell "$cell" || { result=FAILED && failed=1; }
    results+=("$(printf '%-16s %-8s %5s s  %s' "$cell" "$(version_of "$cell" 2>/dev/null)" $((SECONDS - started)) "$result")")
done
printf '\n'
printf '%s\n' "${results[@]}"
exit "$failed"
