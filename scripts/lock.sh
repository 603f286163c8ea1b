#!/usr/bin/env bash
# Resolves the dependencies of pyproject.toml anew in clean environments and writes the locks.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

freeze() { # extra, file, further packages
  python3 -m venv "$work/$1" && "$work/$1/bin/pip" install -q ".[$1]" "${@:3}"
  { echo "# Written by 'make lock'; the versions that the tests passed with."
    "$work/$1/bin/pip" freeze | grep -v '^rankclock'; } > "$2"
}
freeze dev requirements.lock hatchling editables
freeze docs docs/requirements.lock
