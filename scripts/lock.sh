#!/usr/bin/env bash
# Pins every package that the project uses and develops with, by version and SHA-256, in requirements.lock; and of those
# what a replica runs with, whose licences all allow passing on, in deploy/container/requirements.lock.
# Keeps the versions it has; `make lock ARGS=--upgrade` takes the newest. Run it with the oldest supported Python:
# what that needs is a superset of what newer ones need.
set -euo pipefail
cd "$(dirname "$0")/.."

PIP_TOOLS=7.6.2
python=${PYTHON:-python3.11}
venv=build/lock-venv
development=build/development.in

[[ -x $venv/bin/pip-compile ]] || { "$python" -m venv "$venv" && "$venv/bin/pip" install -q "pip-tools==$PIP_TOOLS"; }
"$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' \
    >"$development"

# pin FILE OPTION...: what pyproject.toml asks for, by version and SHA-256
pin() {
    CUSTOM_COMPILE_COMMAND="make lock" "$venv/bin/pip-compile" --quiet --strip-extras --allow-unsafe --generate-hashes \
        --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
        --output-file "$1" "${@:2}" pyproject.toml
    echo "$1: $(grep -c '==' "$1") packages"
}

pin requirements.lock "$@" --extra lanes --extra pipeline --extra connect --extra hdfs "$development"
sed 's/ \\$//; /^ /d' requirements.lock >build/pinned.txt # versions alone
pin deploy/container/requirements.lock --constraint build/pinned.txt --extra kms --extra oracle --extra pkcs11 --extra tracing
