-- The full path of a claim: due jobs, priority first, within the limits, with their run record and `started` event. See
-- claim_args.lua for the arguments.
local lease, worker, token_prefix, total_limit = tonumber(ARGV[7]), ARGV[8], ARGV[9], tonumber(ARGV[10])
local lease_end = string.format('%.0f', now + lease)
local claims, drained_queues = {}, {}
local next_ids = {} -- the next jobs of the current queue; the last one goes first
local started_events = {}

-- Return the rate limit of a queue or of each key, as windows that start with their first claim.
local function rate_budget(base, demand)
  local windows, changed = {}, {}
  local budget = {}
  local function window(key)
    if not windows[key] then
      local ends, used
      local saved = call('HGET', base .. 'nq:rates', key)
      if saved then ends, used = string.match(saved, '^(%d+) (%d+)$') end
      ends, used = tonumber(ends), tonumber(used)
      -- A window that ends more than two durations ahead was started by a clock that has gone back since.
      if not ends or ends <= now or ends > now + 2 * demand.duration then ends, used = now + demand.duration, 0 end
      windows[key] = {ends, used}
    end
    return windows[key]
  end
  local function name(key) return demand.per_key and (key or '') or '' end
  function budget.take(key)
    local row = window(name(key))
    if row[2] >= demand.max then return false end
    row[2] = row[2] + 1
    changed[name(key)] = true
    return true
  end
  function budget.ends(key) return window(name(key))[1] end
  function budget.room()
    if demand.per_key then return math.huge end
    return demand.max - window('')[2]
  end
  function budget.save()
    for key in pairs(changed) do
      call('HSET', base .. 'nq:rates', key, windows[key][1] .. ' ' .. windows[key][2])
      call('ZADD', base .. 'nq:rate_ends', windows[key][1], key) -- for the sweep
    end
  end
  return budget
end

-- Return when BullMQ's limiter ends, if it is reached. Other programs share it, and it uses the server's clock. A held
-- queue has a full limiter, which also stops workers without a limit.
local function bullmq_limit_end(base, demand)
  if not is_server_clock then
    local until_ms = tonumber(call('GET', base .. 'nq:hold_until')) or 0
    return until_ms > now and until_ms or nil
  end
  if demand.has_limiter and read_limiter(base) >= (demand.bullmq_max or LIMITER_FULL) then
    local left = call('PTTL', base .. 'limiter')
    if left > 0 then return now + left end
    -- The key has expired, but a script sees keys as they were when it started. Delete it to start the next window at 0.
    if left == 0 then call('DEL', base .. 'limiter') end
  end
end

local function count_bullmq_limit(base, demand)
  if demand.bullmq_max and call('INCR', base .. 'limiter') == 1 then
    call('PEXPIRE', base .. 'limiter', demand.duration)
  end
end

