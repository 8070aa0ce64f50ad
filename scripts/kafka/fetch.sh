#!/usr/bin/env bash
# Puts the Kafka broker's jars into .tools/kafka/libs: from the cache, else with Maven as pom.xml says. Whatever is
# used was compared with SHA256SUMS a moment before.
#   fetch.sh            make sure that they are there and right
#   fetch.sh --present  succeed if that needs no Maven
#   fetch.sh --update   after a change of pom.xml: fetch anew and rewrite SHA256SUMS
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

libs=.tools/kafka/libs
sums=scripts/kafka/SHA256SUMS
cache=${XDG_CACHE_HOME:-$HOME/.cache}/replicated-notary/kafka-$(sha256sum "$sums" | cut -c1-16)

# right FOLDER: it holds exactly the jars of SHA256SUMS, each with its checksum.
right() {
    [[ -d $1 && $(find "$1" -type f | wc -l) -eq $(wc -l <"$sums") ]] &&
        (cd "$1" && sha256sum --check --strict --quiet -) <"$sums" >/dev/null 2>&1
}

download() {
    rm -rf "$1"
    mkdir -p "$1"
    logged "Apache Kafka: fetching $(wc -l <"$sums") jars with Maven" \
        mvn -B -ntp -Dstyle.color=never -f scripts/kafka/pom.xml dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$(realpath "$1")"
}

# Copies beside the destination first, so that an interrupted copy is never taken for a whole one.
place() {
    rm -rf "$2" "$2.partial"
    mkdir -p "$(dirname "$2")"
    cp -r "$1" "$2.partial"
    mv "$2.partial" "$2"
}

case ${1:-} in
--present)
    right "$libs" || right "$cache"
    exit
    ;;
--update)
    download .tools/kafka/download
    (cd .tools/kafka/download && sha256sum ./*.jar | sed 's|\./||') >"$sums"
    place .tools/kafka/download "$libs"
    rm -rf .tools/kafka/download
    say "Apache Kafka: $sums written; review the difference"
    exit
    ;;
esac

if right "$libs"; then
    say "Apache Kafka: present, checksums verified"
    exit
fi
if ! right "$cache"; then
    download .tools/kafka/download
    right .tools/kafka/download ||
        stop "the jars in .tools/kafka/download are not those of $sums: somebody changed them, or pom.xml"
    place .tools/kafka/download "$cache"
    rm -rf .tools/kafka/download
fi
say "Apache Kafka: copying from $cache"
place "$cache" "$libs"
right "$libs" || stop "the copy in $libs is damaged"
