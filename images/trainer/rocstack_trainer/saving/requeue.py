"""A Slurm job that has saved asks for a place at the end of the queue."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping


def requeue(env: Mapping[str, str], say: Callable[[str], None]) -> bool:
    """`scontrol requeue` for this job, which Slurm then ends and starts again later. Called by one rank.

    Returns:
        Will it run again? Why not is said: the checkpoint is there either way.
    """
    job = env.get("SLURM_JOB_ID")
    if not job:
        say("requeue: this is no Slurm job (SLURM_JOB_ID is not set): start it again by hand")
        return False
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        why = "there is no scontrol here; a container needs the host's, with its slurm.conf and munge socket"
    except subprocess.TimeoutExpired:
        why = "slurmctld gave no answer in 60 s"
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stderr", "") or str(error)).strip()
    else:
        say(f"requeue: job {job} is in the queue again")
        return True
    say(f"requeue: job {job} is not in the queue again: {why}\n  submit it again by hand; it goes on from here")
    return False
