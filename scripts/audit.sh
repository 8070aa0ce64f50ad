#!/usr/bin/env bash
# Asks the advisory database of the Python Package Index about every package that requirements.lock pins. Needs the network,
# so nothing calls it but `make audit`. Fails when something is known, or when nobody could be asked about a package: a mirror
# without advisories finds nothing. ARGS="--ignore-vuln ID" for what was judged harmless.
set -euo pipefail
cd "$(dirname "$0")/.."

PIP_AUDIT=2.10.1
venv=build/audit-venv

[[ -x $venv/bin/pip-audit ]] || { python3 -m venv "$venv" && "$venv/bin/pip" install -q "pip-audit==$PIP_AUDIT"; }
"$venv/bin/pip-audit" --strict --requirement requirements.lock --require-hashes --disable-pip --progress-spinner off "$@"
