#!/usr/bin/env bash
# Builds and tests the clients in clients/, then runs them against a real cluster across a fail-over.
# clients.sh [--offline-tests]: with it, without the cluster. Versions are those of package-lock.json and pom.xml.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

NODE_OLDEST=20

has() { command -v "$1" >/dev/null; }

missing_packages() {
    has node || echo nodejs
    has npm || echo npm
    has mvn || echo maven
    has javac || echo openjdk-17-jdk-headless
}

may_install() {
    has apt-get && { [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null; }
}

ensure_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    if [[ ${#packages[@]} -gt 0 ]]; then
        may_install || stop "these packages are missing and cannot be installed from here: ${packages[*]}
Run this as root, then repeat: apt-get install --no-install-recommends ${packages[*]}"
        logged "System packages: installing ${packages[*]}" scripts/install_packages.sh "${packages[@]}"
    fi
    node -e "process.exit(parseInt(process.versions.node) < $NODE_OLDEST ? 1 : 0)" ||
        stop "the TypeScript client needs Node $NODE_OLDEST or newer, this is $(node --version). Install a newer one and repeat."
}

ensure_packages
logged "TypeScript client: packages of package-lock.json" npm --prefix clients/typescript ci --no-audit --no-fund
logged "TypeScript client: build and tests" npm --prefix clients/typescript test
logged "Java client: build and tests" mvn -B -ntp -Dstyle.color=never -f clients/java/pom.xml package
[[ ${1:-} == --offline-tests ]] || .venv/bin/pytest -q tests/clients "$@"
