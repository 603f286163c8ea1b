#!/usr/bin/env bash
# Unpacks chrony and linuxptp of another Debian suite beside the system, with their own libc, and writes programs that
# start them: scripts/unpack_release.sh SUITE FOLDER. Installs nothing; FOLDER/bin is for $RANKCLOCK_DAEMONS.
set -euo pipefail
suite=$1; mkdir -p "$2"; folder=$(cd "$2" && pwd)
[ -x "$folder/bin/chronyd" ] && exit 0
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; chmod 755 "$work"
mkdir -p "$work"/{lists/partial,cache/archives/partial}
mirror=$(apt-get indextargets --format '$(SITE)' | grep -v security | sort -u | head -1)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$work/sources.list"
options=(-q -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
  -o "Dir::Cache=$work/cache" -o Dir::State::status=/dev/null)
apt-get "${options[@]}" update > /dev/null
packages=$(apt-cache "${options[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
  --no-replaces --no-enhances chrony linuxptp | grep -E '^(lib[a-z0-9.+-]+|chrony|linuxptp)$' | sort -u)
(cd "$work/cache" && apt-get "${options[@]}" download $packages > /dev/null 2>&1)
for package in "$work"/cache/*.deb; do dpkg -x "$package" "$folder/root"; done
mkdir -p "$folder/bin"
machine=$(uname -m)
loader=$(find "$folder/root" -name "ld-linux-${machine//_/-}.so.2" | head -1)
libraries=$(find "$folder/root" -name "libc.so.6" -printf '%h\n' | head -1)
for program in chronyd chronyc ptp4l phc2sys pmc ts2phc timemaster; do
  path=$(find "$folder/root" -path "*bin/$program" | head -1)
  [ -n "$path" ] || continue
  printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$loader" "$libraries" "$path" > "$folder/bin/$program"
  chmod 755 "$folder/bin/$program"
done
