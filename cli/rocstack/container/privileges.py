"""What root in a container may do: a list for each container, whatever the engine's default is. Pure."""

# A service starts as root, gives its files to the account that it runs as, and becomes it; process 1 stays root, and
# without KILL it could not hand on the signal to stop.
_SERVICE = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
# slurmd and commands bind memory and tasks that are the user's to NUMA nodes and CPUs. With SYS_NICE the engine's own
# seccomp profile allows mbind and set_mempolicy, for which AMD's docs switch it off.
_WORKER = (*_SERVICE, "SYS_NICE")
# Never MKNOD: who can make no device node opens no disk, whatever the cgroups allow.
LEAST = ("--security-opt=no-new-privileges", "--cap-drop=ALL")
SERVICE = tuple(f"--cap-add={name}" for name in _SERVICE)
# Slurm's daemons have ports that no user may take.
PORTS = ("--cap-add=NET_BIND_SERVICE",)
WORKER = tuple(f"--cap-add={name}" for name in _WORKER)
