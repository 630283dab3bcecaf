"""Variables whose names are nearly one that a library reads: found wherever people set them, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocstack.base import document, environment
from rocstack.base.errors import BadInput
from rocstack.container.environment import parse_env
from rocstack.jobs import recipe
from rocstack.settings import settings
from rocstack.stack import component

MISSPELT = {
    "NCCL_IB_GID_INDX": "NCCL_IB_GID_INDEX",
    "NCCL_SOKET_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_IBHCA": "NCCL_IB_HCA",
    "NCCL_IB_CT": "NCCL_IB_TC",
    "NCLL_DEBUG": "NCCL_DEBUG",
    "RCCL_DEBUG": "NCCL_DEBUG",
    "NCCL_MIN_NCHANELS": "NCCL_MIN_NCHANNELS",
    "nccl_debug": "NCCL_DEBUG",
    "NCCL_CROSSNIC": "NCCL_CROSS_NIC",
    "RCCL_MSCLPP_ENABLE": "RCCL_MSCCLPP_ENABLE",
    "UCX_NET_DEVICE": "UCX_NET_DEVICES",
    "UCX_IB_TRAFIC_CLASS": "UCX_IB_TRAFFIC_CLASS",
    "UCX_TSL": "UCX_TLS",
    "OMPI_MCA_btl_tcp_if_inclde": "OMPI_MCA_btl_tcp_if_include",
    "HSA_FORCE_FINEGRAIN_PCIE": "HSA_FORCE_FINE_GRAIN_PCIE",
    "HIP_VISIBLE_DEVICE": "HIP_VISIBLE_DEVICES",
    "FI_CXI_RX_MATCHMODE": "FI_CXI_RX_MATCH_MODE",
    "GLOO_SOCKET_IFNAM": "GLOO_SOCKET_IFNAME",
}
OWN = (  # of plugins, of newer releases, of programs, of the person
    "NCCL_FASTRAK_IFNAME", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "NCCL_IB_NEW_THING", "RCCL_ANP_CONFIG_FILE",
    "NCCL_SHARP_MAX_COMMS", "NCCL_UCX_TLS", "OFI_NCCL_PROTOCOL", "UCX_RC_MLX5_TM_SEG_SIZE", "UCX_XPMEM_BW",
    "OMPI_MCA_coll_tuned_priority", "OMPI_MCA_mine_enable", "HSA_AMD_NEW_SWITCH", "MY_DEBUG", "HF_HOME", "PATH",
    "OMP_NUM_THREADS", "https_proxy", "WANDB_MODE", "MSCCLPP_DEBUG", "PYTORCH_TUNABLEOP_ENABLED", "MIOPEN_DEBUG", "A",
)  # fmt: skip


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_name(name: str) -> None:
    assert environment.misspelt(name) == f"no library reads '{name}': did you mean '{MISSPELT[name]}'?"


@pytest.mark.parametrize("name", OWN)
def test_a_name_of_somebodys_own(name: str) -> None:
    assert environment.misspelt(name) is None


def test_a_real_name_that_the_list_lacked_would_not_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name that NCCL and RCCL read, taken off the list in turn."""
    whole = environment.known()
    for name in sorted(each for each in whole if each.startswith(("NCCL_", "RCCL_"))):
        environment.misspelt.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(environment, "known", lambda: whole - {name})  # noqa: B023
            assert environment.misspelt(name) is None
    environment.misspelt.cache_clear()


def test_what_rocstack_itself_sets_is_known() -> None:
    for profile in component.nic_profiles():
        for variable in profile.env:
            assert variable.name in environment.known()


def test_in_rocstack_yml(tmp_path: Path) -> None:
    (tmp_path / "rocstack.yml").write_text("cluster:\n  env:\n    NCCL_DEBUG: WARN\n    NCCL_IB_GID_INDX: '3'\n")
    with pytest.raises(BadInput, match="did you mean 'NCCL_IB_GID_INDEX'") as error:
        settings.load({}, {}, tmp_path)
    assert str(error.value.where) == f"{tmp_path}/rocstack.yml:4"
    (tmp_path / "rocstack.yml").write_text("cluster:\n  env: {OMPI_MCA_btl_tcp_if_include: eth0, NCCL_MY_PLUGIN: a}\n")
    settings.load({}, {}, tmp_path)


def test_in_a_nic_profile(tmp_path: Path) -> None:
    file = tmp_path / "mine.j2"
    file.write_text(
        "about: x\nways: {inbox: {}}\nenv:\n  - {name: NCCL_SOKET_IFNAME, value: eth0, why: x, source: y}\n"
    )
    with pytest.raises(BadInput, match="did you mean 'NCCL_SOCKET_IFNAME'") as error:
        document.read(file).validate(component.NicProfile, extra={"name": "mine"})
    assert str(error.value.where) == f"{file}:4"


@pytest.mark.parametrize(
    ("file", "line"),
    {
        "recipes/mine.sbatch.j2": "export NCCL_SOKET_IFNAME=eth0",
        "recipes/other.sbatch.j2": "#SBATCH --export=ALL,NCCL_SOKET_IFNAME=eth0",
        "components/rccl.j2": "ENV NCCL_SOKET_IFNAME=eth0",
        "slurm/slurm.conf.j2": "SrunProlog=/x NCCL_SOKET_IFNAME=eth0",
    }.items(),
)
def test_in_a_template_of_the_overlay(file: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    head = "---\nabout: x\n---\n" if "other" in file else ""
    path.write_text(f"{head}# NCCL_SOKET_IFNAME=eth0 is what I had\nx=$NCCL_SOKET_IFNAME\n{line}\n")
    kind = file.partition("/")[0]
    with pytest.raises(BadInput, match="did you mean 'NCCL_SOCKET_IFNAME'") as error:
        component.library(kind, tmp_path)  # type: ignore[arg-type]
    assert str(error.value.where) == f"{path}:{head.count(chr(10)) + 3}"


def test_on_the_command_line() -> None:
    with pytest.raises(BadInput, match="did you mean 'UCX_TLS'") as error:
        parse_env(["UCX_TSL=tcp"], {})
    assert str(error.value.where) == "--env"
    with pytest.raises(BadInput, match="did you mean 'UCX_TLS'"):
        recipe.script(recipe.find("mine"), recipe.JobRequest(arguments=("env", "UCX_TSL=tcp", "hostname")))
    assert parse_env(["MY_TLS=tcp"], {}).flags == ("--env=MY_TLS",)
