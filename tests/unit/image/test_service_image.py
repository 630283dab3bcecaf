"""The service's image: of its own context, so that no other image is another because of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_run import Cli

from rocstack.base.errors import BadInput
from rocstack.cluster.service import SERVICE_UID
from rocstack.deploy.plan import checks_image
from rocstack.image.context import BuildContext
from rocstack.settings.settings import Settings
from rocstack.stack import lock, stack
from rocstack.steps.image_plan import ImagePlan, join, plan_image
from rocstack.steps.options import BuildOptions

SITE = "usr/local/lib/python3.13/dist-packages/rocstack"


def planned(**settings: str) -> ImagePlan:
    return plan_image(BuildOptions(role="service"), Settings.model_validate(settings), lambda note: None)


@pytest.fixture(scope="module")
def context() -> BuildContext:
    return planned().render()


def test_the_default_images_know_nothing_of_it(default_context: BuildContext) -> None:
    """Neither its files nor its lock are of what they are known by."""
    paths = [path for path in default_context.files if "service/" in path or path.startswith("package/")]
    assert {path.rpartition("/")[0] for path in paths} == {
        f"rootfs/{role}/usr/local/lib/rocstack/service" for role in ("common", "control", "worker")
    }
    assert str(SERVICE_UID) not in default_context.files["Dockerfile"].data.decode()
    own = lock.read(lock.shipped(stack.load("debian-13")))
    without = own.model_copy(update={"further": {}})
    assert own.digest() == without.digest()
    assert own.to_text().startswith(without.to_text()[:20])


def test_it_has_nothing_of_the_others(context: BuildContext) -> None:
    roots = {path.split("/")[1] for path in context.files if path.startswith(("rootfs/", "smoke/"))}
    assert roots == {"service"}
    dockerfile = context.files["Dockerfile"].data.decode()
    assert re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)[-1] == "service"
    assert "slurmctld" not in dockerfile
    assert "nic-" not in dockerfile


def test_it_says_what_a_deploy_asks_of_it(context: BuildContext) -> None:
    """And by no label that a container of ours is known by: whatever runs from the image has the image's, too."""
    facts = re.findall(r"^fact (.*)$", context.files["smoke/service/01-service.sh"].data.decode(), re.MULTILINE)
    assert facts == [f"interface {checks_image.INTERFACE}"]


def test_it_is_not_root_and_has_the_package_as_its_last_large_layer(context: BuildContext) -> None:
    dockerfile = context.files["Dockerfile"].data.decode()
    assert f"\nUSER {SERVICE_UID}:{SERVICE_UID}\n" in dockerfile
    assert dockerfile.index("python3-fastapi") < dockerfile.index("COPY package/ /")
    assert "apt-install" not in dockerfile[dockerfile.index("COPY package/ /") : dockerfile.index("AS smoke-service")]
    for script in ("rocstack-service", "rocstack-service-health"):
        assert context.files[f"rootfs/service/usr/local/bin/{script}"].mode == 0o755


def test_the_package_is_as_a_wheel_has_it(context: BuildContext) -> None:
    files = {path.removeprefix(f"package/{SITE}/") for path in context.files if path.startswith("package/")}
    assert {"__init__.py", "py.typed", "cli/main.py", "service/__main__.py"} <= files
    assert {"data/images/sizing.yml", "data/templates/Dockerfile.j2", "data/requirements.lock"} <= files
    assert {"data/playbooks/start.yml", "data/tests/cluster/conftest.py"} <= files
    assert not [path for path in files if "__pycache__" in path or path.endswith(".pyc")]


@pytest.mark.parametrize("name", ["rocm-7.2-ubuntu-24.04", "rocm-7.2-debian", "rocm-pytorch"])
def test_a_stack_without_one_takes_ours(name: str) -> None:
    said: list[str] = []
    own = Settings.model_validate({"stack": name})
    plan = plan_image(BuildOptions(role="service"), own, said.append)
    assert said == [f"stack {name} has no service image of its own, so it is the one of debian-13"]
    assert plan.render() == planned().render()
    assert own.image_name("service") == "rocstack/service:debian-13-tcp"
    assert own.image_name("control") == f"rocstack/control:{name}-tcp"


def test_a_stack_of_ones_own_may_have_one(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    text = stack.names()["debian-13"].read_text()
    (tmp_path / "stacks/mine.yml").write_text(text)
    chosen = Settings.model_validate({"stack": "mine", "overlay": str(tmp_path)})
    assert chosen.image_name("service") == "rocstack/service:mine-tcp"
    (tmp_path / "overlay.yml").write_text("service_packages_append: [python3-ldap]\nucx_packages_append: [ucx-utils]\n")
    dockerfile = join(chosen, role="service").render().files["Dockerfile"].data.decode()
    assert "python3-ldap" in dockerfile
    assert "ucx" not in dockerfile
    assert "python3-ldap" not in join(chosen).render().files["Dockerfile"].data.decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("further:\n  srvice:\n", "srvice"),
        ("further:\n  worker: {layers: [[system]], disk_mb: 1}\n", "'worker' is no further image"),
        ("further:\n  service: {layers: [[systme]], disk_mb: 1}\n", "did you mean 'system'?"),
        (
            "further:\n  service:\n    components: {ucx: {method: apt, version: '1'}}\n",
            "a component of the stack already",
        ),
        ("further:\n  service:\n    components: {service: {method: apt, version: '1'}}\n", "no layer holds 'service'"),
    ],
)
def test_what_is_wrong_with_one(text: str, says: str, tmp_path: Path) -> None:
    own = stack.names()["debian-13"].read_text()
    before, _, rest = own.partition("further:\n")
    if "layers" not in text and "components" in text:
        text += "    layers: [[system]]\n    disk_mb: 1\n"
    file = tmp_path / "mine.yml"
    file.write_text(before + text + rest[rest.index("\nwheels:") :])
    with pytest.raises(BadInput) as refused:
        stack.load(str(file))
    assert says in refused.value.what
    assert str(refused.value.where).startswith(str(file))


def test_its_lock_is_one_part_of_the_stacks() -> None:
    """An older lock has none, and counts for the others as before."""
    own = stack.load("debian-13")
    main = lock.read(lock.shipped(own))
    bare = main.model_copy(update={"further": {}})
    assert "further" not in json.loads(bare.to_text())
    part = bare.model_copy(update={"definition": lock.definition_digest(own.for_role("service"))})
    both = bare.model_copy(update={"further": {"service": part}})
    assert lock.Lock.model_validate_json(both.to_text()) == both
    assert both.digest() == bare.digest()


def test_a_lock_of_another_state_is_refused(tmp_path: Path) -> None:
    own = stack.load("debian-13")
    main = lock.read(lock.shipped(own))
    file = tmp_path / "rocstack.lock"
    file.write_text(main.model_copy(update={"further": {"service": main.model_copy(update={"further": {}})}}).to_text())
    assert lock.for_stack(own, file)
    with pytest.raises(BadInput, match="debian-13"):
        lock.for_stack(own.for_role("service"), file)
    file.write_text(main.model_copy(update={"further": {}}).to_text())
    assert lock.for_stack(own.for_role("service"), file) is None
    part = main.model_copy(update={"further": {}, "definition": lock.definition_digest(own.for_role("service"))})
    file.write_text(part.to_text())  # the part alone, as a provenance has it
    assert lock.for_stack(own.for_role("service"), file) == part


def test_an_unknown_role_is_refused(cli: Cli) -> None:
    ran = cli("build", "--role", "servce")
    assert ran.code == 2
    assert "did you mean 'service'?" in ran.err
