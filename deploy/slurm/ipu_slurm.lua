-- Turns a job's request for IPUs into a license, and refuses what can never run.
--
-- A job asks by `--ipus=N` (SPANK plugin), `--gres=vipu:<model>:<n>` or `--licenses=<model>:<n>`. The license
-- `<model>:<n>` is what Slurm counts. The module reads no file, starts no process and uses no network when a job
-- is submitted. It returns a function of the path of the limits; job_submit.lua shows its use.
--
-- Lua 5.1 to 5.4.

local NO_VALUE = 4294967294 -- NO_VAL of slurm.h: the field was not set
local MAX_RECONFIGURABLE = 64 -- IPUs of a link domain

-- Limits of one model: field, and where the number comes from.
local LIMITS = {
  { "max_ipus_per_job", "MaxIpusPerJob" },
  { "pod_ipus", "the size of the IPU-POD" },
  { "largest_partition", "the largest partition of its controller" },
}

-- ---------------------------------------------------------------------------------------------- numbers

-- Returns the number of decimal digits without sign and leading zeros, or nil.
local function whole_number(text)
  if type(text) == "string" and #text <= 9 and text:match("^[1-9]%d*$") then
    return tonumber(text)
  end
  return nil
end

-- Returns the smallest power of two that is at least `number`.
local function next_power_of_two(number)
  local power = 1
  while power < number do
    power = power * 2
  end
  return power
end

-- Returns the largest power of two that is at most `number`.
local function previous_power_of_two(number)
  local power = 1
  while power * 2 <= number do
    power = power * 2
  end
  return power
end

local function is_power_of_two(number)
  return next_power_of_two(number) == number
end

-- Formats a number without a fraction, in every version of Lua.
local function digits(number)
  return string.format("%.0f", number)
end

-- ----------------------------------------------------------------------------------------------- limits

local function is_name(text)
  return type(text) == "string" and text:match("^%a[%w_.-]*$") ~= nil
end

-- Returns the table of limits; an error names the path and the error.
local function read_limits(path)
  local limits = dofile(path)
  local function refuse(format, ...)
    error(path .. ": " .. string.format(format, ...), 0)
  end
  if type(limits) ~= "table" or type(limits.models) ~= "table" or next(limits.models) == nil then
    refuse("it returns a table with `models`, which names at least one system")
  end
  for name, model in pairs(limits.models) do
    if not is_name(name) or type(model) ~= "table" then
      refuse("models: %s: a system has a name that begins with a letter, and a table", tostring(name))
    end
    for _, limit in ipairs(LIMITS) do
      local value = model[limit[1]]
      if type(value) ~= "number" or value < 1 or value ~= math.floor(value) then
        refuse("models.%s.%s = %s: it is a whole number from 1", name, limit[1], tostring(value))
      end
    end
  end
  for name, model in pairs(limits.models) do
    if model.feature ~= nil and not is_name(model.feature) then
      refuse("models.%s.feature = %s: it is a Feature of nodes in slurm.conf", name, tostring(model.feature))
    end
  end
  local default = limits.default_model
  if default ~= nil and limits.models[default] == nil then
    refuse("default_model = %s: it is one of models", tostring(default))
  end
  return limits
end

local function sorted_names(models)
  local names = {}
  for name in pairs(models) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

-- Returns the limit of a model, and where it comes from.
local function limit_of(model)
  local least, origin = math.huge, ""
  for _, limit in ipairs(LIMITS) do
    if model[limit[1]] < least then
      least, origin = model[limit[1]], limit[2]
    end
  end
  return least, origin
end

-- --------------------------------------------------------------------------------------------- requests
-- A reader returns a request {model, ipus, text}, or nil if the job has none of its kind, or nil and a text.

-- Reads the variables of the SPANK plugin.
local function read_options(job_desc)
  local options = {}
  for _, entry in pairs(job_desc.spank_job_env or {}) do
    local name, value = tostring(entry):match("^VIPU_(%u+)=(.*)$")
    if name then
      if options[name] then
        return nil, string.format("VIPU_%s is set twice; use the options of srun, sbatch or salloc", name)
      end
      options[name] = value
    end
  end
  return options
end

-- Reads the GRES `vipu` of one kind of request. Up to 23.02 Slurm writes the prefix `gres:`, from 23.11 on `gres/`.
local function read_gres(text)
  local found
  for entry in string.gmatch(text or "", "[^,]+") do
    local rest = entry:match("^gres[:/](vipu.*)$") or entry:match("^(vipu.*)$")
    if rest and rest:match("^vipu%f[^%w_-]") then
      local model, count = rest:match("^vipu:(%a[%w_.-]*):([^:]*)$")
      local ipus = whole_number(count)
      if not ipus then
        return nil, string.format("--gres=%s: must have the form vipu:<model>:<n>; use --ipus=N", rest)
      end
      if found then
        return nil, string.format("--gres=%s: a job has one partition; ask for IPUs once", rest)
      end
      found = { model = model, ipus = ipus, text = "--gres=" .. rest }
    end
  end
  return found
