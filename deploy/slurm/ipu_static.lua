-- Checks requests for static partitions: `--gres=vipu:<partition_size>:<count>`, as in Graphcore's guide (8.3).
--
-- It returns a function of a table of settings; job_submit_static.lua shows its use. It reads no file, starts no
-- process and uses no network. A cluster uses it or ipu_slurm.lua, not both. Lua 5.1 to 5.4, Slurm from 22.05 on.

local ESLURM_INVALID_GRES = 2072 -- slurm_errno.h; Lua has no name for it
local UNDEFINED_SIZE = "ERROR: Undefined IPU partition size, use vipu:<partition_size>:<count>"
local CORRECTED = "WARN: Incorrect GRES correcting '%s' to: '%s'"

local function refuse(text)
  slurm.log_user("%s", text)
  slurm.log_info("%s", "vipu: refused: " .. text)
  return ESLURM_INVALID_GRES
end

-- Texts that users choose, and scontrol prints as they are.
local TEXTS = { "name", "comment", "account", "wckey", "features", "work_dir", "std_in", "std_out", "std_err" }

-- Returns why the texts of a job are refused, or nil. A line feed could imitate a record of a job in scontrol.
local function control_character(job_desc)
  for _, field in ipairs(TEXTS) do
    local text = job_desc[field]
    if type(text) == "string" and text:find("%c") then
      return string.format("%s: a text of a job has no control characters; remove line feeds and tabs", field)
    end
  end
  return nil
end

local function is_whole(text)
  return text ~= nil and #text <= 9 and text:match("^[1-9]%d*$") ~= nil
end

local function is_power_of_two(number)
  local power = 1
  while power < number do
    power = power * 2
  end
  return power == number
end

-- Returns the part after the prefix if an entry is for `vipu`. Slurm writes `gres:` up to 23.02, then `gres/`.
local function vipu_part(entry)
  local rest = entry:match("^gres[:/](vipu.*)$") or entry:match("^(vipu.*)$")
  if rest and rest:match("^vipu%f[^%w_-]") then
    return rest
  end
  return nil
end

-- Returns the entry as it must be, its size and its count; or nil and the reason that it is refused.
local function check_entry(entry, rest, several)
  local size, more = rest:match("^vipu:([^:]*)(.*)$")
  if size == nil or size == "" then
    return nil, UNDEFINED_SIZE
  end
  if not is_whole(size) or not is_power_of_two(tonumber(size)) then
    return nil, string.format("vipu: --gres=%s: a partition size is a power of two; use vipu:2:1, for example", rest)
  end
  local count = more:match("^:([^:]*)$")
  if more ~= "" and count == nil then
    return nil, string.format("vipu: --gres=%s: must have the form vipu:<partition_size>:<count>", rest)
  end
  if count == "1" or (several and is_whole(count)) then
    return entry, size, count
  end
  local prefix = entry:sub(1, #entry - #rest)
  return prefix .. "vipu:" .. size .. ":1", size, "1"
end

-- Returns the Slurm partition of a job; part_list has the default one.
local function partition_of(job_desc, part_list)
  if job_desc.partition and job_desc.partition ~= "" then
    return job_desc.partition
  end
  for name, partition in pairs(part_list or {}) do
    if partition.flag_default == 1 then
      return name
    end
  end
  return ""
end

return function(settings)
  -- several: OnePartitionPerTask=1 in vipu.conf. only_ipu_jobs: names of Slurm partitions, for EveryJobHasOne=1.
  local several = settings and settings.several or false
  local only_ipu_jobs = {}
  for _, name in ipairs(settings and settings.only_ipu_jobs or {}) do
    only_ipu_jobs[name] = true
  end
  local module = {}

  -- For slurm_job_submit.
  function module.job_submit(job_desc, part_list)
    local problem = control_character(job_desc)
    if problem then
      return refuse("vipu: " .. problem)
    end
    local entries, found, corrected = {}, nil, false
    for entry in string.gmatch(job_desc.tres_per_node or "", "[^,]+") do
      local rest = vipu_part(entry)
      if rest then
        local right, size, count = check_entry(entry, rest, several)
        if not right then
          return refuse(size)
        end
        if found then
          return refuse(string.format("vipu: --gres=%s: a job has partitions of one size; ask once", rest))
        end
        if right ~= entry then
          -- A step of srun still asks for what it asked for, and Slurm refuses it then.
          if not job_desc.script then
            return refuse(string.format("vipu: --gres=%s: write vipu:%s:1", rest, size))
          end
          slurm.log_user(CORRECTED, entry, right)
          corrected = true
        end
        found = size .. ":" .. count
        entry = right
      end
      entries[#entries + 1] = entry
    end
    for _, field in ipairs({ "tres_per_job", "tres_per_socket", "tres_per_task" }) do
      local text = job_desc[field]
      if type(text) == "string" and text:find("vipu", 1, true) then
        return refuse(string.format("vipu: %s: partitions are counted for each node; use --gres", text))
      end
    end
    if not found then
      for name in string.gmatch(partition_of(job_desc, part_list), "[^,]+") do
        if only_ipu_jobs[name] then
          return refuse(
            string.format("vipu: every job of Slurm partition %s has IPUs; add --gres=vipu:<partition_size>:1", name)
          )
        end
      end
      -- The environment may be that of a job with partitions.
      if job_desc.environment and job_desc.script and job_desc.environment["VIPU_PARTITIONS"] then
        job_desc.environment["VIPU_PARTITIONS"] = ""
      end
      return slurm.SUCCESS
    end
    if corrected then
      job_desc.tres_per_node = table.concat(entries, ",")
    end
    -- TaskProlog knows by this variable that the job has partitions. Only a batch job has its environment here.
    if job_desc.environment and job_desc.script then
      job_desc.environment["VIPU_PARTITIONS"] = found
    end
    return slurm.SUCCESS
  end

  -- For slurm_job_modify: the partitions of a job cannot change.
  function module.job_modify(job_desc, job_rec)
    local problem = control_character(job_desc)
    if problem then
      return refuse("vipu: " .. problem)
    end
    local function partitions(text)
      local list = {}
      for entry in string.gmatch(text or "", "[^,]+") do
        list[#list + 1] = vipu_part(entry)
      end
      return table.concat(list, ",")
    end
    if job_desc.tres_per_node ~= nil and partitions(job_desc.tres_per_node) ~= partitions(job_rec.tres_per_node) then
      return refuse("vipu: the partitions of a job cannot be changed; cancel it, and submit it again")
    end
    return slurm.SUCCESS
  end

  return module
end
