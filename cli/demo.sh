#!/usr/bin/env bash
# The main job on virtual nodes, each step the command that a person would type. Nothing here is real hardware.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
work=.rocstack/demo
inventory=.rocstack/local/inventory.yml
image=${ROCSTACK_IMAGE_PREFIX:-rocstack}/worker:debian-13-broadcom

run() { printf '\n$ %s\n' "$*"; "$@"; }
trap 'rocstack local down >/dev/null 2>&1 || true' EXIT

mkdir -p "$work"
echo "Two virtual nodes: 8 MI300X and 8 Broadcom Thor2 each, whose NIC driver speaks kernel ABI 6."
echo "The library that fits them would come from Broadcom; a stand-in (version 900.*) is made from rdma-core's source."
run rocstack local up --nodes 2 --model mi300x-thor2 --fault abi=6 --fault driver=900.0.56.1
run rocstack probe "$inventory" --out "$work/nodes.json"
run python tests/support/standin.py --kernel-abi 6 --bundle "$work/vendor"
run rocstack build --nic broadcom --profiles "$work/nodes.json" --nic-source "$work/vendor"
run rocstack demo --nic broadcom
echo
echo "The same image, and a third virtual node with the kernel's own NIC driver (kernel ABI 1): it must be refused."
run rocstack local up --nodes 3 --model mi300x-thor2 --fault abi=6 --fault driver=900.0.56.1 --fault n3:abi=1
code=0
run rocstack explain --image "$image" --inventory "$inventory" || code=$?
if [ "$code" -ne 1 ]; then
    echo "demo: a node with another kernel ABI was not refused (exit status $code)" >&2
    exit 1
fi
run rocstack local down
printf '\nThis was all virtual; with real nodes the inventory is yours: docs/nic.md\n'
