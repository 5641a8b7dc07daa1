-- What the end of a step is besides that of a plain job: its run goes on or ends, someone may wait for its events, and jobs
-- follow from it. Made only for calls that have such units; judged, like all of the short way, before the first write.
local RUN = 7 -- where it begins in a unit: run, expected version, record, flow, status, closed
local known = {}

-- What is known of the run of each step, unless another commit came first, it is paused or has gates.
local function runs_of(places)
  local runs, seen, gates = {}, {}, {}
  for n = 1, #places do
    local at = places[n]
    if ARGV[at] == 'Z' then
      at = at + RUN
      local id = ARGV[at]
      local run = call('HMGET', NS .. 'run:' .. id, 'version', 'status', 'closed', 'paused', 'unit', 'created')
      if seen[id] or run[1] ~= ARGV[at + 1] or run[3] ~= '0' or run[4] ~= '0' or run[5] == ARGV[at - 6] then return end
      seen[id], runs[n] = true, run
      if ARGV[at + 5] == '1' then gates[#gates + 1] = NS .. 'run:' .. id .. ':waits' end
    end
  end
  if #gates == 0 or call('EXISTS', unpack(gates)) == 0 then return runs end
end

-- Whether all jobs are new, in usual queues, and nobody waits for an event.
local function are_new(jobs, awaited)
  if #jobs > LONGEST then return false end
  local ids, keys, seen = {}, {}, {}
  for n = 1, #jobs do
    local at = jobs[n]
    local queue, id = queue_at(ARGV[at + 2]), ARGV[at + 1]
    if not queue.usual or seen[id] then return false end
    seen[id], ids[n], keys[n] = true, id, queue.base .. id
  end
  for kind in pairs(awaited) do
    if call('ZCARD', NS .. 'topic:' .. kind) > 0 then return false end
  end
  if #jobs == 0 then return true end
  if call('EXISTS', unpack(keys)) > 0 then return false end
  local found = call('HMGET', NS .. 'where', unpack(ids))
  for n = 1, #ids do
    if found[n] then return false end
  end
  return true
end

-- As write_run, for a run that is there and not paused.
local function write_run(at, run)
  local id, status, closed = ARGV[at + RUN], ARGV[at + RUN + 4], ARGV[at + RUN + 5]
  local key, version = NS .. 'run:' .. id, run[1] + 1
  if run[2] == status and closed == '0' then
    call('HSET', key, 'version', version, 'updated', stamp, 'unit', ARGV[at + 1], 'record', ARGV[at + RUN + 2])
    return
  end
  call('HSET', key, 'version', version, 'updated', stamp, 'unit', ARGV[at + 1], 'record', ARGV[at + RUN + 2],
    'status', status, 'closed', closed, 'paused', '0')
  if run[2] ~= status then call('ZREM', NS .. 'runs:status:' .. run[2], id) end
  call('ZADD', NS .. 'runs:status:' .. status, run[6], id)
  if closed == '0' then
    call('ZADD', NS .. 'runs:open', run[6], id)
    return
  end
  call('ZREM', NS .. 'runs:open', id)
  call('ZADD', NS .. 'runs:closed', run[6], id)
  touch('run:' .. id)
end

-- As add_job, for J: id, queue, name, payload, run, opts, stream, head, options.
local function add_plain(at)
  local name, run = ARGV[at + 2], ARGV[at + 5]
  local job = {id = ARGV[at + 1], name = ARGV[at + 3], payload = ARGV[at + 4], options = ARGV[at + 9]}
  local ours = {'nq:o', ARGV[at + 6]}
  if run ~= '' then ours[3], ours[4] = 'nq:r', run end
  if ARGV[at + 7] ~= '' then ours[#ours + 1], ours[#ours + 2] = 'nq:ss', ARGV[at + 7] end
  if ARGV[at + 8] ~= '' then ours[#ours + 1], ours[#ours + 2] = 'nq:sh', ARGV[at + 8] end
  if not known[name] then
    known[name] = true
    touch('queue:' .. name)
    call('SADD', NS .. 'queues', name)
  end
  local arrived = add_usual(queue_at(name), job, ours)
  where[job.id], placed[job.id] = name, name
  if run ~= '' then call('ZADD', NS .. 'run:' .. run .. ':jobs', arrived, job.id) end
end

return runs_of, are_new, write_run, add_plain
