#!/bin/sh
# The picture of the report in verify.md, from a run's folder: docs/report-png.sh .rocstack/verify/TIME
set -eu
browser=$(command -v chromium || command -v chromium-headless-shell || command -v chromium-browser || command -v google-chrome)
"$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --window-size=1100,1500 \
  --screenshot="$(dirname "$0")/report.png" "file://$(cd "$1" && pwd)/report.html"
