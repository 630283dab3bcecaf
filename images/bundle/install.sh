#!/bin/sh
# The first member of a bundle: sets up rocstack from it, on a machine that needs no network and has no Python.
# rocstack fills in what stands between @ signs.
set -eu
umask 022

RELEASE=@RELEASE@
CREATED=@CREATED@
ARCHITECTURE=@ARCHITECTURE@
GLIBC=@GLIBC@ # the oldest that its programs run with
KIT=@KIT@     # names what is set up: the same for the same Python and wheels
PYTHON=@PYTHON@
SINCE=@SINCE@
USAGE="usage: ./install FILE [--to DIR] [--rocstack-only] [OPTIONS of rocstack bundle install]
  FILE             the bundle that this script is in
  --to DIR         folder to set up rocstack in; default: /opt/rocstack
  --rocstack-only  set up rocstack, and load no images
  --downgrade      also where a newer release was set up
All else is passed on, such as --key release.pub or --to-registry HOST:PORT."

# sha256 and path of each part
parts() {
  cat <<'END'
@PARTS@
END
}

say() { printf 'install: %s\n' "$*"; }

# fail MESSAGE NEXT_STEP [CODE]
fail() {
  printf 'install: error: %s\n  next: %s\n' "$1" "$2" >&2
  exit "${3:-1}"
}

to=/opt/rocstack file='' only='' downgrade='' left=$#
while [ "$left" -gt 0 ]; do
  case $1 in
    -h | --help) echo "$USAGE"; exit 0 ;;
    --to) [ "$left" -gt 1 ] || fail "--to needs a folder" "see --help" 2
          to=$2; shift 2; left=$((left - 2)); continue ;;
    --to=*) to=${1#--to=} ;;
    --rocstack-only) only=yes ;;
    --downgrade) downgrade=yes; set -- "$@" "$1" ;;
    -*) set -- "$@" "$1" ;;
    *) if [ -z "$file" ]; then file=$1; else set -- "$@" "$1"; fi ;;
  esac
  shift
  left=$((left - 1))
