#!/usr/bin/env bash
# The main job on virtual nodes, each step the command that a person would type. Nothing here is real hardware.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
PATH=$PWD/.venv/bin:$PATH
export ROCSTACK_INVENTORY=.rocstack/local/inventory.yml
export ROCSTACK_STACK=${ROCSTACK_STACK:-debian-13}
# Nodes that the stack's image fits, and a third that it doesn't: the NIC's driver speaks another kernel ABI there.
case $ROCSTACK_STACK in
debian-13)
    kind="2 Broadcom Thor2 each, no GPU" model=epyc-thor2 nic=broadcom abi=6
    faults=(--fault "driver=900.0.56.1") # of the stand-in, which is made from this stack's rdma-core
    other="the kernel's own NIC driver (kernel ABI 1)" others=1
    ;;
rocm-7.2-debian)
    kind="8 MI300X and 8 AMD Pollara 400 each" model=mi300x-pollara nic=ainic abi=1
    faults=()
    other="the driver of AMD's bundle (kernel ABI 4)" others=4
    ;;
*) echo "demo: ROCSTACK_STACK is debian-13 (the default) or rocm-7.2-debian, not $ROCSTACK_STACK" >&2 && exit 2 ;;
esac
nodes=(--model "$model" --fault "abi=$abi" "${faults[@]}")
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

mkdir -p .rocstack/demo
cd .rocstack/demo
cat >rocstack.yml <<'END'
cluster:
  accounts: {research: {}}
  users:
    alice: {uid: 2000, accounts: [research]}
END
echo "Two virtual nodes: $kind. Their NIC driver speaks kernel ABI $abi."
run rocstack local up --nodes 2 "${nodes[@]}"
run rocstack probe "$ROCSTACK_INVENTORY" --out nodes.json

library=()
if [ "$nic" = broadcom ]; then
    say "Images whose NIC library fits them. It would come from Broadcom; a stand-in (900.*) is made from rdma-core's source."
    run python "$repository/tests/support/broadcom_standin.py" --kernel-abi "$abi" --bundle vendor
    library=(--nic-source vendor)
else
    say "Images whose NIC library fits them: rdma-core's own."
fi
run rocstack build --nic "$nic" --profiles nodes.json "${library[@]}"

say "On the nodes, as a Slurm cluster."
run rocstack deploy --nic "$nic"

say "Two nodes, four ranks, by MPI."
run rocstack shell n1 -- env OMPI_MCA_mpi_yield_when_idle=1 UCX_LOG_LEVEL=error srun --nodes=2 --ntasks-per-node=2 python3 -c "$hello"

say "Does it all hold? The acceptance suite, as an ordinary user of the cluster."
run rocstack verify --report report
run rocstack status

say "A training job of Alice's, under Slurm, and its curve."
run rocstack submit trainer --nodes 2 --tasks-per-node 2 --gpus-per-node 0 --set steps=8 --follow -- --output.curves=loss.svg
rocstack shell n1 -- cat /home/alice/loss.svg >loss.svg
run rocstack jobs

say "A third node, with $other: it is refused, and the other workers stay as they are."
run rocstack local up --nodes 3 "${nodes[@]}" --fault "n3:abi=$others"
must_refuse rocstack deploy --nic "$nic" --plan

run rocstack local down
printf '\nThis was all virtual; with real nodes the inventory is yours: docs/deploy.md\n'
printf '%s\n' "The report of the acceptance suite: .rocstack/demo/report/report.html" "The curve: .rocstack/demo/loss.svg"
