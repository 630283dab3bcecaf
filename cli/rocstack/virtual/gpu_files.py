"""The GPUs of a virtual node: PCI functions, DRM devices and KFD's topology, as amdgpu shows them.

What librocm_smi64 and Slurm's rsmi plugin need beyond the obvious: initstate `live`, a hwmon of the name `amdgpu`,
and folders io_links and p2p_links below every KFD node.
"""

from itertools import permutations

from rocstack.virtual.machine import Machine, MachineFunction, hops
from rocstack.virtual.model import Gpus
from rocstack.virtual.tree_builder import TreeBuilder

KFD = "/sys/devices/virtual/kfd/kfd"
NODES = f"{KFD}/topology/nodes"
HIVE = 0x1D00B0C5  # any number that is not 0: the GPUs of one xGMI hive share it
PCIE, SOCKETS, XGMI = 2, 1, 11  # HSA_IOLINKTYPE_* of hsakmttypes.h
SIMDS = 4  # of a compute unit
UNIQUE_ID = 0x1A2B3C4D5E6F0000  # of the GPU in slot 0
_CLASS = 0x120000  # processing accelerator
# All that a node has, in the kernel's order (kfd_topology.c, node_show): librocm_smi64 asks for some and gives up
# where one is missing.
PROPERTIES = (
    "cpu_cores_count", "simd_count", "mem_banks_count", "caches_count", "io_links_count", "p2p_links_count",
    "cpu_core_id_base", "simd_id_base", "max_waves_per_simd", "lds_size_in_kb", "gds_size_in_kb", "num_gws",
    "wave_front_size", "array_count", "simd_arrays_per_engine", "cu_per_simd_array", "simd_per_cu",
    "max_slots_scratch_cu", "gfx_target_version", "vendor_id", "device_id", "location_id", "domain",
    "drm_render_minor", "hive_id", "num_sdma_engines", "num_sdma_xgmi_engines", "num_sdma_queues_per_engine",
    "num_cp_queues", "max_engine_clk_fcompute", "local_mem_size", "fw_version", "capability", "debug_prop",
    "sdma_fw_version", "unique_id", "num_xcc", "max_engine_clk_ccompute",
)  # fmt: skip


