-- The IPUs that jobs may ask for, read by ipu_slurm.lua. Change it for your site.
--
-- slurmctld reads this file again only when job_submit.lua changes: `touch job_submit.lua` after an edit. With
-- an error here, jobs with IPUs are refused, and the text names it.
return {
  -- The system that `--ipus=N` means without `--ipu-model`. Not needed with one system.
  default_model = "pod64",
  -- Each system is also a license: `Licenses=pod64:64` in slurm.conf.
  models = {
    pod64 = {
      max_ipus_per_job = 64, -- MaxIpusPerJob of pod64.conf
      pod_ipus = 64, -- IPUs of the IPU-POD
      largest_partition = 64, -- largest partition that its controller creates
      -- A Feature of the nodes that reach its IPUs, if some do not: jobs with IPUs start on those only.
      -- feature = "pod64",
    },
  },
}
