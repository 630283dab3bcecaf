"""The options of what runs on this host or under Slurm, and of its size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rocstack.steps.options import ClusterInventory, Flag, Inventory, Nic, Overlay, Stack

TRAIN = "rocstack-train"
SERVE = "rocstack-serve"
MOST = 1 << 22  # GPUs, tokens or sequences: beyond every cluster and batch


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    image: Annotated[str | None, Flag("Image to run; default: the one built here for --stack and --nic.")] = None
    role: Annotated[str, Flag("Role of that image: worker or control.")] = "worker"
    stack: Stack = None
    nic: Nic = None
    gpus: Annotated[str, Flag("GPUs to give: all, none, or numbers such as 0,2-3.")] = "all"
    mount: Annotated[tuple[str, ...], Flag("Mount SRC[:DST[:ro]]; may be repeated.")] = ()
    env: Annotated[tuple[str, ...], Flag("Set NAME or NAME=VALUE; the value never reaches the process list.")] = ()
    name: Annotated[str | None, Flag("Name of the container.")] = None


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    image: Annotated[str | None, Flag("Image to export; default: the one built here for --stack and --nic.")] = None
    role: Annotated[str, Flag("Role of that image: worker or control.")] = "worker"
    stack: Stack = None
    nic: Nic = None
    format: Annotated[
        str,
        Flag(
            "squashfs: a file for enroot and pyxis; oci: a folder for podman, skopeo, umoci and `srun --container`; "
            "sif: a file for Apptainer, which writes it."
        ),
    ] = "squashfs"
    out: Annotated[Path | None, Flag("File or folder to make; default: the image's name.", ("-o", "--out"))] = None


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    model: Annotated[Path, Flag("Folder of the model, with its weights as safetensors.", argument=True)]
    adapters: Annotated[
        tuple[Path, ...], Flag("Folder of adapters DIR/NAME that everybody may use; may be repeated.", metavar="DIR")
    ] = ()
    user_adapters: Annotated[
        tuple[Path, ...],
        Flag("Folder of adapters DIR/USER/adapters/NAME, each user's own; may be repeated.", metavar="DIR"),
    ] = ()
    repository: Annotated[
        tuple[str, ...],
        Flag("Repository of an OCI registry whose tags are adapters for everybody; may be repeated.", metavar="URL"),
    ] = ()
    repository_login: Annotated[Path | None, Flag("File with USER:PASSWORD for it.", metavar="FILE")] = None
    repository_ca: Annotated[Path | None, Flag("CA of its certificate (PEM).", metavar="FILE")] = None
    name: Annotated[str | None, Flag("Name of the model in requests; default: the folder's.")] = None
    also: Annotated[
        tuple[str, ...], Flag("Another name that adapters call the model by; may be repeated.", metavar="NAME")
    ] = ()
    listen: Annotated[str, Flag("Address and port.", metavar="HOST:PORT")] = "127.0.0.1:8000"
    tokens: Annotated[
        Path | None, Flag("File of users and the sha256 of their tokens; needed beyond loopback.", metavar="FILE")
    ] = None
    people: Annotated[
        str | None, Flag("Address of rocstack's service, which knows people by their Slurm tokens.", metavar="URL")
    ] = None
    people_ca: Annotated[Path | None, Flag("CA of the service's certificate (PEM).", metavar="FILE")] = None
    certificate: Annotated[Path | None, Flag("TLS certificate (PEM); needed beyond loopback.", metavar="FILE")] = None
    key: Annotated[Path | None, Flag("Its private key (PEM).", metavar="FILE")] = None
    max_rank: Annotated[int, Flag("Highest rank of an adapter.")] = 64
    active: Annotated[int, Flag("Adapters that one batch may mix.", least=1)] = 8
    resident: Annotated[int, Flag("Adapters that stay loaded.", least=1)] = 32
    cache: Annotated[int | None, Flag("On processors: GiB for keys and values.", least=1)] = None
    here: Annotated[bool, Flag("Use this machine's own vLLM instead of an image.")] = False
    image: Annotated[str | None, Flag("Image with vLLM; default: the one built here of --stack.")] = None
    stack: Annotated[str | None, Flag("Stack of that image.", show_default=False)] = None
    nic: Nic = None
    gpus: Annotated[str, Flag("GPUs to give: all, none, or numbers such as 0,2-3.")] = "all"
    container: Annotated[str | None, Flag("Name of the container.", metavar="NAME")] = None
    replicas: Annotated[
        int | None, Flag("Start so many on the cluster instead, as jobs of its service.", metavar="N", least=1)
    ] = None
    node: Annotated[
        tuple[str, ...],
        Flag("Start one on this node of the cluster, in the same way; may be repeated.", metavar="NAME"),
    ] = ()
    inventory: ClusterInventory = None
    user: Annotated[str | None, Flag("Whose jobs they are; default: you, or the cluster's only user.")] = None
    time: Annotated[str | None, Flag("Time limit of the jobs: 90m, 12h, 7d; default: the partition's.")] = None
    partition: Annotated[str | None, Flag("Partition of the jobs; default: the cluster's default one.")] = None


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    inventory: ClusterInventory = None


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(JobOptions):
    """How a recipe is run, wherever its number of nodes comes from."""

    overlay: Overlay = None
    gpus_per_node: Annotated[int | None, Flag("GPUs of each node; default: all.", least=0)] = None
    tasks_per_node: Annotated[int | None, Flag("Tasks of each node; default: the recipe's.", least=1)] = None
    set: Annotated[
        tuple[str, ...], Flag("Set a parameter of the recipe; may be repeated.", ("--set",), "NAME=VALUE")
    ] = ()
    time: Annotated[str | None, Flag("Time limit: 90m, 12h, 7d; default: the recipe's, else the partition's.")] = None
    partition: Annotated[str | None, Flag("Partition; default: the cluster's default one.")] = None
    account: Annotated[str | None, Flag("Account; default: the user's default one.")] = None
    qos: Annotated[str | None, Flag("Quality of service; default: the account's.")] = None
    folder: Annotated[
        Path | None, Flag("Folder in which the job runs and its log is written; default: the user's home folder.")
    ] = None
    user: Annotated[str | None, Flag("Whose job it is; default: you, or the cluster's only user.")] = None


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(RecipeOptions):
    nodes: Annotated[
        int | None,
        Flag("Number of nodes; default: by `size`, where the recipe names a model, else the recipe's.", least=1),
    ] = None
    name: Annotated[str | None, Flag("Name of the job; default: the recipe's name.")] = None
    share: Annotated[bool, Flag("Let other jobs run on the same nodes.")] = False
    preflight: Annotated[bool, Flag("Try the nodes before the job starts, and leave out those that fail.")] = False
    spare: Annotated[int, Flag("Nodes to ask for beyond --nodes, in place of those left out.", least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(RecipeOptions):
    nodes: Annotated[str, Flag("Numbers of nodes, one job each.", metavar="1,2,4")]
    weak: Annotated[bool, Flag("Let the batch grow with the nodes; the one given is the first job's.")] = False
    strong: Annotated[bool, Flag("Keep the batch.")] = False


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    inventory: Inventory = None
    user: Annotated[str | None, Flag("Whose token it is; default: you, or the cluster's only user.")] = None
    lifespan: Annotated[str, Flag("How long it is good for: 30m, 8h, 7d; at most 90d.")] = "8h"


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """What of a layout is None is chosen: what fits, and of that the fastest."""

    model: Annotated[
        str,
        Flag(
            "Model: llama-3.1-70b, mixtral-8x7b, ..., or the path of a Hugging Face config.json.",
            argument=True,
            completes="trained",
        ),
    ]
    gpu: Annotated[str, Flag("Kind of GPU: mi300x, mi250x (a die of it), mi355x, ...")] = "mi300x"
    nodes: Annotated[int | None, Flag("Number of nodes; default: the fewest that fit.", least=1, most=65536)] = None
    gpus_per_node: Annotated[int | None, Flag("GPUs of a node; default: a whole board.", least=1, most=64)] = None
    network: Annotated[
        str | None, Flag("NICs of a node and Gb/s of each; default: those of AMD's servers.", metavar="8x400")
    ] = None
    seq: Annotated[
        int | None, Flag("Tokens of a sequence; default: 8192, or what the model has.", least=1, most=MOST)
    ] = None
    batch: Annotated[int | None, Flag("Sequences of a step; default: about a million tokens.", least=1, most=MOST)] = (
        None
    )
    method: Annotated[str, Flag("What is trained: full, or lora.")] = "full"
    rank: Annotated[int | None, Flag("Rank of the adapters, with --method lora; default: 16.", least=1, most=4096)] = (
        None
    )
    tp: Annotated[int | None, Flag("Tensor parallelism: GPUs that share each layer.", least=1, most=MOST)] = None
    cp: Annotated[int | None, Flag("Context parallelism: GPUs that share each sequence.", least=1, most=MOST)] = None
    pp: Annotated[int | None, Flag("Pipeline parallelism: stages of layers.", least=1, most=MOST)] = None
    dp: Annotated[int | None, Flag("Data parallelism: ranks with data of their own.", least=1, most=MOST)] = None
    shard: Annotated[
        int | None,
        Flag("Ranks that share one copy of the model (FSDP); 1: the optimizer's states alone.", least=1, most=MOST),
    ] = None
    ep: Annotated[int | None, Flag("Expert parallelism: ranks that share the experts.", least=1, most=MOST)] = None
    micro_batch: Annotated[int | None, Flag("Sequences of a micro-batch.", least=1, most=MOST)] = None
    accumulate: Annotated[int | None, Flag("Micro-batches of a step.", least=1, most=MOST)] = None
    interleave: Annotated[int | None, Flag("Chunks of layers of each pipeline stage.", least=1, most=MOST)] = None
    recompute: Annotated[str, Flag("Activations that backward computes again: auto, none or layers.")] = "auto"
    compile: Annotated[bool, Flag("Compile MaxText's train step for these GPUs, too.")] = False
    search: Annotated[
        bool, Flag("With --compile: compile the 20 layouts that are best by formula, and order them.")
    ] = False
    image: Annotated[
        str | None, Flag("With --compile: image with MaxText; default: the one built here of maxtext-rocm-7.2.")
    ] = None
