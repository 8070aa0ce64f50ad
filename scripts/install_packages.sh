#!/usr/bin/env bash
# install_packages.sh PACKAGE...: installs Debian packages without starting a service or making a database cluster.
# Postgres and HAProxy come with both; the project runs servers of its own, in folders of its own.
set -euo pipefail

as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

policy=/usr/sbin/policy-rc.d # asked by every package before it starts a service
no_cluster=/etc/postgresql-common/createcluster.d/replicated-notary.conf
for_now=("$no_cluster")
[[ -e $policy ]] || for_now+=("$policy")
trap 'as_root rm -f "${for_now[@]}"' EXIT

if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
fi
as_root mkdir -p "$(dirname "$no_cluster")"
echo 'create_main_cluster = false' | as_root tee "$no_cluster" >/dev/null

as_root apt-get update -q
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"

if [[ " $* " == *" haproxy "* ]] && command -v systemctl >/dev/null; then
    as_root systemctl disable haproxy.service # not after the next boot either
fi
