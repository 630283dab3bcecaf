"""What the collector reads, as patterns: {a,b} is either, * stands for anything in one name.

A virtual node has only its /sys. What its model says beyond that lies in /sys/devices/virtual/rocstack:
`model` (the model's name), `root/` (files by their path, such as root/proc/cmdline) and `commands/` (answers by
their command line, such as "commands/ethtool -i rdma0"). They take the place of what this machine says; the tables
in ADDED_TABLES are added to it, because the machine's own network is real.
"""

from __future__ import annotations

MODEL_FOLDER = "/sys/devices/virtual/rocstack"
ADDED_TABLES = ("/proc/net/route", "ip -o -4 addr")

IB = "/sys/class/infiniband/*"
KFD = "/sys/class/kfd/kfd/topology/nodes/*"
MODULES = "amdgpu,bnxt_en,bnxt_re,mlx5_core,mlx5_ib,ionic,ionic_rdma,cxi_*,ib_*,rdma_*,siw,irdma,efa,knem,xpmem"
LIBRARY_FOLDERS = (
    "/usr/lib/*-linux-gnu/libibverbs", "/usr/lib64/libibverbs", "/usr/lib/libibverbs", "/usr/lib/*-linux-gnu",
    "/usr/lib64", "/usr/local/lib", "/usr/local/lib/*-linux-gnu", "/usr/local/lib64",
)  # fmt: skip
PROVIDERS = "lib{bnxt_re,mlx5,ionic,rxe}-rdmav*.so"
FABRIC = (  # Slingshot's
    "/opt/cray/libfabric/*/lib64/libfabric.so.1",
    "/usr/{lib,lib64,lib/*-linux-gnu}/{libcxi.so.1,libfabric.so.1,libjson-c.so.3}",
)
PATTERNS = (
    MODEL_FOLDER + "/model",
    "/opt/rocm/{,core/}.info/version",
    "/etc/libibverbs.d/*.driver",
    "/proc/{cmdline,version,net/route,sys/kernel/osrelease,sys/kernel/numa_balancing,1/limits}",
    "/proc/sys/net/core/{rmem_max,wmem_max}",
    "/sys/fs/cgroup/{cgroup.controllers,memory}",
    "/sys/devices/system/node/online",
    "/sys/module/{" + MODULES + "}{,/version,/srcversion,/initstate}",
    KFD + "/{name,gpu_id,properties,io_links/*/properties,p2p_links/*/properties}",
    "/sys/class/drm/{card,renderD}*/device",
    "/sys/class/net/*/{operstate,speed,mtu,uevent,master,device,bonding/mode,bonding/slaves}",
    IB + "/{node_type,node_guid,fw_ver,hca_type,board_id,parent,device}",
    IB + "/ports/*/{state,phys_state,link_layer,rate}",
    "/sys/class/infiniband_verbs/{abi_version,uverbs*/ibdev,uverbs*/abi_version,uverbs*/dev,uverbs*/device}",
    "/dev{,/kfd,/dri/*,/infiniband/*,/cxi*}",
)
ONLY_LINKS = (  # whose names tell the release
    *(folder + "/lib{bnxt_re,ionic}*.so" for folder in LIBRARY_FOLDERS),
)
LINES_KEPT = {  # of these files only such lines
    "/etc/os-release": r"(ID|VERSION_ID|PRETTY_NAME)=",
    "/etc/group": r"(render|video|rdma|docker):",
    "/proc/meminfo": r"MemTotal|Huge",
    "/var/lib/dpkg/info/{ibverbs-providers,libibverbs1,bnxt-rocelib,libionic1}*.list": r".*(-rdmav|libibverbs\.so)",
}
ARP = "{arp_ignore,arp_announce,arp_filter,rp_filter}"  # ARP flux between ports of one subnet
PCI = "/sys/bus/pci/devices"
PCI_LINK = "current_link_speed,current_link_width,max_link_speed,max_link_width"
PCI_FUNCTION = (
    "{vendor,device,class,subsystem_vendor,subsystem_device,numa_node,driver,driver/module,product_name,"
    "vbios_version,mem_info_vram_total,*.rdma.*/driver,*.rdma.*/driver/module," + PCI_LINK + "}"
)
PCI_BRIDGE = "{vendor,device,class," + PCI_LINK + "}"
# Only for a recording's tree: what rocm-smi, Slurm's rsmi plugin, lspci and libibverbs ask for beyond the above.
TREE = (
    "/sys/class/kfd/kfd/topology/{generation_id,system_properties}",
    KFD + "/{caches,io_links,p2p_links,mem_banks/*/properties}",
    "/sys/class/drm/{card,renderD}*/dev",
    "/sys/class/net/*/{address,type,carrier,flags,dev_port}",
    IB + "/{sys_image_guid,ports/*/lid,ports/*/sm_lid,ports/*/lid_mask_count,ports/*/cap_mask,ports/*/pkeys/0}",
    "/sys/class/cxi/*/{dev,device}",
)
PCI_TREE = (
    "{irq,resource,revision,enable,modalias,uevent,subsystem_vendor,subsystem_device,numa_node}",
    "{mem_info_*,gpu_busy_percent,mem_busy_percent,power_dpm_force_performance_level,power_state,pcie_replay_count}",
    "{pp_dpm_sclk,pp_dpm_mclk,hwmon/hwmon*/name,hwmon/hwmon*/temp*_label,hwmon/hwmon*/temp*_input}",
    "hwmon/hwmon*/power1_{average,input,cap,cap_max,cap_min}",
)
PCI_HEADER = 64  # bytes of a function's registers that everybody may read
