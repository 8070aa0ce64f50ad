#!/usr/bin/env bash
# Builds local-kms, a server that speaks AWS KMS' protocol, for tests: into .tools, from main.go, at the version and with
# the checksums of go.mod and go.sum beside this file. It checks no credentials. Needs Go.
set -euo pipefail
cd "$(dirname "$0")"

built=../../.tools/local-kms.stamp
wanted=$(cat main.go go.mod go.sum | sha256sum | cut -c1-64)
if [[ ! -x ../../.tools/local-kms || ! -f $built || $(<"$built") != "$wanted" ]]; then
    mkdir -p ../../.tools
    GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -trimpath -gcflags=all=-l -o ../../.tools/local-kms .
    echo "$wanted" >"$built"
fi
