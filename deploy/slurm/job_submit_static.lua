-- job_submit.lua for a site with static partitions. Copy it next to slurm.conf as job_submit.lua, with
-- ipu_static.lua, and set JobSubmitPlugins=lua.
--
-- several = true goes with OnePartitionPerTask=1 of vipu.conf, only_ipu_jobs = { "ipu" } with EveryJobHasOne=1.
local static = dofile("/etc/slurm/ipu_static.lua")({ several = false, only_ipu_jobs = {} })

function slurm_job_submit(job_desc, part_list, submit_uid)
  return static.job_submit(job_desc, part_list)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return static.job_modify(job_desc, job_rec)
end

return slurm.SUCCESS
