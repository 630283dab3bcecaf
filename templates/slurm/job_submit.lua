-- Before slurmd reads what a user's login shell sets it makes a namespace, which a container may not (SYS_ADMIN), and
-- ends there, with the jobs of all on its node (Slurm's src/common/env.c). Until 25.05 GetEnvTimeout=0 does instead.
function slurm_job_submit(job, partitions, uid)
    if job.script ~= nil and job.environment ~= nil and job.environment.SLURM_GET_USER_ENV ~= nil then
        slurm.log_user("--export=NONE and --get-user-env don't work here: write --export=NIL, and set in the script what it needs")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
