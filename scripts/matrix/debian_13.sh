#!/usr/bin/env bash
# debian_13.sh COMMAND...: a Debian 13 of its own in the cache, made at first, with this clone's tracked files at /notary
# and everything that its set-up installs; then COMMAND there. Needs root. Servers share this machine's loopback.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

root=${XDG_CACHE_HOME:-$HOME/.cache}/replicated-notary/debian-13
[[ $EUID -eq 0 ]] || stop "only root makes a Debian of its own"
mkdir -p "$(dirname "$root")"
exec 8>"$root.lock"
flock 8 # one clone at a time
command -v mmdebstrap >/dev/null || logged "Package mmdebstrap: installing" scripts/install_packages.sh mmdebstrap

if [[ ! -e $root/etc/debian_version ]]; then
    # from where this machine has its own packages; Debian's usual place if that is not told
    mirror=$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -1)
    rm -rf "$root.partial"
    logged "Debian 13: unpacking it in the cache" mmdebstrap --variant=minbase \
        --include=ca-certificates,make,git,procps,iproute2 trixie "$root.partial" ${mirror:+"$mirror"}
    mv "$root.partial" "$root"
fi
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
[[ ! -e /etc/pip.conf ]] || cp /etc/pip.conf "$root/etc/"
cp /etc/resolv.conf "$root/etc/"

mkdir -p "$root/notary" "$root/home/.cache"
find "$root/notary" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .tools -exec rm -rf {} +
git ls-files -z | xargs -0 cp --parents -t "$root/notary"
git -C "$root/notary" init --quiet

# shellcheck disable=SC2016 # the inner shell expands them
exec unshare --mount bash -euc '
    root=$1
    shift
    mount --bind /dev "$root/dev"
    mount --rbind /proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --bind "$HOME/.cache" "$root/home/.cache"
    exec chroot "$root" /usr/bin/env -i HOME=/home LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        ${PIP_CERT:+PIP_CERT=$PIP_CERT} bash -euc "cd /notary; scripts/setup.sh --for-tests; exec \"\$@\"" notary "$@"
' matrix "$root" "$@"