def add(tree: TreeBuilder, machine: Machine) -> None:
    spec = machine.model.gpus
    if spec is None:
        return
    tree.links["/sys/class/kfd/kfd"] = KFD
    tree.put(f"{KFD}/topology", {"generation_id": 2})
    tree.files[f"{KFD}/topology/system_properties"] = "platform_oem 0\nplatform_id 0\nplatform_rev 0\n"
    links = _links(tree, machine, hops(spec))
    cpu = machine.model.cpu
    cores = cpu.sockets * cpu.cores * cpu.threads // cpu.numa
    for node in range(cpu.numa):
        own = {"cpu_cores_count": cores, "cpu_core_id_base": node * cores, "io_links_count": links.get(node, 0)}
        _node(tree, node, 0, "", cpu.memory_gib * (1 << 30) // cpu.numa, own)
    for index, (slot, pci) in enumerate(machine.gpus.items()):
        _function(tree, index, slot, pci, spec)
        _gpu_node(tree, spec, cpu.numa + index, index, slot, pci.address, links[cpu.numa + index])
    if machine.gpus:
        tree.module("amdgpu", machine.amdgpu, uses=str(len(machine.gpus)))
        tree.char("/dev/kfd", 234, 0, spec.render)


def _function(tree: TreeBuilder, index: int, slot: int, pci: MachineFunction, spec: Gpus) -> None:
    home = tree.function(pci, _CLASS, "amdgpu")
    memory, serial = spec.memory_gib << 30, UNIQUE_ID + slot
    tree.put(home, {
        "unique_id": f"{serial:016x}", "product_name": spec.name, "vbios_version": spec.vbios,
        "mem_info_vram_total": memory, "mem_info_vram_used": 300 << 20, "mem_info_vis_vram_total": memory,
        "mem_info_vis_vram_used": 300 << 20, "mem_info_gtt_total": memory, "mem_info_gtt_used": 0,
        "gpu_busy_percent": 0, "mem_busy_percent": 0, "power_dpm_force_performance_level": "auto",
        "power_state": "D0", "pcie_replay_count": 0, "xgmi_device_id": f"0x{serial:x}",
        "xgmi_hive_info/xgmi_hive_id": HIVE, "pp_dpm_sclk": "0: 132Mhz *\n1: 2100Mhz", "pp_dpm_mclk": "0: 900Mhz *",
    })  # fmt: skip
    tree.put(f"{home}/hwmon/hwmon{index}", {
        "name": "amdgpu", "temp1_label": "edge", "temp1_input": 41000, "temp2_label": "junction",
        "temp2_input": 41000, "temp3_label": "mem", "temp3_input": 38000, "power1_average": 135_000_000,
        "power1_cap": spec.watts * 1_000_000, "power1_cap_max": spec.watts * 1_000_000, "power1_cap_min": 0,
    })  # fmt: skip
    for kind, minor, gid in (("card", index, spec.video), ("renderD", 128 + index, spec.render)):
        name = f"{kind}{minor}"
        tree.put(f"{home}/drm/{name}", {"dev": f"226:{minor}"})
        tree.links[f"{home}/drm/{name}/device"] = home
        tree.links[f"/sys/class/drm/{name}"] = f"{home}/drm/{name}"
        tree.char(f"/dev/dri/{name}", 226, minor, gid)


def _gpu_node(tree: TreeBuilder, spec: Gpus, node: int, index: int, slot: int, address: str, links: int) -> None:
    vendor, device = (int(part, 16) for part in spec.pci.split(":"))
    _node(tree, node, 28851 + 97 * slot, "ip discovery", spec.memory_gib << 30, {
        "simd_count": spec.compute_units * SIMDS, "io_links_count": links, "simd_id_base": 0x80001000,
        "max_waves_per_simd": 8, "lds_size_in_kb": 64, "num_gws": 64, "wave_front_size": 64,
        "array_count": 4 * spec.xcc, "simd_arrays_per_engine": 1,
        "cu_per_simd_array": spec.compute_units // (4 * spec.xcc) + 1, "simd_per_cu": SIMDS,
        "max_slots_scratch_cu": 32, "gfx_target_version": target_version(spec.gfx), "vendor_id": vendor,
        "device_id": device, "location_id": location(address), "drm_render_minor": 128 + index,
        "hive_id": HIVE, "num_sdma_engines": 2, "num_sdma_xgmi_engines": 14, "num_sdma_queues_per_engine": 8,
        "num_cp_queues": 24, "max_engine_clk_fcompute": 2100, "fw_version": 166, "capability": 0x2807A580,
        "sdma_fw_version": 19, "unique_id": UNIQUE_ID + slot, "num_xcc": spec.xcc, "max_engine_clk_ccompute": 3700,
    })  # fmt: skip


def _node(tree: TreeBuilder, node: int, gpu: int, name: str, memory: int, properties: dict[str, int]) -> None:
    properties = {"mem_banks_count": 1, **properties}
    tree.put(f"{NODES}/{node}", {"gpu_id": gpu, "name": name})
    lines = "".join(f"{key} {properties.get(key, 0)}\n" for key in PROPERTIES)
    tree.files[f"{NODES}/{node}/properties"] = lines
    tree.files[f"{NODES}/{node}/mem_banks/0/properties"] = f"heap_type 1\nsize_in_bytes {memory}\nflags 0\n"
    tree.folders += [f"{NODES}/{node}/{name}" for name in ("caches", "io_links", "p2p_links")]


def _links(tree: TreeBuilder, machine: Machine, between: dict[tuple[int, int], int]) -> dict[int, int]:
    """KFD's links: every CPU to every CPU, a GPU to its own CPU, and through the hive to every GPU it reaches. Gives
    the number of links of each node."""
    cpus = machine.model.cpu.numa
    counts: dict[int, int] = {}

    def link(start: int, end: int, kind: int, weight: int) -> None:
        number = counts.get(start, 0)
        counts[start] = number + 1
        tree.files[f"{NODES}/{start}/io_links/{number}/properties"] = (
            f"type {kind}\nversion_major 0\nversion_minor 0\nnode_from {start}\nnode_to {end}\nweight {weight}\n"
            "min_latency 0\nmax_latency 0\nmin_bandwidth 64000\nmax_bandwidth 128000\n"
            "recommended_transfer_size 0\nflags 1\n"
        )

    for a, b in permutations(range(cpus), 2):
        link(a, b, SOCKETS, 32)
    for node, (slot, pci) in enumerate(machine.gpus.items(), cpus):
        link(node, pci.numa, PCIE, 20)
        link(pci.numa, node, PCIE, 20)
        for other, peer in enumerate(machine.gpus, cpus):
            if (slot, peer) in between:
                link(node, other, XGMI, 15 * between[slot, peer])  # weight_xgmi = 15 * hops: kfd_crat.c
    return counts


def location(address: str) -> int:
    """Bus, device and function in one number, as KFD gives them."""
    bus, device, function = int(address[5:7], 16), int(address[8:10], 16), int(address[11])
    return bus << 8 | device << 3 | function


def target_version(gfx: str) -> int:
    """gfx90a -> 90010: major, minor and stepping in two decimal digits each, the last two of them hexadecimal."""
    digits = gfx.removeprefix("gfx")
    return int(digits[:-2]) * 10000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)
