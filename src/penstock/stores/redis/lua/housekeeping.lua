-- Retention. Each call removes a small batch, so that no commit waits long.

-- Remove the oldest events beyond a count or an age. The stream head keeps counting when none is left.
local function trim(stream, keep, before)
  local removed = 0
  if call('EXISTS', stream) == 0 then return 0 end
  if keep ~= '' then removed = removed + call('XTRIM', stream, 'MAXLEN', keep) end
  if before ~= '' then removed = removed + call('XTRIM', stream, 'MINID', before .. '-0') end
  return removed
end

local function has_live_lease(run)
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run .. ':jobs', 0, -1)) do
    local queue = existing_queue(id)
    local lease = queue and call('ZSCORE', base_key(queue) .. 'nq:leases', id)
    if lease and tonumber(lease) > now then return true end
  end
  return false
end

local function delete_state(key)
  call('DEL', NS .. 'state:' .. key)
  call('ZREM', NS .. 'states', key)
  call('ZREM', NS .. 'states:due', key)
end

local function delete_stream(stream)
  local removed = call('XLEN', stream)
  call('DEL', stream)
  call('HDEL', NS .. 'stream_heads', stream)
  call('ZREM', NS .. 'streams', stream)
  return removed
end

local function delete_run_jobs(run)
  local removed = 0
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run .. ':jobs', 0, -1)) do
    local queue = existing_queue(id)
    if queue then
      local base = base_key(queue)
      local state, set = job_state(base, id)
      if state == 'active' then
        release_lock(base, id)
        call('LREM', base .. 'active', -1, id)
      end
      call('DEL', NS .. 'memos:' .. delete_job(base, id, set))
      removed = removed + 1
    end
  end
  return removed
end

local function delete_run(run, removed)
  local key = NS .. 'run:' .. run
  removed.events = removed.events + delete_stream(NS .. (call('HGET', key, 'kind') or 'flow') .. ':' .. run)
  removed.jobs = removed.jobs + delete_run_jobs(run)
  for _, id in ipairs(call('ZRANGE', key .. ':waits', 0, -1)) do
    local wait = to_table(call('HGETALL', NS .. 'wait:' .. id))
    if wait.kind == 'trigger' then removed.events = removed.events + delete_stream(NS .. 'trigger:' .. id) end
    call('DEL', NS .. 'wait:' .. id)
    if wait.kind then call('ZREM', NS .. 'waits:' .. wait.kind, id) end
    if wait.topic then
      call('ZREM', NS .. 'topic:' .. wait.topic, id)
      call('ZREM', NS .. 'topic_keys:' .. wait.topic, (wait.key or '') .. '\n' .. id)
    end
  end
  for _, state in ipairs(call('ZRANGEBYLEX', NS .. 'states', '[run/' .. run .. '/', '(run/' .. run .. '0')) do
    delete_state(state)
    removed.states = removed.states + 1
  end
  local row = call('HMGET', key, 'flow', 'status')
  for _, list in ipairs({'runs', 'runs:closed', 'runs:open', 'runs:flow:' .. row[1], 'runs:status:' .. row[2]}) do
    call('ZREM', NS .. list, run)
  end
  call('DEL', key, key .. ':jobs', key .. ':waits')
  removed.runs = removed.runs + 1
end

