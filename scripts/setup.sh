#!/usr/bin/env bash
# Everything that `make demo` and `make test` need, on a bare Debian 12: safe to run again, quick when nothing is missing.
# The time daemons are unpacked into .daemons/, never installed: installing chrony would let it steer this machine's clock.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

apt_install() { # names; only as root, only what dpkg does not have
  local missing=()
  for name in "$@"; do dpkg -s "$name" >/dev/null 2>&1 || missing+=("$name"); done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" != 0 ]; then
    say "not root: could not install ${missing[*]} (what needs them is left out; or run as root: apt-get install ${missing[*]})"
    return 0
  fi
  say "apt-get install ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

python_with_venv() { command -v python3 >/dev/null && python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

unpack() { # a program that shows that it is there, packages: beside the system, with the system's own libraries
  local shown=$1; shift
  [ -x ".daemons/usr/$shown" ] && return 0
  command -v apt-get >/dev/null || { say "no apt-get: what is found on PATH is used, if any"; return 0; }
  local work; work=$(mktemp -d)
  if (cd "$work" && { apt-get download -qq "$@" 2>/dev/null ||
      { [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get download -qq "$@"; }; } >/dev/null); then
    mkdir -p .daemons
    for package in "$work"/*.deb; do dpkg -x "$package" .daemons; done
    say "unpacked $(cd "$work" && echo *.deb)"
  else
    say "could not download $*: what is found on PATH is used, if any"
  fi
  rm -rf "$work"
}

python_with_venv || apt_install python3 python3-venv
python_with_venv || { say "python3 >= 3.11 with venv is needed; found: $(python3 --version 2>&1 || true)"; exit 3; }
if command -v apt-get >/dev/null; then
  apt_install gcc libc6-dev iproute2 util-linux libcap2 libedit2 libgnutls30 libnettle8 libseccomp2
  apt_install dbus-daemon libbluetooth3 libbsd0 libdbus-1-3 libgps28 libssl3 libusb-1.0-0 ||
    say "not Debian 12? the tests of ntpd, gpsd and systemd-timesyncd may be left out"
  command -v node >/dev/null || apt_install nodejs  # runs Perfetto's trace processor in the tests of traces
fi
unpack sbin/ptp4l chrony linuxptp  # chronyd, chronyc, ptp4l, pmc, phc2sys
unpack sbin/ntpd ntpsec
unpack sbin/gpsd gpsd
unpack ../lib/systemd/systemd-timesyncd systemd-timesyncd libsystemd-shared
unpack bin/promtool prometheus prometheus-alertmanager prometheus-node-exporter  # for the tests of rules and dashboards
[ -x .venv/bin/python ] || python3 -m venv .venv
say "Python packages of requirements.lock"
.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements.lock
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
