#!/usr/bin/env bash
# Puts a set of jars into .tools/SET/libs: from the cache, else with Maven as scripts/jars/SET/pom.xml says. Whatever is
# used was compared with SHA256SUMS a moment before. The sets: kafka, the broker; spark, Spark's Kafka connector;
# delta, what Spark writes tables with; kafka-tools, jmx and hadoop, for tests only.
#   fetch.sh SET            make sure that they are there and right
#   fetch.sh SET --present  succeed if that needs no Maven
#   fetch.sh SET --update   after a change of pom.xml: fetch anew and rewrite SHA256SUMS
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

set_name=$1
pom=scripts/jars/$set_name/pom.xml
sums=scripts/jars/$set_name/SHA256SUMS
tools=.tools/$set_name
libs=$tools/libs
cache=${XDG_CACHE_HOME:-$HOME/.cache}/replicated-notary/$set_name-$(sha256sum "$sums" | cut -c1-16)

# right FOLDER: it holds exactly the jars of SHA256SUMS, each with its checksum.
right() {
    [[ -d $1 && $(find "$1" -type f | wc -l) -eq $(wc -l <"$sums") ]] &&
        (cd "$1" && sha256sum --check --strict --quiet -) <"$sums" >/dev/null 2>&1
}

download() {
    rm -rf "$1"
    mkdir -p "$1"
    logged "Jars ($set_name): fetching $(wc -l <"$sums") with Maven" \
        mvn -B -ntp -Dstyle.color=never -f "$pom" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$(realpath "$1")"
}

# Group, artifact and version of each jar, for the software bill of materials: file names have no group.
list_coordinates() {
    local list
    list=$(mktemp)
    logged "Jars ($set_name): listing their coordinates" \
        mvn -B -ntp -Dstyle.color=never -f "$pom" dependency:list -DincludeScope=runtime -DoutputFile="$list"
    sed -nE 's/^ +([^: ]+):([^:]+):jar:([^:]+):.*/\1:\2:\3/p' "$list" | LC_ALL=C sort >"scripts/jars/$set_name/coordinates.txt"
    rm -f "$list"
}

# Copies beside the destination first, so that an interrupted copy is never taken for a whole one.
place() {
    rm -rf "$2" "$2.partial"
    mkdir -p "$(dirname "$2")"
    cp -r "$1" "$2.partial"
    mv "$2.partial" "$2"
}

case ${2:-} in
--present)
    right "$libs" || right "$cache"
    exit
    ;;
--update)
    download "$tools/download"
    (cd "$tools/download" && sha256sum ./*.jar | sed 's|\./||') >"$sums"
    place "$tools/download" "$libs"
    rm -rf "$tools/download"
    list_coordinates
    say "Jars ($set_name): $sums and coordinates.txt written; review the difference"
    exit
    ;;
esac

if right "$libs"; then
    say "Jars ($set_name): present, checksums verified"
    exit
fi
if ! right "$cache"; then
    download "$tools/download"
    right "$tools/download" ||
        stop "the jars in $tools/download are not those of $sums: somebody changed them, or pom.xml"
    place "$tools/download" "$cache"
    rm -rf "$tools/download"
fi
say "Jars ($set_name): copying from $cache"
place "$cache" "$libs"
right "$libs" || stop "the copy in $libs is damaged"
