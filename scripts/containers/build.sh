#!/usr/bin/env bash
# Builds the linter of container files into .tools/containers-lint, from main.go, at the versions and with the checksums
# of go.mod and go.sum beside this file. Needs Go.
set -euo pipefail
cd "$(dirname "$0")"

built=../../.tools/containers-lint.stamp
wanted=$(cat main.go go.mod go.sum | sha256sum | cut -c1-64)
if [[ ! -x ../../.tools/containers-lint || ! -f $built || $(<"$built") != "$wanted" ]]; then
    mkdir -p ../../.tools
    GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -trimpath -gcflags=all=-l -o ../../.tools/containers-lint .
    echo "$wanted" >"$built"
fi
