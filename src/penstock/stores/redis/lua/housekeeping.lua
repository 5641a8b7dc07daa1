-- Retention. A call removes at most `limit` of each kind, oldest first, so that no commit waits long. `others` counts the
-- entries of small lists, and pages of finished jobs that were only looked at: while one count is above 0, call again.
local limit, removed = 0, {runs = 0, jobs = 0, events = 0, states = 0, others = 0}

local function room(kind) return math.max(limit - removed[kind], 0) end
local function add(kind, count) removed[kind] = removed[kind] + count end
local function is_full() return room('runs') == 0 or room('jobs') == 0 or room('events') == 0 or room('states') == 0 end

-- Return whether a key is a stream, or missing. Another program may have written it as another type.
local function is_stream(key)
  local kind = call('TYPE', key).ok
  return kind == 'stream' or kind == 'none'
end

-- Remove the oldest events of a stream, with the references to them. An entry holds body and pos, and a kind if waits may
-- match it; what another program added holds neither. The stream head keeps counting when no event is left.
local function remove_events(stream, entries)
  local positions, by_kind = {}, {}
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    local is_event = fields[1] == 'body' and fields[3] == 'pos' and string.match(fields[4], '^%d+%-%d+$')
    local pos, kind = fields[4], fields[5] == 'kind' and fields[6]
    if is_event then positions[#positions + 1] = pos end
    if is_event and kind then
      by_kind[kind] = by_kind[kind] or {}
      table.insert(by_kind[kind], pos)
    end
  end
  if is_stream(NS .. 'feed') then call_in_chunks(positions, 'XDEL', NS .. 'feed') end
  for kind, found in pairs(by_kind) do
    local list = NS .. 'kinds:' .. kind
    if is_stream(list) then
      call_in_chunks(found, 'XDEL', list)
      if call('XLEN', list) == 0 then call('DEL', list) end
    end
  end
  local left = call('XLEN', stream) - #entries
  if left > 0 then call('XTRIM', stream, 'MAXLEN', left) else call('DEL', stream) end
end

-- Remove up to `most` of the events beyond a count or an age. Returns how many.
local function trim(stream, keep, before, most)
  if most == 0 or not is_stream(stream) then return 0 end
  local found = {}
  if before ~= '' and tonumber(before) > 0 then
    found = call('XRANGE', stream, '-', '(' .. before .. '-0', 'COUNT', most)
  end
  local surplus = keep ~= '' and math.min(call('XLEN', stream) - tonumber(keep), most) or 0
  if surplus > #found then found = call('XRANGE', stream, '-', '+', 'COUNT', surplus) end
  if #found > 0 then remove_events(stream, found) end
  return #found
end

local function delete_state(key)
  call('DEL', NS .. 'state:' .. key)
  call('ZREM', NS .. 'states', key)
  call('ZREM', NS .. 'states:due', key)
  add('states', 1)
end

-- Returns false if the batch has no room for all its events.
local function delete_stream(stream)
  add('events', trim(stream, '0', '', room('events')))
  if is_stream(stream) and call('XLEN', stream) > 0 then return false end
  call('DEL', stream)
  try('HDEL', NS .. 'stream_heads', stream)
  try('ZREM', NS .. 'streams', stream)
  try('ZREM', type_index(stream), stream)
  return true
end

-- Returns false if the batch has no room for all jobs of the run, or a worker still holds one of them.
local function delete_run_jobs(run)
  local key = NS .. 'run:' .. run .. ':jobs'
  if room('jobs') == 0 then return false end
  for _, id in ipairs(call('ZRANGE', key, 0, room('jobs') - 1)) do
    local queue = existing_queue(id) and readable_queue(id)
    if queue then
      local base = base_key(queue)
      local lease = call('ZSCORE', base .. 'nq:leases', id)
      if lease and tonumber(lease) > now then return false end
      local state, set = job_state(base, id)
      if state == 'active' then
        release_lock(base, id)
        call('LREM', base .. 'active', -1, id)
      end
      call('DEL', NS .. 'memos:' .. delete_job(base, id, set))
      add('jobs', 1)
    end
    call('ZREM', key, id)
  end
  return call('ZCARD', key) == 0
end

local function delete_run_waits(key)
  local most = room('others')
  if most <= 0 then return call('ZCARD', key .. ':waits') == 0 end
  for _, id in ipairs(call('ZRANGE', key .. ':waits', 0, most - 1)) do
    local wait = to_table(read_record(NS .. 'wait:' .. id))
    if wait.kind == 'trigger' and not delete_stream(NS .. 'trigger:' .. id) then return false end
    call('DEL', NS .. 'wait:' .. id)
    if wait.kind then call('ZREM', NS .. 'waits:' .. wait.kind, id) end
    if wait.kind == 'trigger' and wait.state then call('ZREM', NS .. 'waits:trigger:' .. wait.state, id) end
    if wait.topic then
      call('ZREM', NS .. 'topic:' .. wait.topic, id)
      call('ZREM', NS .. 'topic_keys:' .. wait.topic, (wait.key or '') .. '\n' .. id)
    end
    call('ZREM', key .. ':waits', id)
    add('others', 1)
  end
  return call('ZCARD', key .. ':waits') == 0
end

local function delete_run_states(run)
  local low, high = '[run/' .. run .. '/', '(run/' .. run .. '0'
  for _, key in ipairs(call('ZRANGEBYLEX', NS .. 'states', low, high, 'LIMIT', 0, room('states'))) do delete_state(key) end
  return call('ZLEXCOUNT', NS .. 'states', low, high) == 0
end

-- Delete a run with everything it owns. If the batch is full, the next one continues.
local function delete_run(run)
  local key = NS .. 'run:' .. run
  local row = read_fields(key, 'flow', 'status', 'kind', 'keys') or {}
  local stream = NS .. (row[3] or 'flow') .. ':' .. run
  if not (delete_run_jobs(run) and delete_stream(stream) and delete_run_waits(key) and delete_run_states(run)) then return end
  local flow, status = 'runs:flow:' .. (row[1] or ''), 'runs:status:' .. (row[2] or '')
  for _, list in ipairs({'runs', 'runs:closed', 'runs:open', flow, status}) do
    call('ZREM', NS .. list, run)
  end
  for name in string.gmatch(row[4] or '', '%S+') do try('ZREM', NS .. 'runs:key:' .. name, run) end
  call('DEL', key, key .. ':jobs', key .. ':waits')
  add('runs', 1)
end

-- Return the oldest members of a sorted set that are beyond a count or an age, at most so many.
local function oldest(set, before, keep, most)
  local count = before ~= '' and call('ZCOUNT', set, '-inf', '(' .. before) or 0
  if keep ~= '' then count = math.max(count, call('ZCARD', set) - tonumber(keep)) end
  count = math.min(count, most)
  return count > 0 and call('ZRANGE', set, 0, count - 1) or {}
end

-- Move a run behind the one that waited for it, which stays longer. Returns whether there is such a run.
local function stays_with_parent(closed, run)
  local row = read_fields(NS .. 'run:' .. run, 'parent', 'call') or {}
  local parent = row[2] and read_fields(NS .. 'run:' .. row[1], 'closed', 'version')
  if not parent or not parent[2] then return false end
  local score = parent[1] == '1' and tonumber(call('ZSCORE', closed, row[1]) or now) + 1 or now
  if score > tonumber(call('ZSCORE', closed, run)) then
    call('ZADD', closed, score, run)
    add('others', 1)
  end
  return true
end

local function sweep_runs(before, keep)
  local closed = NS .. 'runs:closed'
  for _, run in ipairs(oldest(closed, before, keep, limit)) do
    local updated = (read_fields(NS .. 'run:' .. run, 'updated') or {'0'})[1]
    if updated and (tonumber(updated) or 0) > tonumber(call('ZSCORE', closed, run)) then -- it moved after it was closed
      call('ZADD', closed, updated, run)
      add('others', 1)
    elseif not stays_with_parent(closed, run) then
      delete_run(run)
    end
    if is_full() then return end
  end
end

local FINISHED = {'completed', 'failed', 'nq:cancelled'}

-- Look at the next finished jobs, and list those that belong to no run in nq:plain. Other programs finish jobs too, so the
-- list cannot be written when a job ends. Each job is looked at once: the cursor is the score of the last one.
local function list_plain_jobs(base, set, high)
  local from = call('HGET', NS .. 'sweep_cursors', base .. set) or '0'
  local flat = call('ZRANGEBYSCORE', base .. set, from, high, 'WITHSCORES', 'LIMIT', 0, limit)
  for n = 1, #flat, 2 do
    if try('HEXISTS', base .. flat[n], 'nq:run') ~= 1 then call('ZADD', base .. 'nq:plain', flat[n + 1], flat[n]) end
  end
  -- Jobs of the same millisecond are not in the order they ended: the last second is looked at again.
  local last = flat[#flat] or from
  if tonumber(last) > now - 1000 then last = string.format('%.0f', now - 1000) end
  if tonumber(last) <= tonumber(from) then return end
  call('HSET', NS .. 'sweep_cursors', base .. set, last)
  if #flat == 2 * limit then add('others', 1) end
end

local OWN_KEYS = {'', ':lock', ':logs', ':dependencies', ':processed', ':failed', ':unsuccessful'}

-- Delete jobs that nothing else refers to in a few calls, without an event, as BullMQ removes finished jobs.
local function delete_together(base, ids)
  local keys, memos = {}, {}
  for n, id in ipairs(ids) do
    for _, suffix in ipairs(OWN_KEYS) do keys[#keys + 1] = base .. id .. suffix end
    memos[n] = NS .. 'memos:' .. id
    job_queues[id] = false
  end
  call_in_chunks(keys, 'UNLINK')
  for _, set in ipairs({'completed', 'failed', 'nq:cancelled', 'nq:retained:completed', 'nq:retained:failed'}) do
    call_in_chunks(ids, 'ZREM', base .. set)
  end
  call_in_chunks(ids, 'HDEL', NS .. 'job_queues')
  if #ids > 0 and call('EXISTS', unpack(memos)) > 0 then
    for _, id in ipairs(ids) do delete_unused_memos(id) end
  end
end

-- Delete finished jobs. One that another program has removed or retried only leaves the list.
local function delete_finished(base, ids)
  if #ids == 0 then return end
  local sets, together = {}, {}
  for _, set in ipairs(FINISHED) do
    for n, score in ipairs(call('ZMSCORE', base .. set, unpack(ids))) do sets[n] = score and set or sets[n] end
  end
  for n, id in ipairs(ids) do
    local job = sets[n] and try('HMGET', base .. id, 'parentKey', 'rjk', 'nq:scope', 'deid')
    if job and (job[1] or job[2] or job[3] or job[4]) then
      delete_unused_memos(delete_job(base, id, sets[n]))
      add('jobs', 1)
    elseif job then
      together[#together + 1] = id
    end
  end
  delete_together(base, together)
  add('jobs', #together)
  call_in_chunks(ids, 'ZREM', base .. 'nq:plain')
end

local function sweep_jobs(queue, before, keep)
  if before == '' and keep == '' then return end
  local base = base_key(queue)
  for _, set in ipairs(FINISHED) do list_plain_jobs(base, set, keep == '' and '(' .. before or '+inf') end
  delete_finished(base, oldest(base .. 'nq:plain', before, keep, room('jobs')))
end

local function remove_ended_rates(base)
  for _, key in ipairs(call('ZRANGEBYSCORE', base .. 'nq:rate_ends', '-inf', now, 'LIMIT', 0, room('others'))) do
    call('HDEL', base .. 'nq:rates', key)
    add('others', call('ZREM', base .. 'nq:rate_ends', key))
  end
end

-- Expire leases that end later than any worker's: they would last for ever.
local MAX_LEASE_MS = 3650 * 86400000
local function expire_damaged_leases(base)
  for _, id in ipairs(call('ZRANGEBYSCORE', base .. 'nq:leases', now + MAX_LEASE_MS, '+inf', 'LIMIT', 0, 1000)) do
    call('ZADD', base .. 'nq:leases', 'XX', now, id)
  end
end

local function remove_older(set, before)
  local count = math.min(call('ZCOUNT', set, '-inf', before), room('others'))
  if count > 0 then add('others', call('ZREMRANGEBYRANK', set, 0, count - 1)) end
end

-- Apply every limit once. Returns the number of removed runs, jobs, events, states and others.
local function forget_schedule(id)
  call('DEL', NS .. 'schedule:' .. id)
  call('ZREM', NS .. 'schedules', id)
  call('ZREM', NS .. 'schedules:due', id)
end

-- Return 0 if there was such a job scheduler, else 1.
local function remove_scheduler(queue, id)
  local base = base_key(queue)
  return bull_removeJobScheduler({base .. 'repeat', base .. 'delayed', base .. 'events'}, {id, base})
end

local function sweep_queue(queue, limits)
  sweep_jobs(queue, limits.jobs_before, queue == 'penstock-events' and limits.keep_deliveries or limits.keep_jobs)
  add('events', trim(NS .. 'queue:' .. queue, limits.keep_events, limits.events_before, room('events')))
  remove_ended_rates(base_key(queue))
  expire_damaged_leases(base_key(queue))
end

local function sweep(limits)
  limit = limits.limit
  local keep_events, events_before = limits.keep_events, limits.events_before
  sweep_runs(limits.runs_before, limits.keep_runs)
  for _, queue in ipairs(call('SMEMBERS', NS .. 'queues')) do
    local ok, failure = pcall(sweep_queue, queue, limits)
    if not ok then read_failure(failure) end -- another program wrote a key of this queue: the others are swept
  end
  add('events', trim(NS .. 'global', keep_events, events_before, room('events')))
  for _, key in ipairs(call('ZRANGEBYSCORE', NS .. 'states:due', '-inf', now, 'LIMIT', 0, room('states'))) do
    delete_state(key)
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', NS .. 'workers', '-inf', now, 'LIMIT', 0, room('others'))) do
    call('HDEL', NS .. 'worker_facts', id)
    add('others', call('ZREM', NS .. 'workers', id))
  end
  for _, id in ipairs(call('ZRANGE', NS .. 'schedules', 0, -1)) do
    if is_schedule_removed(id) then forget_schedule(id) end
  end
  -- A day of counts goes when its last minute is too old.
  for _, key in ipairs(call('ZRANGEBYSCORE', NS .. 'minute_keys', '-inf', now - limits.rate_ms - 86400000, 'LIMIT', 0,
    room('others'))) do
    call('UNLINK', key)
    add('others', call('ZREM', NS .. 'minute_keys', key))
  end
  remove_older(NS .. 'once_keys', now - limits.once_key_ms)
  remove_older(NS .. 'units', now - limits.unit_id_ms)
  return {removed.runs, removed.jobs, removed.events, removed.states, removed.others}
end
