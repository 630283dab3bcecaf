#!/usr/bin/env bash
# The main job on virtual nodes, each step the command that a person would type. Nothing here is real hardware.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
work=.rocstack/demo
export ROCSTACK_INVENTORY=.rocstack/local/inventory.yml
export ROCSTACK_REHEARSAL=1 # the default stack has no code for the GPUs that these nodes only seem to have
hello='from mpi4py import MPI; w = MPI.COMM_WORLD
print(f"rank {w.rank} of {w.size} on {MPI.Get_processor_name()}: the ranks add up to {w.allreduce(w.rank)}")'

say() { printf '\n%s\n' "$*"; }
run() { printf '\n$ %s\n' "$*"; "$@"; }
must_refuse() { # a command that must end with 1
    local code=0
    run "$@" || code=$?
    [ "$code" -eq 1 ] || { echo "demo: this was to be refused (exit status $code)" >&2 && exit 1; }
}
trap 'rocstack local down >/dev/null 2>&1 || true' EXIT

mkdir -p "$work"
echo "Two virtual nodes: 8 MI300X and 8 Broadcom Thor2 each, whose NIC driver speaks kernel ABI 6."
run rocstack local up --nodes 2 --model mi300x-thor2 --fault abi=6 --fault driver=900.0.56.1
run rocstack probe "$ROCSTACK_INVENTORY" --out "$work/nodes.json"

say "Images whose NIC library fits them. It would come from Broadcom; a stand-in (900.*) is made from rdma-core's source."
run python tests/support/broadcom_standin.py --kernel-abi 6 --bundle "$work/vendor"
run rocstack build --nic broadcom --profiles "$work/nodes.json" --nic-source "$work/vendor"

say "On the nodes, as a Slurm cluster."
run rocstack deploy --nic broadcom
run rocstack status

say "Two nodes, four ranks: MPI, then the trainer."
run rocstack shell n1 -- env OMPI_MCA_mpi_yield_when_idle=1 UCX_LOG_LEVEL=error srun --nodes=2 --ntasks-per-node=2 python3 -c "$hello"
run rocstack shell n1 -- srun --nodes=2 --ntasks-per-node=2 rocstack-train --config tiny --steps 8

say "Does it all hold? The acceptance suite, as an ordinary user of the cluster."
run rocstack verify --report "$work/report"

say "A third node, with the kernel's own NIC driver (kernel ABI 1): it is refused, and the others stay as they are."
run rocstack local up --nodes 3 --model mi300x-thor2 --fault abi=6 --fault driver=900.0.56.1 --fault n3:abi=1
must_refuse rocstack deploy --nic broadcom --plan

run rocstack local down
printf '\nThis was all virtual; with real nodes the inventory is yours: docs/deploy.md\nThe report of the acceptance suite: %s\n' "$work/report/report.html"
