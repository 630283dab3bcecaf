#!/usr/bin/env bash
# Sets up a fresh machine: a Python environment in .venv and a container engine with buildx.
# Asks nothing, changes only what is missing, and a second call takes less than a second.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
STAMP=$VENV/.rocstack-stamp
PYTHON_MIN=3.11
APT_DIR=/etc/apt
APT=(apt-get -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
ENGINE_LOG=/var/log/rocstack-dockerd.log
ENGINE_WAIT=60 # seconds
# Where no registry answers, base images are made from Debian 13 with mmdebstrap.
BOOTSTRAP=(mmdebstrap debian-archive-keyring uidmap) # uidmap: for users other than root
KEEP_ENV=DEBIAN_FRONTEND,SSL_CERT_FILE,http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY
export DEBIAN_FRONTEND=noninteractive
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # dockerd and iptables live there
# shellcheck source=/dev/null
DISTRO=$(. /etc/os-release && echo "$ID-${VERSION_ID:-}") || DISTRO=unknown
USAGE='usage: cli/setup.sh [python|engine]
  python   virtual environment .venv with the locked requirements and rocstack itself
  engine   container engine with buildx; installed and started only if none answers
Without an argument: both.'

say() { printf 'setup: %s\n' "$*"; }

# fail MESSAGE NEXT_STEP
fail() {
  printf 'setup: error: %s\n  next: %s\n' "$1" "$2" >&2
  exit 3
}

# as_root COMMAND...: sudo never asks; it keeps the proxies, because apt and dockerd read them
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif sudo -n true 2>/dev/null; then
    sudo -n "--preserve-env=$KEEP_ENV" "$@"
  else
    fail "this needs root: $*" "run it as root, or 'sudo -v' first"
  fi
}

# quietly COMMAND...: its output is shown only when it fails
quietly() {
  "$@" >"$TMP/log" 2>&1 </dev/null || { tail -n 20 "$TMP/log" >&2 && return 1; }
}

require_distro() {
  case $DISTRO in
    debian-12 | debian-13 | ubuntu-22.04 | ubuntu-24.04) ;;
    *) fail "$1 missing; its packages are known for Debian 12/13 and Ubuntu 22.04/24.04, not for '$DISTRO'" "$2" ;;
  esac
}

installed() { [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == *' installed' ]]; }

# apt_install PACKAGE...: those that are missing; what is installed is not upgraded
apt_install() {
  local package missing=()
  for package; do installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  quietly as_root dpkg --configure -a || true # heals an install that was interrupted
  quietly as_root "${APT[@]}" update || say "some package lists could not be fetched; going on with the others"
  quietly as_root "${APT[@]}" install --no-install-recommends "${missing[@]}" ||
    fail "apt could not install: ${missing[*]}" "see apt's message above"
}

# borrow_from_trixie DIR: points apt at a copy of this machine's sources plus Debian 13, all of it in DIR.
# Debian 12 has no buildx. Only the engine's three packages may come from Debian 13; /etc/apt stays untouched.
borrow_from_trixie() {
  local dir=$1 file
  mkdir -p "$dir/sources" "$dir/lists/partial" "$dir/cache/archives/partial"
  for file in "$APT_DIR"/sources.list "$APT_DIR"/sources.list.d/*.{list,sources}; do
    [ -f "$file" ] || continue
    { cat "$file" && echo && as_trixie "$file"; } >"$dir/sources/$(basename "$file")"
  done
  printf 'Package: %s\nPin: release %s\nPin-Priority: %s\n\n' '*' n=trixie -1 \
    'docker.io docker-cli docker-buildx' o=Debian,n=trixie 990 >"$dir/preferences"
  chmod -R a+rX "$dir"
  APT+=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$dir/sources"
    -o "Dir::Etc::preferences=$dir/preferences" -o "Dir::State::Lists=$dir/lists" -o "Dir::Cache=$dir/cache")
}

# as_trixie FILE: its sources of bookworm, rewritten for trixie with the same mirror and keyring
as_trixie() {
  case $1 in
    *.list) sed -nE '/^deb .* bookworm .*main/s/ bookworm / trixie /p' "$1" ;;
    *) awk -v RS= -v ORS='\n\n' \
      '/(^|\n)Suites:[^\n]* bookworm( |\n|$)/ { sub(/Suites:[^\n]*/, "Suites: trixie"); print }' "$1" ;;
  esac
}

