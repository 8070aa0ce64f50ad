# Sourced by the set-up's scripts: steps that say what they do, and whose output is kept and shown when they fail.
# shellcheck shell=bash

SETUP_LOG=${SETUP_LOG:-$PWD/.tools/setup.log}
FAILURE_LINES=30

say() { printf '==> %s\n' "$*"; }

stop() {
    printf 'setup stopped: %s\n' "$*" >&2
    exit 1
}

# logged WHAT COMMAND...: run it with all output in the log; on failure show the end of what it said and stop.
logged() {
    local what=$1 output
    shift
    say "$what"
    mkdir -p "$(dirname "$SETUP_LOG")"
    output=$(mktemp)
    printf '\n# %s  %s\n' "$(date -u +%FT%TZ)" "$*" >>"$SETUP_LOG"
    if "$@" >"$output" 2>&1; then
        cat "$output" >>"$SETUP_LOG"
        rm -f "$output"
        return
    fi
    cat "$output" >>"$SETUP_LOG"
    tail -n "$FAILURE_LINES" "$output" >&2
    rm -f "$output"
    stop "$what failed; the whole output is in $SETUP_LOG"
}
