#!/usr/bin/env bash
# Builds Helm into .tools/helm, at the version and with the checksums of go.mod and go.sum beside this file. Needs Go.
set -euo pipefail
cd "$(dirname "$0")"

built=../../.tools/helm.stamp
wanted=$(cat go.mod go.sum | sha256sum | cut -c1-64)
if [[ ! -x ../../.tools/helm || ! -f $built || $(<"$built") != "$wanted" ]]; then
    mkdir -p ../../.tools
    GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -trimpath -gcflags=all=-l -o ../../.tools/helm helm.sh/helm/v4/cmd/helm
    echo "$wanted" >"$built"
fi