local function sweep_runs(before, keep, limit, removed)
  local chosen, is_chosen = {}, {}
  local function choose(run)
    if not is_chosen[run] and #chosen < limit and not has_live_lease(run) then
      is_chosen[run] = true
      chosen[#chosen + 1] = run
    end
  end
  if before ~= '' then
    for _, run in ipairs(call('ZRANGEBYSCORE', NS .. 'runs:closed', '-inf', '(' .. before, 'LIMIT', 0, limit * 10)) do
      if tonumber(call('HGET', NS .. 'run:' .. run, 'updated')) < tonumber(before) then choose(run) end
    end
  end
  if keep ~= '' then
    local surplus = call('ZCARD', NS .. 'runs:closed') - tonumber(keep)
    if surplus > 0 then
      for _, run in ipairs(call('ZRANGE', NS .. 'runs:closed', 0, math.min(surplus, limit * 10) - 1)) do choose(run) end
    end
  end
  for _, run in ipairs(chosen) do delete_run(run, removed) end
end

local FINISHED = {'completed', 'failed', 'nq:cancelled'}

-- Return the finished jobs of a queue that belong to no run: oldest first, over all three states.
local function finished_jobs(base, high, max_count)
  local found = {}
  for _, set in ipairs(FINISHED) do
    local flat = call('ZRANGEBYSCORE', base .. set, '-inf', high, 'WITHSCORES')
    for n = 1, #flat, 2 do
      if call('HEXISTS', base .. flat[n], 'nq:run') == 0 then
        found[#found + 1] = {flat[n], tonumber(flat[n + 1]), set}
        if max_count and #found >= max_count then break end
      end
    end
  end
  table.sort(found, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  return found
end

local function sweep_jobs(queue, before, keep, limit, removed)
  local base = base_key(queue)
  local function delete_first(found, count)
    for n = 1, math.min(count, limit, #found) do
      delete_unused_memos(delete_job(base, found[n][1], found[n][3]))
      removed.jobs = removed.jobs + 1
    end
  end
  if before ~= '' then delete_first(finished_jobs(base, '(' .. before, limit), limit) end
  if keep ~= '' then
    local found = finished_jobs(base, '+inf')
    delete_first(found, #found - tonumber(keep))
  end
end

-- Remove references to deleted events. Each sweep checks the next part of the list and starts over at its end.
local function trim_references(list, limit)
  local from, removed = call('HGET', NS .. 'sweep_cursors', list), {}
  local refs = call('XRANGE', list, from and '(' .. from or '-', '+', 'COUNT', limit)
  for _, ref in ipairs(refs) do
    if #call('XRANGE', ref[2][2], ref[2][4], ref[2][4]) == 0 then removed[#removed + 1] = ref[1] end
  end
  if #refs == limit then
    call('HSET', NS .. 'sweep_cursors', list, refs[#refs][1])
  else
    call('HDEL', NS .. 'sweep_cursors', list)
  end
  if #removed > 0 then call('XDEL', list, unpack(removed)) end
end

-- Apply every limit once. Returns the number of removed runs, jobs, events and states.
local function sweep(limits)
  local limit, removed = limits.limit, {runs = 0, jobs = 0, events = 0, states = 0}
  local keep_events, events_before = limits.keep_events, limits.events_before
  sweep_runs(limits.runs_before, limits.keep_runs, limit, removed)
  for _, queue in ipairs(call('SMEMBERS', NS .. 'queues')) do
    local keep_jobs = queue == 'penstock-events' and limits.keep_deliveries or limits.keep_jobs
    sweep_jobs(queue, limits.jobs_before, keep_jobs, limit, removed)
    removed.events = removed.events + trim(NS .. 'queue:' .. queue, keep_events, events_before)
  end
  removed.events = removed.events + trim(NS .. 'global', keep_events, events_before)
  for _, key in ipairs(call('ZRANGEBYSCORE', NS .. 'states:due', '-inf', now, 'LIMIT', 0, limit)) do
    delete_state(key)
    removed.states = removed.states + 1
  end
  call('ZREMRANGEBYSCORE', NS .. 'once_keys', '-inf', now - limits.once_key_ms)
  call('ZREMRANGEBYSCORE', NS .. 'units', '-inf', now - limits.unit_id_ms)
  trim_references(NS .. 'feed', limit)
  for _, kind in ipairs(call('SMEMBERS', NS .. 'kinds')) do trim_references(NS .. 'kinds:' .. kind, limit) end
  return {removed.runs, removed.jobs, removed.events, removed.states}
end
