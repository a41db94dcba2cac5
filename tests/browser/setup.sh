#!/usr/bin/env bash
# Installs what the tests of the page need, where it can, and says clearly what is missing where it cannot.
#
#   setup.sh tools     the type checker and axe-core, from npm, into .page-tools
#   setup.sh browser   Chromium, from the distribution's packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

missing() {
  echo "make: the tests of the page need $1, which is not here and could not be installed: $2" >&2
  exit 1
}

tools() {
  command -v npm >/dev/null || missing "npm" "install Node.js 18 or newer (Debian: apt-get install npm)"
  mkdir -p .page-tools
  cp tests/browser/package.json .page-tools/
  npm install --prefix .page-tools --no-package-lock --no-audit --no-fund --silent \
    || missing "axe-core and typescript" "npm failed; see its message above"
  touch .page-tools/ready
}

browser() {
  for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && return
  done
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "make: installing chromium"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null && return
  fi
  missing "Chromium" "install the package chromium of your distribution, as root"
}

"$1"
