#!/usr/bin/env bash
# Prepares a machine with Debian 12 or 13: system packages, the Python environment in .venv, Apache Kafka and Spark's connector to
# it in .tools.
# --for-tests: also what only tests need. --without-java: neither Java nor jars, for profiles that have no Kafka.
# --to-try: Python alone, with what a replica imports.
# May be repeated: each step looks first at what is there. Where packages may not be installed, it names them and stops.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

PYTHON_OLDEST="3, 11"
FOR_TESTS= WITH_JAVA=yes TO_TRY=
[[ ${1:-} != --for-tests ]] || FOR_TESTS=yes
[[ ${1:-} != --without-java ]] || WITH_JAVA=
[[ ${1:-} != --to-try ]] || WITH_JAVA='' TO_TRY=yes

# ---- System packages -----------------------------------------------------------------------------------------------

# The first Python that is new enough and can make environments: $PYTHON, then Debian's, then what is on the path.
# Debian's comes early because it is built with profile-guided optimisation: the replica takes a sixth less processor
# time under it than under one that was compiled with the defaults.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" /usr/bin/python3 python3 python3.13 python3.12 python3.11; do
        if [[ -n $candidate ]] && command -v "$candidate" >/dev/null &&
            "$candidate" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < ($PYTHON_OLDEST))" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

has() { command -v "$1" >/dev/null || [[ -x /usr/sbin/$1 ]]; }

missing_packages() {
    find_python >/dev/null || echo python3 python3-venv
    [[ -z $TO_TRY ]] || return 0
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || has initdb || echo postgresql
    has haproxy || echo haproxy
    [[ -z $WITH_JAVA ]] || has java || echo default-jre-headless
    has wrk || echo wrk
    has make || echo make
    has git || echo git
    local jars
    for jars in ${WITH_JAVA:+kafka spark delta} ${FOR_TESTS:+kafka-tools hadoop}; do
        scripts/jars/fetch.sh "$jars" --present || has mvn || { echo maven && break; }
    done
}

