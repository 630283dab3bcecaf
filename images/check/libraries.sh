# Every ELF file of the image finds every library it names; the loader itself is the judge.
find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp \) -prune -o -type f -size +0 \
    \( -name '*.so' -o -name '*.so.*' -o -perm /111 \) -print0 | LC_ALL=C sort -z >files
if [ -d /run/rocstack/base ]; then
    # What the base had is its own affair; it lies beside, as it was.
    while IFS= read -r -d '' file; do [ -e "/run/rocstack/base$file" ] || printf '%s\0' "$file"; done <files >ours
    mv ours files
fi
if [ -n "${ROCSTACK_SMOKE_NEW-}" ]; then # the others were judged below the NIC's layer
    LC_ALL=C comm -z -12 files "$ROCSTACK_SMOKE_NEW" >ours
    mv ours files
fi
xargs -0r grep -lE --max-count=1 '^.ELF' <files >elf || true
# The loader by itself: ldd starts two of them and a shell for each file, which takes six times as long.
loader=$(ldd /bin/true | awk '$1 ~ "/ld-" {print $1}')
[ -x "$loader" ] || fail "ldd names no loader"
# shellcheck disable=SC2016 # the inner shell's
xargs -rd '\n' -n 60 -P 2 sh -c 'for file; do echo "$file:" && LD_TRACE_LOADED_OBJECTS=1 "$0" "$file" || true; done >"list.$$" 2>/dev/null' "$loader" <elf
touch list.none
[ "$(cat list.* | grep -c '^/.*:$')" = "$(wc -l <elf)" ] || fail "not every ELF file was read"
# A private library beside the file is found through the rpath of the program that loads both.
awk '/^\// {file = substr($1, 1, length($1) - 1)} /not found/ {print file, $1}' list.* | sort -u |
    while read -r file library; do [ -e "${file%/*}/$library" ] || echo "$file: $library is not in the image"; done >missing
if [ -s missing ]; then
    cat missing
    fail "ELF files with libraries that are not in the image"
fi
if [ -z "${ROCSTACK_SMOKE_NEW-}" ] || [ -s elf ]; then
    ok "$(wc -l <elf)${ROCSTACK_SMOKE_NEW:+ more} ELF files resolve"
fi