# usable PYTHON: new enough, and able to make a virtual environment. -I: no module comes from the working folder.
usable() {
  "$1" -I -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (${PYTHON_MIN/./,}))" 2>/dev/null
}

find_python() {
  local name
  for name in python3 python3.13 python3.12 python3.11; do
    usable "$name" && type -P "$name" && return
  done
  return 1
}

install_python() {
  local packages=(python3 python3-venv)
  require_distro "Python $PYTHON_MIN or newer with venv is" "install it by hand"
  [ "$DISTRO" != ubuntu-22.04 ] || packages=(python3.11 python3.11-venv) # its python3 is 3.10
  apt_install ca-certificates "${packages[@]}"
}

# What the environment was made from; when that changes, it is made again.
fingerprint() {
  { cat "$ROOT"/{requirements.lock,pyproject.toml} && "$VENV/bin/python" -V && echo "$ROOT"; } 2>/dev/null | sha256sum
}

# in_root COMMAND...: pip asks programs for their versions, and rustup's rustc is whatever a file in the folder, or in one
# above it, says that it is.
in_root() { (cd / && "$@"); }

# The stamp is written last, so that an interrupted call is done again from the start.
setup_python() {
  local python pip=("$VENV/bin/python" -I -m pip --no-input --disable-pip-version-check install -q --progress-bar off)
  [ ! -f "$STAMP" ] || [ "$(fingerprint)" != "$(cat "$STAMP")" ] || return 0
  python=$(find_python) || install_python
  python=$(find_python) || fail "no Python $PYTHON_MIN or newer can make a virtual environment" "install python3-venv"
  say "making .venv with $("$python" -V) and the locked requirements (half a minute)"
  TMPDIR=$TMP quietly in_root "$python" -I -m venv --clear "$VENV" || fail "could not make $VENV" "see Python's message above"
  quietly in_root "${pip[@]}" --require-hashes -r "$ROOT/requirements.lock" || fail "pip could not install requirements.lock" \
    "see pip's message above; behind a proxy set https_proxy, and PIP_CERT to your CA bundle if it inspects TLS"
  quietly in_root "${pip[@]}" --no-deps --no-build-isolation -e "$ROOT" || fail "pip could not install rocstack" "see above"
  fingerprint >"$STAMP"
}

engine_answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
buildx_answers() { docker buildx version >/dev/null 2>&1; }

# borrowing_install PACKAGE...: on Debian 12 the engine's packages come from Debian 13, for this call only
borrowing_install() {
  local APT=("${APT[@]}")
  [ "$DISTRO" != debian-12 ] || borrow_from_trixie "$TMP"
  apt_install ca-certificates "$@"
}

install_engine() {
  local packages=(docker.io docker-buildx iptables "${BOOTSTRAP[@]}")
  require_distro "a container engine is" "install Docker Engine 24 or newer with its buildx plugin by hand and start it"
  [[ $DISTRO == ubuntu-* ]] || packages+=(docker-cli)
  say "no container engine answers: taking it from the distribution's packages"
  borrowing_install "${packages[@]}"
}

install_buildx() {
  local package=docker-buildx
  ! installed docker-ce-cli || package=docker-buildx-plugin # Docker's own packages, which don't mix with others
  require_distro "docker's buildx plugin is" "install it by hand, until 'docker buildx version' answers"
  say "the engine answers but has no buildx: installing only this plugin"
  borrowing_install "$package"
}

# alive PIDFILE NAME: does the file name a process that runs and has this name?
alive() { [ "$(cat "/proc/$(cat "$1" 2>/dev/null)/comm" 2>/dev/null)" = "$2" ]; }

# After a reboot a pid file may name a stranger, and dockerd then refuses to start.
drop_stale_pid() { alive "$1" "$2" || as_root rm -f "$1"; }

# launch [PATH_PREFIX]: dockerd in its own session, with no handle on this terminal
launch() { as_root env "PATH=${1:+$1:}$PATH" setsid -f sh -c "exec dockerd >$ENGINE_LOG 2>&1 </dev/null"; }

