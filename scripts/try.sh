#!/usr/bin/env bash
# try.sh [--exit]: brings up three replicas and three log nodes on loopback, submits a sample, and keeps them until Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

READY_MAX_S=60

.venv/bin/notary up &
cluster=$!
trap 'kill -INT "$cluster" 2>/dev/null; wait "$cluster" || true' EXIT

for ((waited_s = 0; ; waited_s++)); do
    kill -0 "$cluster" 2>/dev/null || stop "the cluster ended; what it said is above"
    ! .venv/bin/notary status --json 2>/dev/null | grep -q '"role": *"active"' || break
    ((waited_s < READY_MAX_S)) || stop "no replica became active within $READY_MAX_S s"
    sleep 1
done
.venv/bin/notary try
[[ ${1:-} != --exit ]] || exit 0
say "It serves until Ctrl-C. In another terminal: .venv/bin/notary status"
wait "$cluster"
