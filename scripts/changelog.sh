#!/usr/bin/env bash
# Shows the changelog that the files in changes/ make; with a version, moves them into the newest section of CHANGELOG.md.
set -euo pipefail
cd "$(dirname "$0")/.."

TOWNCRIER=26.9.0
venv=build/towncrier

[[ -x $venv/bin/towncrier ]] || { "${PYTHON:-python3}" -m venv "$venv" && "$venv/bin/pip" install -q "towncrier==$TOWNCRIER"; }
if [[ $# -eq 0 ]]; then
    "$venv/bin/towncrier" build --draft --version draft
else
    "$venv/bin/towncrier" build --yes --version "$1"
fi