# Without systemd it gives up early when dockerd has died; the second is for its pid file to appear.
wait_for_engine() {
  local deadline=$((SECONDS + ENGINE_WAIT))
  sleep 1
  until as_root docker version >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || return 1
    [ -d /run/systemd/system ] || alive /run/docker.pid dockerd || return 1
    sleep 0.3
  done
}

# Some kernels have no nf_tables: dockerd alone then gets the older iptables, the machine's choice stays.
launch_with_legacy_iptables() {
  local dir=/run/rocstack-iptables name
  grep -qsiE 'iptables|nf_tables' "$ENGINE_LOG" && type -P iptables-legacy >/dev/null || return 1
  say "dockerd failed with this machine's iptables: trying iptables-legacy"
  as_root mkdir -p "$dir"
  for name in iptables ip6tables; do as_root ln -sf "$(type -P $name-legacy)" "$dir/$name"; done
  launch "$dir"
}

start_engine() {
  if [ -d /run/systemd/system ]; then
    say "starting docker with systemd"
    [ -z "${https_proxy:-${HTTPS_PROXY:-}}" ] || say "note: docker.service does not see https_proxy, pulls may fail"
    as_root systemctl start docker || fail "systemd could not start docker" "journalctl -u docker"
  elif ! alive /run/docker.pid dockerd; then
    say "no systemd here: starting dockerd in the background, log in $ENGINE_LOG"
    drop_stale_pid /run/docker.pid dockerd
    # A killed engine leaves its bridge, with ports of containers that are gone and whose addresses would clash.
    ! type -P ip >/dev/null || as_root ip link delete docker0 2>/dev/null || true
    drop_stale_pid /run/docker/containerd/containerd.pid containerd
    launch
  fi
  wait_for_engine || { launch_with_legacy_iptables && wait_for_engine; } || {
    tail -n 15 "$ENGINE_LOG" >&2 || true
    fail "dockerd does not answer" "read its log: $ENGINE_LOG, or journalctl -u docker"
  }
}

# A user of sudo gets the engine too: by the group from the next login on, by the socket's access list until then.
grant_access() {
  say "giving $(id -un) access to the engine: group docker, which is as mighty as root"
  apt_install acl
  as_root usermod -aG docker "$(id -un)"
  as_root setfacl -m "u:$(id -u):rw" /run/docker.sock
}

setup_bootstrap() {
  type -P mmdebstrap newuidmap >/dev/null && [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] && return
  (require_distro "mmdebstrap is" "install ${BOOTSTRAP[*]} by hand" && apt_install "${BOOTSTRAP[@]}") ||
    say "going on without mmdebstrap: it is needed only where no registry answers"
}

# The service's tests share files by ACLs, as it does.
setup_acl() {
  type -P setfacl >/dev/null && return
  (require_distro "setfacl is" "install acl by hand" && apt_install acl) ||
    say "going on without setfacl: the service's tests are skipped"
}

setup_engine() {
  if ! engine_answers; then
    [ -z "${DOCKER_HOST:-}" ] || fail "no engine answers at DOCKER_HOST=$DOCKER_HOST" "start it, or unset DOCKER_HOST"
    [[ $(docker version 2>&1) != *'permission denied'* ]] ||
      fail "an engine runs here, but $(id -un) may not use it" "sudo usermod -aG docker $(id -un), then log in again"
    type -P docker dockerd >/dev/null || install_engine
    engine_answers || start_engine
    engine_answers || grant_access
  fi
  buildx_answers || install_buildx
  buildx_answers || fail "'docker buildx version' still fails" "see: docker buildx version"
  setup_bootstrap
  setup_acl
  say "engine $(docker version --format '{{.Server.Version}}'), $(docker buildx version | cut -d' ' -f1,2)"
}

main() {
  TMP=$(mktemp -d)
  trap 'rm -rf "$TMP" 2>/dev/null || as_root rm -rf "$TMP"' EXIT
  trap 'exit 130' INT TERM HUP
  case ${1:-all} in
    all) setup_python; setup_engine ;;
    python) setup_python ;;
    engine) setup_engine ;;
    -h | --help) echo "$USAGE" ;;
    *) echo "$USAGE" >&2; exit 2 ;;
  esac
}

[ "${BASH_SOURCE[0]}" != "$0" ] || main "$@" # tests source this file for its functions
