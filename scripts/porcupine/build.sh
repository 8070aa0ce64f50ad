#!/usr/bin/env bash
# Builds the judge of histories into .tools/porcupine, from main.go and Porcupine, at the version and with the checksums
# of go.mod and go.sum beside this file. Needs Go.
set -euo pipefail
cd "$(dirname "$0")"

built=../../.tools/porcupine.stamp
wanted=$(cat main.go go.mod go.sum | sha256sum | cut -c1-64)
if [[ ! -x ../../.tools/porcupine || ! -f $built || $(<"$built") != "$wanted" ]]; then
    mkdir -p ../../.tools
    GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -trimpath -o ../../.tools/porcupine .
    echo "$wanted" >"$built"
fi