-- Return the next job. Reads one more than there is room for, to know whether any is left.
local function next_job(base, room)
  if #next_ids == 0 then
    next_ids = call('LRANGE', base .. 'wait', -1 - math.max(0, math.min(room, MAX_CALL_VALUES)), -1)
  end
  local id = next_ids[#next_ids]
  if id then return id end
  return call('ZRANGE', base .. 'prioritized', 0, 0)[1], 'prioritized'
end

-- Return the jobs that a limited claim may take; nil if it may take any.
local function list_candidates(queue)
  if ARGV[11] == '' or queue == 'penstock-events' then return nil end
  local found = {queue = queue, at = 0}
  for kind, id in string.gmatch(ARGV[11], '(%a):([^\n]+)') do
    if kind == 'j' then
      found[#found + 1] = id
    else
      for _, job in ipairs(call('ZRANGE', NS .. 'run:' .. id .. ':jobs', 0, -1)) do found[#found + 1] = job end
    end
  end
  return found
end

-- Return the next candidate that waits, moved to the front of its queue: BullMQ activates only the first job.
local function next_candidate(base, candidates)
  flush_writes()
  while candidates.at < #candidates do
    candidates.at = candidates.at + 1
    local id = candidates[candidates.at]
    if lookup_queue(id) == candidates.queue and not call('ZSCORE', base .. 'completed', id)
      and not call('ZSCORE', base .. 'nq:leases', id)
      and (call('ZREM', base .. 'prioritized', id) == 1 or call('LREM', base .. 'wait', -1, id) == 1) then
      call('RPUSH', base .. 'wait', id)
      return id
    end
  end
end

-- Return the run of a job: nil without one, false if the job must not run. Cancels jobs of a closed or deleted run, holds
-- jobs of a paused one.
local function check_run(base, id, set, name)
  if not name then return nil end
  local head = read_fields(NS .. 'run:' .. name, 'version', 'closed', 'paused', 'record', 'kind')
  if not head or (head[1] and not tonumber(head[1])) then return {'0', '0', '0', '', false} end -- the engine fails the job
  head[4] = head[4] or ''
  if not head[1] or head[2] == '1' then
    remove_from_state(base, id, set)
    push_cancelled(base, id)
    return false
  end
  if head[3] == '1' then
    remove_from_state(base, id, set)
    hold(base, id, call('HGET', base .. id, 'nq:number'))
    return false
  end
  return head
end

-- Activate a job with BullMQ's script. Returns its fields, or nil if the script gave none.
local function activate_by_bullmq(base, id, token)
  flush_writes()
  local reply = bull_moveToActive({base .. 'wait', base .. 'active', base .. 'prioritized', base .. 'events',
    base .. 'stalled', base .. 'limiter', base .. 'delayed', base .. 'paused', base .. 'meta', base .. 'pc',
    base .. 'marker'}, {base, now, cmsgpack.pack({token = token, lockDuration = lease, name = worker})})
  if not reply[2] or reply[2] == 0 then
    if reply[3] and reply[3] > 0 then note_due(now + reply[3]) end
    return nil
  end
  assert(reply[2] == id, 'BullMQ activated another job')
  call('HSET', base .. id, 'nq:token', token)
  return to_table(reply[1])
end

-- Return the memos of a scope. One that cannot be read stands for all of them if another program wrote their key.
local function read_memos(scope)
  local memos = try('HGETALL', NS .. 'memos:' .. scope)
  if not memos.err then return memos end
  return {'memos#0', read_failure(memos)}
end

local function claim_job(name, base, id, set, job, head, demand)
  local token, queue = token_prefix .. '-' .. (#claims + 1), queue_info(name)
  if queue.is_fast and not set and demand.is_all_promoted then
    activate_fast(queue, id, job, worker, token, ARGV[7])
  else
    demand.is_changed = true
    job = activate_by_bullmq(base, id, token)
    if not job then return false end
  end
  -- A child has failed it: the engine records that, because it checks the children of such a job.
  local failed_children = job.defa and try('ZCARD', base .. id .. ':unsuccessful')
  local has_failed_child = type(failed_children) == 'number' and failed_children > 0
  if has_failed_child then
    job['nq:opts'] = job['nq:opts'] or '{"hasChildren":true}'
  elseif job.defa and job['nq:number'] then -- our job stalled: the engine counts how often it may
    call('HDEL', base .. id, 'defa')
  elseif job.defa then -- another program marked it as failed: finish it as its workers do
    release_lock(base, id)
    finish(base, id, 'failed', 'failedReason', job.defa)
    demand.is_reordered = true -- its parent may be waiting now
    return true
  end
  -- A job of another program is in no index of ours: it is found by its id only in registered queues.
  if not job['nq:number'] then register_queue(name) end
  buffer_write('ZADD', base .. 'nq:leases', lease_end, id)
  if job['nq:priority'] then call('ZREM', base .. 'nq:urgent', id) end
  count_bullmq_limit(base, demand)
  if job['nq:stream'] and job['nq:number'] then -- a job of ours: any other could name a key of the queue
    local rest = '"attempt":' .. job.ats .. ',"worker":"' .. worker .. '"}}'
    started_events[#started_events + 1] = {job['nq:stream'], job['nq:started'], rest}
    if head and head[5] == 'dag' then add_status(queue, id, running_status(job.name)) end
  end
  local scope, memos = job['nq:scope'] or id, {}
  if job.ats ~= '1' or job['nq:unit'] or job['nq:scope'] then memos = read_memos(scope) end
  claims[#claims + 1] = {id, name, job.name or false, job.data or false, job['nq:opts'] or '{}', scope, tonumber(job.ats),
    token, to_count(job['nq:failures']), to_count(job['nq:crashes']), job['nq:run'] or false,
    head and tonumber(head[1]) or 0, head and head[4] or false, job.rjk or false, job.rjk and job.opts or false,
    head and head[5] or false, memos}
  return true
end

local function remaining_slots(base, demand)
  local left = demand.first_claim + demand.limit - #claims
  if total_limit then left = math.min(left, total_limit - #claims) end
  if demand.active then left = math.min(left, demand.active - call('LLEN', base .. 'active')) end
  return left
end

local MARKER = "the job's id starts with `0:`, which BullMQ takes for a marker and not for a job; use another id"

-- Claim one job, or skip it. Returns false when the queue has no more.
local function claim_or_skip(queue, base, id, set, demand, budget)
  local flat = try('HGETALL', base .. id)
  if flat.err then
    read_failure(flat)
    set_aside(base, id)
    demand.is_reordered = true
    return true
  end
  local job = to_table(flat)
  if not job.name and not job.data and not job.opts then -- its hash was deleted
    remove_from_state(base, id, set)
    return true
  end
  repair_counts(base .. id, job)
  if job.parentKey or job.parent then repair_parent(base, id, job) end
  if string.sub(id, 1, 2) == '0:' then
    remove_from_state(base, id, set)
    finish_plainly(base, id, 'failed', 'failedReason', MARKER, 'its id is not allowed')
    return true
  end
  local head = check_run(base, id, set, job['nq:run'])
  if head == false then return true end
  if budget and not budget.take(job['nq:rate_key']) then
    remove_from_state(base, id, set)
    push_delayed(base, id, budget.ends(job['nq:rate_key']))
    note_due(budget.ends(job['nq:rate_key']))
    return true
  end
  return claim_job(queue, base, id, set, job, head, demand)
end

-- Claim jobs while there is room. Returns when a reached limit ends.
local function claim_queue(queue, base, demand, budget)
  local limit_end = bullmq_limit_end(base, demand)
  next_ids = {}
  for _ = 1, 5000 do
    local room = remaining_slots(base, demand)
    if limit_end or (budget and budget.room() <= 0) then return limit_end end
    if room <= 0 and (#next_ids > 0 or demand.candidates) then return end -- there are more
    local id, set
    if demand.candidates then id = next_candidate(base, demand.candidates) else id, set = next_job(base, room) end
    if not id and not demand.candidates then drained_queues[#drained_queues + 1] = queue end
    if not id or room <= 0 or not claim_or_skip(queue, base, id, set, demand, budget) then return end
    next_ids[#next_ids] = nil
    if demand.is_reordered then next_ids, demand.is_reordered = {}, nil end
    if demand.bullmq_max then limit_end = bullmq_limit_end(base, demand) end
  end
end

-- Return due, expired and stalled jobs to their queue. The first of each set shows whether there is any.
local function recover_jobs(base, demand)
  local delayed, lease_end = first_score(base .. 'delayed'), first_score(base .. 'nq:leases')
  demand.is_all_promoted, demand.next_delayed, demand.next_lease_end = true, delayed, lease_end
  if delayed and delayed < (now + 1) * 0x1000 then
    demand.is_all_promoted, demand.is_changed = promote_due(base), true
  end
  if lease_end and lease_end <= now then
    recover_expired(base)
    demand.is_changed = true
  end
  if not is_server_clock then return end
  local saved = call('MGET', base .. 'stalled-check', base .. 'limiter')
  demand.has_limiter = saved[2]
  if not saved[1] then recover_stalled(base) end
  if release_after_others(base) then demand.is_changed = true end
end

-- Note when to claim again: at the next due job, or at the end of the next lease.
local function note_next_due(base, demand)
  if demand.is_changed then
    demand.next_delayed, demand.next_lease_end = first_score(base .. 'delayed'), first_score(base .. 'nq:leases')
  end
  if demand.next_delayed then note_due(math.floor(demand.next_delayed / 0x1000)) end
  note_due(demand.next_lease_end)
  if #claims > demand.first_claim then note_due(now + lease) end
end

local function serve_queue(name, demand)
  local base = base_key(name)
  local queue = queue_info(name)
  if queue.paused then return end
  if call('EXISTS', queue.wait, queue.active, queue.leases, base .. 'delayed', base .. 'prioritized',
    base .. 'nq:ordered') == 0 then
    drained_queues[#drained_queues + 1] = name
    return
  end
  recover_jobs(base, demand)
  demand.bullmq_max = is_server_clock and not demand.per_key and demand.max
  demand.has_limiter = demand.has_limiter or demand.bullmq_max or not queue.is_fast
  local budget = demand.max and not demand.bullmq_max and rate_budget(base, demand)
  demand.first_claim, demand.is_changed = #claims, demand.is_changed or budget
  demand.candidates = list_candidates(name)
  note_due(claim_queue(name, base, demand, budget))
  flush_writes()
  if budget then
    budget.save()
    if budget.room() <= 0 then note_due(budget.ends()) end
  end
  note_next_due(base, demand)
end

local function append_started()
  local streams = {}
  for n, row in ipairs(started_events) do streams[n] = row[1] end
  load_heads(streams)
  for _, row in ipairs(started_events) do append_started_event(unpack(row, 1, 3)) end
end

-- Serve a queue. What another program broke stops this queue only: the others, and the commit before, are not affected.
local function try_queue(name, demand)
  local ok, failure = pcall(function()
    if queue_info(name).broken then error('NQQUEUE ' .. queue_info(name).broken, 0) end
    local version, old = version_of(queue_info(name))
    if is_server_clock then note_due(now + (version and 200 or 1000)) end -- other programs do not notify us of new jobs
    if old then error('NQVERSION ' .. name .. ' ' .. version, 0) end
    if not total_limit or #claims < total_limit then serve_queue(name, demand) end
  end)
  if ok then return end
  note_problem(name, 'stopped', read_failure(failure))
  note_due(now + 1000)
end

for i = 12, 11 + 6 * queue_count, 6 do
  try_queue(ARGV[i], {limit = tonumber(ARGV[i + 1]), max = tonumber(ARGV[i + 2]), duration = tonumber(ARGV[i + 3]),
    per_key = ARGV[i + 4] == '1', active = tonumber(ARGV[i + 5])})
end
remove_finished()
append_started()

local reply = ...
for _, row in ipairs(claims) do
  local memos = row[17]
  row[17] = #memos
  for n = 1, 17 do reply[#reply + 1] = row[n] end
  for _, value in ipairs(memos) do reply[#reply + 1] = value end
end
return drained_queues
