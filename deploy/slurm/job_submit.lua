-- job_submit.lua for a site without a script of its own. Copy it next to slurm.conf, with ipu_slurm.lua and
-- ipu_limits.lua, and set JobSubmitPlugins=lua. If slurm.conf is not in /etc/slurm, change the two paths.
--
-- A site's own script takes the three lines with `ipu`.
local ipu = dofile("/etc/slurm/ipu_slurm.lua")("/etc/slurm/ipu_limits.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
  return ipu.job_submit(job_desc)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return ipu.job_modify(job_desc, job_rec)
end

return slurm.SUCCESS
