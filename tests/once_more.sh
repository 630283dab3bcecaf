#!/usr/bin/env bash
# Runs a pytest command. What failed, on a machine with much else to do, runs once more alone, and is named if it passes
# then: mend such a test. More than five failures are no accident, and aren't tried again.
set -euo pipefail
code=0
"$@" || code=$?
[ "$code" = 1 ] || exit "$code"
again=("$@" -n 0 --last-failed --last-failed-no-failures=none)
failed=$("${again[@]}" --collect-only --verbosity=-1 2>/dev/null | grep '::') || exit 1
[ "$(wc -l <<<"$failed")" -le 5 ] || exit 1
printf '\nonce more, alone:\n%s\n\n' "$failed"
"${again[@]}"
printf '\nflaky: failed, then passed alone:\n%s\n' "$failed"