end

-- Reads the license of a model. Licenses of other names are none of this module's business.
local function read_licenses(text, models)
  text = text or ""
  local found
  local names_model = false
  for entry in string.gmatch(text, "[^,;|]+") do
    entry = entry:match("^%s*(.-)%s*$")
    local name, rest = entry:match("^([%w_.-]+)(.*)$")
    if name and models[name] then
      names_model = true
      local ipus = rest == "" and 1 or whole_number(rest:match("^:(.*)$"))
      if not ipus then
        return nil, string.format("--licenses=%s: the form is %s:<n>; use --ipus=N", entry, name)
      end
      if found then
        return nil, string.format("--licenses=%s: a job has one partition; ask for IPUs once", entry)
      end
      found = { model = name, ipus = ipus, text = "--licenses=" .. entry }
    end
  end
  if names_model and text:find("|", 1, true) then
    return nil,
      string.format("--licenses=%s: `|` cannot choose between IPUs; write %s:%s", text, found.model, digits(found.ipus))
  end
  return found
end

-- ---------------------------------------------------------------------------------------------- decision

-- Returns the request of the job with the system named, or nil if it asks for no IPUs, or nil and a text.
local function combine(options, gres, license, limits)
  local request
  if options.IPUS then
    local ipus = whole_number(options.IPUS)
    if not ipus then
      return nil, string.format("--ipus=%s: the number of IPUs is a power of two; use 1, 2, 4 or 8", options.IPUS)
    end
    request = { model = options.MODEL, ipus = ipus, text = "--ipus=" .. options.IPUS }
  end
  for _, other in ipairs({ gres or false, license or false }) do
    if other then
      local model = request and request.model or options.MODEL
      if (request and request.ipus ~= other.ipus) or (model and model ~= other.model) then
        local first = request and request.text or ("--ipu-model=" .. model)
        return nil, string.format("%s and %s disagree; ask for IPUs once, by --ipus=N", first, other.text)
      end
      request = request or other
      request.model = other.model
    end
  end
  if not request then
    return nil
  end
  if not request.model then
    local names = sorted_names(limits.models)
    request.model = limits.default_model or (#names == 1 and names[1]) or nil
    if not request.model then
      return nil,
        string.format("%s: this cluster has several systems; add --ipu-model=%s", request.text, table.concat(names, " or "))
    end
  end
  return request
end

-- Returns why a request can never run, or nil.
local function refusal(request, options, gres, job_desc, limits)
  local model = limits.models[request.model]
  if not model then
    local names = table.concat(sorted_names(limits.models), ", ")
    return string.format("%s: there is no system %s; use one of: %s", request.text, request.model, names)
  end
  local most, origin = limit_of(model)
  if request.ipus > most then
    return string.format(
      "%s: a job has at most %s IPUs of %s (%s); use %s",
      request.text, digits(most), request.model, origin, digits(previous_power_of_two(most))
    )
  end
  if not is_power_of_two(request.ipus) then
    local next_size = next_power_of_two(request.ipus)
    local size = next_size <= most and next_size or previous_power_of_two(most)
    return string.format("%s: the number of IPUs is a power of two; use %s", request.text, digits(size))
  end
  if options.GCDS then
    local gcds = whole_number(options.GCDS)
    if not gcds or gcds > request.ipus or not is_power_of_two(gcds) then
      return string.format(
        "--ipu-gcds=%s: the GCDs divide the %s IPUs; use a power of two from 1 to %s",
        options.GCDS, digits(request.ipus), digits(request.ipus)
      )
    end
  end
  if options.RECONFIGURABLE and request.ipus > MAX_RECONFIGURABLE then
    return string.format(
      "--ipu-reconfigurable: a reconfigurable partition has at most %d IPUs; ask for fewer, or leave it out",
      MAX_RECONFIGURABLE
    )
  end
  local offset = job_desc.het_job_offset
  if offset and offset ~= NO_VALUE and offset > 0 then
    return string.format(
      "%s: only the first component of a heterogeneous job has IPUs; ask for them on the first component",
      request.text
    )
  end
  for _, field in ipairs({ "min_nodes", "max_nodes" }) do
    local nodes = job_desc[field]
    if gres and nodes and nodes ~= NO_VALUE and nodes > 1 then
      return string.format(
        "%s: GRES are counted for each of the %s nodes, and a job has one partition; use --ipus=%s",
        request.text, digits(nodes), digits(request.ipus)
      )
    end
  end
  return nil
end

-- Returns the licenses of a job with its IPUs, which are nil for a job without IPUs; or nil, nil and a text.
local function decide(job_desc, limits)
  local options, gres, license, problem
  options, problem = read_options(job_desc)
  if problem then
    return nil, nil, problem
  end
  for _, field in ipairs({ "tres_per_job", "tres_per_socket", "tres_per_task" }) do
    local text = job_desc[field]
    if type(text) == "string" and text:find("vipu", 1, true) then
      return nil, nil, string.format("%s: a job has one partition, not one a socket or task; use --ipus=N", text)
    end
  end
  gres, problem = read_gres(job_desc.tres_per_node)
  if problem then
    return nil, nil, problem
  end
  license, problem = read_licenses(job_desc.licenses, limits.models)
  if problem then
    return nil, nil, problem
  end
  local request
  request, problem = combine(options, gres, license, limits)
  if problem then
    return nil, nil, problem
  end
  if not request then
    for name, option in pairs({ MODEL = "--ipu-model", GCDS = "--ipu-gcds", RECONFIGURABLE = "--ipu-reconfigurable" }) do
      if options[name] then
        return nil, nil, string.format("%s: the job asks for no IPUs; add --ipus=N, or leave it out", option)
      end
    end
    return job_desc.licenses, nil
  end
  problem = refusal(request, options, gres, job_desc, limits)
  if problem then
    return nil, nil, problem
  end
  if license then
    return job_desc.licenses, request
  end
  local own = request.model .. ":" .. digits(request.ipus)
  local others = job_desc.licenses
  if others and others:find("|", 1, true) then
    local first = others:match("^[^|]*")
    return nil, nil, string.format("--licenses=%s: `|` cannot be combined with IPUs; write %s", others, first)
  end
  if others and others ~= "" then
    own = others .. "," .. own
  end
  return own, request
end

-- Returns whether an update changes the IPUs of a job: two texts, each with the request that it holds.
local function changes(new_text, old_text, read)
  if new_text == nil then
    return false
  end
  local new, new_problem = read(new_text)
  local old = read(old_text)
  if new_problem then
    return true
  end
  if not new or not old then
    return new ~= old
  end
  return new.model ~= old.model or new.ipus ~= old.ipus
end

local function refuse(text)
  slurm.log_user("%s", "vipu: " .. text)
  slurm.log_info("%s", "vipu: refused: " .. text)
  return slurm.ESLURM_INVALID_LICENSES or slurm.ERROR
end

-- Returns whether every alternative of a constraint requires a feature. A group in brackets may be met without it.
local function is_in_each(features, feature)
  local outer = features:gsub("%b[]", ""):gsub("%b()", "")
  for alternative in (outer .. "|"):gmatch("([^|]*)|") do
    local found = false
    for name in alternative:gmatch("[%w_.-]+") do
      found = found or name == feature
    end
    if not found then
      return false
    end
  end
  return true
end

-- Returns the features of a job with those of the nodes that reach its IPUs, or nil and a text.
local function with_feature(features, feature)
  if not feature or (features or "") == "" then
    return feature or features
  end
  if is_in_each(features, feature) then
    return features
  end
  if features:find("[|%[%(]") then
    return nil,
      string.format("--constraint=%s: alternatives must name the nodes with IPUs; write %s in each", features, feature)
  end
  return features .. "&" .. feature
end

-- Returns the module for limits with an error: it refuses IPUs, and nothing else. An error would keep slurmctld from
-- starting. Licenses pass, because without the limits their names are unknown.
local function without_limits(error)
  slurm.log_error("%s", "vipu: jobs with IPUs are refused: " .. error)
  local module = {}
  function module.job_submit(job_desc)
    local options, problem = read_options(job_desc)
    local gres = string.find(job_desc.tres_per_node or "", "vipu", 1, true)
    if problem or next(options) or gres then
      return refuse("the limits of this cluster have an error, report it to its administrator: " .. error)
    end
    return slurm.SUCCESS
  end
  function module.job_modify()
    return slurm.SUCCESS
  end
  return module
end

return function(path)
  local is_read, limits = pcall(read_limits, path)
  if not is_read then
    return without_limits(tostring(limits))
  end
  local module = {}

  -- For slurm_job_submit.
  function module.job_submit(job_desc)
    local licenses, request, problem = decide(job_desc, limits)
    if problem then
      return refuse(problem)
    end
    if request then
      local features
      features, problem = with_feature(job_desc.features, limits.models[request.model].feature)
      if problem then
        return refuse(problem)
      end
      job_desc.licenses = licenses
      if features ~= job_desc.features then
        job_desc.features = features
      end
    end
    -- TaskProlog knows by this variable that the job has IPUs. Only a batch job has its environment here, which may be
    -- that of a job with IPUs.
    if job_desc.environment and job_desc.script and (request or job_desc.environment["VIPU_IPUS"]) then
      job_desc.environment["VIPU_IPUS"] = request and digits(request.ipus) or ""
    end
    return slurm.SUCCESS
  end

  -- For slurm_job_modify: the partition of a job cannot change, so neither can its license and GRES.
  function module.job_modify(job_desc, job_rec)
    local function license(text)
      return read_licenses(text, limits.models)
    end
    local changed = changes(job_desc.licenses, job_rec.licenses, license)
      or changes(job_desc.tres_per_node, job_rec.tres_per_node, read_gres)
    if changed then
      return refuse("the IPUs of a job cannot be changed; cancel it, and submit it again with --ipus=N")
    end
    return slurm.SUCCESS
  end

  return module
end