done
[ -n "$file" ] || { echo "$USAGE" >&2; exit 2; }
[ -f "$file" ] && [ -r "$file" ] || fail "$file can't be read" "name the bundle itself" 2
case $file in /*) ;; *) file=$PWD/$file ;; esac
case $to in /*) ;; *) to=$PWD/$to ;; esac
case $to in *[!A-Za-z0-9/._+-]*) fail "$to has other characters than letters, digits and ._+-" "choose another --to" 2 ;; esac

# Does it fit this machine?
[ "$(uname -s) $(uname -m)" = "Linux $ARCHITECTURE" ] ||
  fail "this bundle is for Linux on $ARCHITECTURE; this machine is $(uname -s) on $(uname -m)" \
    "make one with 'rocstack bundle' on a machine of this kind"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || glibc='no glibc'
older=$(printf '%s\n%s\n' "$GLIBC" "${glibc#glibc }" | sort -V | head -n 1)
[ "$glibc" != 'no glibc' ] && [ "$older" = "$GLIBC" ] ||
  fail "this bundle's Python needs glibc $GLIBC or newer; this machine has $glibc" \
    "make the bundle with 'rocstack bundle' on a machine with this system, or install on a newer one"
for tool in tar gzip sha256sum mktemp flock; do
  command -v "$tool" >/dev/null || fail "there is no $tool here" "install it from this system's own packages" 3
done

mkdir -p "$to/parts" "$to/versions" "$to/bin" 2>/dev/null ||
  fail "$to can't be made" "run it as root, or choose a folder with --to" 3
exec 9>"$to/.lock" || fail "$to can't be written" "run it as root, or choose a folder with --to" 3
flock -n 9 || fail "another install runs in $to" "wait for it"

before=$(cat "$to/.created" 2>/dev/null) || before=''
[ -n "$downgrade" ] || [ "$(printf '%s\n%s\n' "$before" "$CREATED" | LC_ALL=C sort | tail -n 1)" = "$CREATED" ] ||
  fail "this bundle's release $RELEASE is of $CREATED; a newer one, of $before, was set up in $to" \
    "take the newer bundle, or add --downgrade"

version=$to/versions/$KIT
fresh=$(mktemp -d "$to/.new-XXXXXX")
half=$fresh
# shellcheck disable=SC2086  # one or two words
trap 'rm -rf $half' EXIT
trap 'exit 130' INT TERM HUP

sound() { [ "$(sha256sum <"$1" 2>/dev/null)" = "$2  -" ]; }

# fetch: those of the parts that aren't there; a delta leaves out what the earlier bundle brought
fetch() {
  parts | while read -r sum path; do
    if [ -f "$to/parts/$sum" ] && sound "$to/parts/$sum" "$sum"; then continue; fi
    echo "$path"
  done >"$fresh/wanted"
  [ -s "$fresh/wanted" ] || return 0
  size=$(wc -c <"$file")
  say "taking $(wc -l <"$fresh/wanted") parts of rocstack out of $file ($((size / 1000000)) MB)"
  tar -xf "$file" -C "$fresh" --no-same-owner --no-same-permissions -T "$fresh/wanted" 2>"$fresh/log" || {
    if grep -q 'No space left' "$fresh/log"; then
      fail "$to is full: $(df -Pk "$to" | awk 'NR == 2 { print int($4 / 1000) }') MB are free" \
        "free 500 MB there, or choose another folder with --to" 3
    fi
    [ -z "$SINCE" ] || fail "this bundle leaves out parts of rocstack that the bundle of release $SINCE has" \
      "install that bundle in $to first"
    fail "$file is damaged: $(tail -n 1 "$fresh/log")" "copy it again, and compare its sha256"
  }
  parts | while read -r sum path; do
    [ -f "$fresh/$path" ] || continue
    sound "$fresh/$path" "$sum" || fail "$path in $file isn't what this script was made with" "copy it again"
    mv -f "$fresh/$path" "$to/parts/$sum"
  done
}

# placed: each part of rocstack where pip looks for it
placed() {
  parts | while read -r sum path; do
    case $path in
      python.tar.gz) tar -xzf "$to/parts/$sum" -C "$version" --no-same-owner ;;
      *.whl) ln "$to/parts/$sum" "$fresh/$path" 2>/dev/null || cp "$to/parts/$sum" "$fresh/$path" ;;
      *) cp "$to/parts/$sum" "$fresh/$path" ;;
    esac || exit 1
  done
}

# compiled: by all processors, or by one where there is no /dev/shm
compiled() { "$python" -I -m compileall -q -j 0 "$1" || "$python" -I -m compileall -q "$1"; }

# set_up: made where it stays, since programs name their Python by its path. Compiled, for users who can't write there,
# which pip does by one processor. A wheel may have files for other Pythons: they are no failure.
set_up() {
  rm -rf "$version" && mkdir -p "$version" "$fresh/wheels" && placed &&
    python=$version/python/bin/$PYTHON && pip=$(ls "$fresh"/wheels/pip-[0-9]*.whl)/pip &&
    "$python" -I -m venv --without-pip "$version/env" &&
    "$version/env/bin/python" -I "$pip" --isolated --disable-pip-version-check install --quiet --no-index \
      --no-cache-dir --no-compile --no-deps --root-user-action=ignore --no-warn-script-location --find-links "$fresh/wheels" \
      --require-hashes -r "$fresh/requirements.txt" &&
    compiled "$version/python/lib" && { compiled "$version/env/lib" || true; } &&
    "$version/env/bin/rocstack" --version && : >"$version/.complete"
}

fetch
if [ -f "$version/.complete" ] && "$version/env/bin/rocstack" --version >/dev/null 2>&1; then
  say "rocstack is set up in $to already"
else
  say "setting up rocstack and its Python in $to (a minute)"
  half="$fresh $version"
  # pip asks programs for their versions: rustup's rustc is whatever a file here says.
  (cd / && set_up) >"$fresh/log" 2>&1 || {
    tail -n 5 "$fresh/log" >&2
    fail "rocstack could not be set up; $(df -Pk "$to" | awk 'NR == 2 { print int($4 / 1000) }') MB are free in $to" \
      "see the message above; rocstack takes about 400 MB" 3
  }
  half=$fresh
fi
ln -sfn "versions/$KIT" "$fresh/current"
mv -fT "$fresh/current" "$to/current"
echo "$CREATED" >"$fresh/created"
mv -f "$fresh/created" "$to/.created"
ln -sfn ../current/env/bin/rocstack "$fresh/rocstack"
mv -fT "$fresh/rocstack" "$to/bin/rocstack"
say "$("$to/bin/rocstack" --version) is in $to/bin (release $RELEASE); add that folder to PATH"
[ -z "$only" ] || exit 0
rm -rf "$fresh"
exec 9>&-
exec "$to/bin/rocstack" bundle install "$file" "$@" </dev/null
