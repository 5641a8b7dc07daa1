-- The fast path of completed steps: the run continues or ends, and new jobs follow. These functions are created only for
-- calls with such units. Everything is read and checked before the first write.
local RUN = 7 -- offset in a unit of: run, expected version, record, flow, status, closed
local registered = {}

-- Return the run of each step; nothing if a version differs, a run is paused, or one that ends has waits.
local function load_runs(unit_starts)
  local runs, seen, wait_keys = {}, {}, {}
  for n = 1, #unit_starts do
    local at = unit_starts[n]
    if ARGV[at] == 'Z' then
      at = at + RUN
      local id = ARGV[at]
      local run = try('HMGET', NS .. 'run:' .. id, 'version', 'status', 'closed', 'paused', 'unit', 'created')
      if seen[id] or run[1] ~= ARGV[at + 1] or run[3] ~= '0' or run[4] ~= '0' or run[5] == ARGV[at - 6] then return end
      seen[id], runs[n] = true, run
      if ARGV[at + 5] == '1' then wait_keys[#wait_keys + 1] = NS .. 'run:' .. id .. ':waits' end
    end
  end
  if #wait_keys == 0 or call('EXISTS', unpack(wait_keys)) == 0 then return runs end
end

-- Return whether all jobs are new, their queues allow the fast path, and no wait is pending for an event.
local function are_all_new(jobs, kinds)
  if #jobs > MAX_CALL_VALUES then return false end
  local ids, keys, seen = {}, {}, {}
  for n = 1, #jobs do
    local at = jobs[n]
    local queue, id = queue_info(ARGV[at + 2]), ARGV[at + 1]
    if not queue.is_fast or seen[id] then return false end
    seen[id], ids[n], keys[n] = true, id, queue.base .. id
  end
  for kind in pairs(kinds) do
    if call('ZCARD', NS .. 'topic:' .. kind) > 0 then return false end
  end
  if #jobs == 0 then return true end
  if call('EXISTS', unpack(keys)) > 0 then return false end
  local found = call('HMGET', NS .. 'job_queues', unpack(ids))
  for n = 1, #ids do
    if found[n] then return false end
  end
  return true
end

-- Write a run as write_run does, for a run that exists and is not paused.
local function write_run(at, run)
  local id, status, closed = ARGV[at + RUN], ARGV[at + RUN + 4], ARGV[at + RUN + 5]
  local key, version = NS .. 'run:' .. id, run[1] + 1
  if run[2] == status and closed == '0' then
    call('HSET', key, 'version', version, 'updated', now_text, 'unit', ARGV[at + 1], 'record', ARGV[at + RUN + 2])
    return
  end
  call('HSET', key, 'version', version, 'updated', now_text, 'unit', ARGV[at + 1], 'record', ARGV[at + RUN + 2],
    'status', status, 'closed', closed, 'paused', '0')
  if run[2] ~= status then careful_call('ZREM', NS .. 'runs:status:' .. run[2], id) end
  careful_call('ZADD', NS .. 'runs:status:' .. status, run[6], id)
  if closed == '0' then
    careful_call('ZADD', NS .. 'runs:open', run[6], id)
    return
  end
  careful_call('ZREM', NS .. 'runs:open', id)
  careful_call('ZADD', NS .. 'runs:closed', now_text, id)
  notify('run:' .. id)
end

-- Add a job as add_job does, from J: id, queue, name, payload, run, opts, stream, started, options.
local function add_fast_job(at)
  local name, run = ARGV[at + 2], ARGV[at + 5]
  local job = {id = ARGV[at + 1], name = ARGV[at + 3], payload = ARGV[at + 4], options = ARGV[at + 9]}
  local own_values = {'nq:opts', ARGV[at + 6]}
  if run ~= '' then own_values[3], own_values[4] = 'nq:run', run end
  if ARGV[at + 7] ~= '' then own_values[#own_values + 1], own_values[#own_values + 2] = 'nq:stream', ARGV[at + 7] end
  if ARGV[at + 8] ~= '' then own_values[#own_values + 1], own_values[#own_values + 2] = 'nq:started', ARGV[at + 8] end
  if not registered[name] then
    registered[name] = true
    notify('queue:' .. name)
    careful_call('SADD', NS .. 'queues', name)
  end
  local number = add_fast(queue_info(name), job, own_values)
  job_queues[job.id], unsaved_job_queues[job.id] = name, name
  if run ~= '' then careful_call('ZADD', NS .. 'run:' .. run .. ':jobs', number, job.id) end
end

return load_runs, are_all_new, write_run, add_fast_job
