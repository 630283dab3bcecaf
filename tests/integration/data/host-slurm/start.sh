#!/bin/sh
# A machine whose Slurm is the site's own: Debian's, with runc by oci.conf as docs/run.md has it.
set -e
apt-get update -qq
apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client munge runc umoci >/dev/null
cat >/etc/slurm/slurm.conf <<END
ClusterName=site
SlurmctldHost=host
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
NodeName=host CPUs=$(nproc) State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES State=UP
END
echo CgroupPlugin=disabled >/etc/slurm/cgroup.conf
cp /given/oci.conf /etc/slurm/oci.conf
install -d -o slurm /var/lib/slurm/slurmctld
useradd --create-home --uid 2000 alice
install -d -o alice -m 700 /run/user/2000
install -d -o munge /run/munge
head -c 128 /dev/urandom >/etc/munge/munge.key
chown munge:munge /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
setpriv --reuid=munge --regid=munge --clear-groups munged
slurmctld
slurmd