may_install() {
    command -v apt-get >/dev/null && { [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null; }
}

ensure_packages() {
    local packages
    mapfile -t packages < <(missing_packages | tr ' ' '\n')
    if [[ ${#packages[@]} -eq 0 ]]; then
        say "System packages: all present"
        return
    fi
    may_install || stop "these packages are missing and cannot be installed from here: ${packages[*]}
Run this as root, then repeat: apt-get install --no-install-recommends ${packages[*]}"
    logged "System packages: installing ${packages[*]}" scripts/install_packages.sh "${packages[@]}"
    mapfile -t packages < <(missing_packages)
    [[ ${#packages[@]} -eq 0 ]] || stop "installed, yet not found: ${packages[*]}"
}

# Only tests need these, and those that do say loudly that they were left out: a browser for the status page, keepalived to
# check what is rendered for it, curl and jq for the runbooks' commands, ip for the lab that faults are tried out in, mkfs and
# losetup for disks that lose power, faketime and fiu for clocks that jump and disks that fail, SoftHSM in the place of a hardware security module, tini for the image's
# entry point.
ensure_test_packages() {
    local packages=() name
    for name in chromium keepalived curl jq faketime; do has "$name" || packages+=("$name"); done
    has fiu-ctrl || packages+=(fiu-utils)
    has ip || packages+=(iproute2)
    has mkfs.ext4 || packages+=(e2fsprogs)
    has losetup || packages+=(mount)
    has softhsm2-util || packages+=(softhsm2)
    has p11-kit || packages+=(p11-kit p11-kit-modules)
    has tini || packages+=(tini)
    [[ ${#packages[@]} -gt 0 ]] || return 0
    if ! may_install || ! (logged "Packages for tests: installing ${packages[*]}" scripts/install_packages.sh "${packages[@]}"); then
        say "NOT INSTALLED: ${packages[*]}; the tests that need them are left out"
    fi
}

# ensure_built WHAT FOLDER TESTS: from source, since that is how its checksums are published. Debian's Go may be too old.
# The large ones are compiled without inlining, which takes a quarter less of the processor's time.
NOT_BUILT=.tools/not-built # names, one a line
ensure_built() {
    if ! has go; then
        not_built "$1" "$3" ", which needs Go"
    elif ! (logged "$1: as $2/go.mod pins it" "$2/build.sh"); then
        not_built "$1" "$3" ""
    fi
}

build_tools() {
    ensure_built "Porcupine" scripts/porcupine "judgements of clients' histories by a checker that is not ours"
    ensure_built "KMS server" scripts/local-kms "tests of a key in a key management service"
    ensure_built "Linter of container files" scripts/containers "tests of deploy/container"
    ensure_built "S3 server" scripts/versitygw "tests of archives in a store of objects"
    ensure_built "Helm" scripts/helm "the chart's tests"
}

# not_built WHAT TESTS WHY: nobody misses a test that is left out, so where all must run it is an error.
not_built() {
    [[ ${CI:-} != true && -z ${NOTARY_ALL_TESTS:-} ]] || stop "NOT BUILT: $1$3. $2 would be left out, and here all must run"
    say "NOT BUILT: $1$3; $2 are left out"
    echo "$1" >>"$NOT_BUILT"
}

# ---- Python environment --------------------------------------------------------------------------------------------

# done_before STAMP INPUT...: true if the inputs are what they were when the stamp was written.
digest() { cat "$@" | sha256sum | cut -c1-64; }
done_before() { [[ -f $1 && $(<"$1") == $(digest "${@:2}") ]]; }
remember() { digest "${@:2}" >"$1"; }

# install_locked WHAT NOT OPTION...: what the lock pins, by hash; NOT is '!' for everything that is published as a wheel.
install_locked() {
    local pins=.tools/pins.txt
    sed -n "/^pyspark==/,/[^\\\\]\$/$2p" requirements.lock >"$pins"
    # published for this kind of machine only; the lock has no markers for packages of an extra. And under Intel's licence.
    [[ $(uname -m) == x86_64 && ${NOTARY_LANES:-yes} != no ]] || sed -i "/^\(intel-cmplr-lib-rt\|ipp-crypto\)==/,/[^\\\\]\$/d" "$pins"
    logged "Python packages: installing what requirements.lock pins, by hash: $1" \
        .venv/bin/python -m pip install --disable-pip-version-check --require-hashes --no-deps "${@:3}" -r "$pins"
}

# What a replica imports, and what installs the project.
install_to_try() {
    local pins=.tools/pins.txt
    sed -n "/^\(hatchling\|packaging\|pathspec\|pluggy\|trove-classifiers\)==/,/[^\\\\]\$/p" requirements.lock |
        cat deploy/container/requirements.lock - >"$pins"
    logged "Python packages: installing what deploy/container/requirements.lock pins, by hash" \
        .venv/bin/python -m pip install --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r "$pins"
}

ensure_environment() {
    local python
    if ! .venv/bin/python -c "import sys; sys.exit(sys.version_info < ($PYTHON_OLDEST))" 2>/dev/null; then
        python=$(find_python) || stop "no Python 3.11 or newer with the venv module"
        rm -rf .venv
        logged "Python environment: making .venv with $("$python" --version)" "$python" -m venv .venv
    fi
    if done_before .venv/packages.stamp requirements.lock; then
        say "Python packages: as locked"
    elif [[ -n $TO_TRY ]]; then
        if done_before .venv/try.stamp deploy/container/requirements.lock; then
            say "Python packages: as locked"
        else
            install_to_try
            remember .venv/try.stamp deploy/container/requirements.lock
        fi
    else
        install_locked "wheels" '!' --only-binary :all:
        install_locked "PySpark, which is published as source" '' --no-build-isolation
        remember .venv/packages.stamp requirements.lock
    fi
    if [[ -x .venv/bin/notary ]] && done_before .venv/project.stamp pyproject.toml; then
        say "Command .venv/bin/notary: present"
    else
        logged "Command .venv/bin/notary: installing the project, editable" \
            .venv/bin/python -m pip install --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
        remember .venv/project.stamp pyproject.toml
    fi
}

mkdir -p .tools
exec 9>.tools/setup.lock
flock 9 # one set-up at a time
started=$SECONDS
ensure_packages
[[ -z $FOR_TESTS ]] || ensure_test_packages
: >"$NOT_BUILT"
if [[ -n $FOR_TESTS ]]; then # compilers have the processors to themselves while packages are fetched
    build_tools &
    builds=$!
fi
ensure_environment
for jars in ${WITH_JAVA:+kafka spark delta} ${FOR_TESTS:+kafka-tools hadoop}; do
    scripts/jars/fetch.sh "$jars"
done
[[ -z $FOR_TESTS ]] || wait "$builds"
not_built=$(paste -sd, "$NOT_BUILT")
say "Ready after $((SECONDS - started)) s${not_built:+; NOT BUILT, so tests are left out: $not_built}"
