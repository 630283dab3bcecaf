"""How many nodes a job takes where nobody says it."""

import json
from typing import Any

import pytest

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.jobs import recipe as recipes
from rocstack.jobs.pools import Pool
from rocstack.jobs.recipe import JobRequest
from rocstack.size import models
from rocstack.steps import job_size

POOL = Pool("train", 16, "infinite", 8, True, "mi300x")
LLAMA_8B, LLAMA_405B = (json.dumps(models.load(f"llama-3.1-{size}").config).encode() for size in ("8b", "405b"))
GIVEN = {
    "maxtext": {"output": "/o", "model": "llama3.1-8b"},
    "finetune": {"model": "m", "data": "/d", "adapter": "/a"},
    "trainer": {"model": "/models/m"},
}


def choose(recipe: str, config: bytes = LLAMA_8B, pool: Pool = POOL, **more: Any) -> job_size.SizedRequest:
    asked: list[str] = []

    def read(path: str) -> bytes:
        asked.append(path)
        return config

    values = {**GIVEN[recipe], **more.pop("values", {})}
    request = JobRequest(values=values, folder="/home/alice", **more)
    found = job_size.by_size(recipes.find(recipe), request, pool, read)
    own = {"trainer": ["/models/m/config.json"], "finetune": ["/home/alice/m/config.json"]}
    assert asked in ([], own.get(recipe))
    return found


@pytest.mark.parametrize("recipe", sorted(GIVEN))
def test_a_small_job_gets_one_gpu_and_leaves_the_others(recipe: str) -> None:
    found = choose(recipe)
    assert (found.request.nodes, found.request.gpus_per_node, found.request.share) == (1, 1, True)
    assert found.why.startswith("1 GPU of one node, the fewest that fit: ")


def test_a_big_job_gets_nodes() -> None:
    found = choose("trainer", LLAMA_405B)
    assert (found.request.nodes, found.request.gpus_per_node, found.request.share) == (10, None, False)
    assert found.why.startswith("10 nodes of 8 GPUs, the fewest that fit: /models/m in shards of 80 needs ")
    assert choose("finetune", LLAMA_405B).request.nodes == 1  # adapters are small
    for more in ({"pool": Pool("train", 1, "infinite", 8, True, "mi300x")}, {"gpus_per_node": 1}):
        with pytest.raises(BadInput) as caught:
            choose("trainer", LLAMA_405B, **more)
        assert caught.value.code == "job-too-big"


@pytest.mark.parametrize("recipe", ["finetune", "trainer"])
def test_no_sequence_is_shared_by_what_cannot(recipe: str) -> None:
    """The trainer has no context parallelism, and MaxText isn't told of it."""
    word = "seq_len" if recipe == "finetune" else None
    values = {word: 131_072} if word else {}
    found = choose(recipe, values=values, arguments=() if word else ("--data.seq_len=131072",))
    assert "CP" not in found.why
    long = choose("maxtext", values={"model": "llama3.1-70b"}, arguments=("max_target_length=65536",))
    settings = dict(word.split("=") for word in long.request.arguments)
    assert long.request.nodes == 4
    assert (settings["ici_fsdp_parallelism"], settings["dcn_fsdp_parallelism"]) == ("8", "4")


def test_tasks_that_were_asked_for_share_no_gpu() -> None:
    found = choose("finetune", tasks_per_node=8)
    assert (found.request.nodes, found.request.gpus_per_node, found.request.share) == (1, None, False)


def test_maxtext_is_told_of_the_layout() -> None:
    found = choose("maxtext", values={"model": "llama3.1-405b"}, arguments=("max_target_length=8192", "lr=1"))
    assert found.request.nodes == 16
    settings = dict(word.split("=") for word in found.request.arguments)
    assert settings["ici_fsdp_parallelism"] == "8"
    assert settings["dcn_fsdp_parallelism"] == "16"
    assert settings["dcn_data_parallelism"] == settings["ici_data_parallelism"] == "1"
    assert "gradient_accumulation_steps" not in settings
    assert found.request.arguments[-2:] == ("max_target_length=8192", "lr=1")
    assert len(settings) == len(found.request.arguments)  # what is given isn't said twice
    batch = choose("maxtext", values={"batch": "64"}, gpus_per_node=8)
    settings = dict(word.split("=") for word in batch.request.arguments)
    assert batch.request.gpus_per_node == 8
    assert 8 * int(settings["per_device_batch_size"]) * int(settings.get("gradient_accumulation_steps", 1)) == 64
    script = recipes.script(recipes.find("maxtext"), batch.request)
    assert script.count("per_device_batch_size=") == 1
    assert "per_device_batch_size=4.0" in recipes.script(
        recipes.find("maxtext"), JobRequest(nodes=2, gpus_per_node=8, values={"output": "/o", "batch": "64"})
    )


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("trainer", {"nodes": 3}),
        ("trainer", {"gpus_per_node": 0}),
        ("trainer", {"pool": Pool("cpu", 4, "infinite", 0, True)}),
        ("trainer", {"values": {"model": None}}),
    ],
)
def test_what_is_given_wins_and_without_gpus_nothing_is_sized(recipe: str, more: dict[str, Any]) -> None:
    if (values := more.get("values")) is not None:
        asked = JobRequest()
        assert job_size.by_size(recipes.find(recipe), asked, POOL, lambda path: b"").why == ""
        assert values == {"model": None}
        return
    found = choose(recipe, **more)
    assert found.why == ""
    assert found.request.nodes == more.get("nodes")


@pytest.mark.parametrize(
    ("recipe", "more", "why"),
    [
        ("maxtext", {"values": {"model": "gpt-9"}}, "no model 'gpt-9'"),
        ("maxtext", {"arguments": ("ici_fsdp_parallelism=8",)}, "layout is that of ici_fsdp"),
        ("maxtext", {"values": {"config": "/my.yml"}}, "layout is that of /my.yml"),
        ("trainer", {"arguments": ("--parallel.shard=8",)}, "layout is that of --parallel.shard=8"),
        ("trainer", {"config": b'{"model_type": "zzz"}'}, "the model type 'zzz' is unknown"),
        ("trainer", {"config": b"\xff\xfe{"}, "can't be read as JSON"),
        ("trainer", {"pool": Pool("train", 4, "infinite", 8, True)}, "which GPUs they are"),
        ("trainer", {"pool": Pool("train", 4, "infinite", 8, True, "mi999")}, "mi999"),
    ],
)
def test_what_size_does_not_know_runs_as_the_recipe_has_it(recipe: str, more: dict[str, Any], why: str) -> None:
    found = choose(recipe, **more)
    assert found.request.nodes is None
    nodes = recipes.find(recipe).job.nodes
    assert found.why.startswith(f"{nodes} node{'s' * (nodes > 1)}, as the recipe has it: ")
    assert why in found.why


def test_a_folder_that_is_not_there() -> None:
    def read(path: str) -> bytes:
        raise CheckFailed.of("no-file-there", path=path, node="n1", user="ann")

    request = JobRequest(values=GIVEN["trainer"])
    found = job_size.by_size(recipes.find("trainer"), request, POOL, read)
    assert found.why == "1 node, as the recipe has it: ann can't read /models/m/config.json on n1"
