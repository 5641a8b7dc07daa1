-- Ends an attempt whose fence was checked. ARGV[5] holds the options of BullMQ's moveToFinished.
local to_remove = {} -- jobs to remove after their unit is written: a dead letter may read their memos

local childless_keys = {} -- keys of jobs that have no children

local function buffer_unlock(key) locks_to_delete[#locks_to_delete + 1] = key .. ':lock' end

local function finish_by_bullmq(base, id, state, name, value, how)
  return bull_moveToFinished({base .. 'wait', base .. 'active', base .. 'prioritized', base .. 'events',
    base .. 'stalled', base .. 'limiter', base .. 'delayed', base .. 'paused', base .. 'meta', base .. 'pc',
    base .. state, base .. id, base .. 'metrics:' .. state, base .. 'marker'},
    {id, now, name, value, state, '0', base, how, ''})
end

-- Return the count and age of finished jobs to keep, from the options of another program's job; nothing if not set.
local function removal_options(base, id, state)
  local ok, opts = pcall(cjson.decode, call('HGET', base .. id, 'opts') or '{}')
  local option = ok and type(opts) == 'table' and opts[state == 'completed' and 'removeOnComplete' or 'removeOnFail']
  if option == true then return 0 end
  if type(option) == 'number' and option >= 0 then return option end
  if type(option) == 'table' then
    local count, age = tonumber(option.count), tonumber(option.age)
    return count and count >= 0 and count, age and age >= 0 and age * 1000
  end
end

-- Remove jobs beyond a count or an age, among those that ended with such a limit and belong to no run.
local function drop_surplus(base, state, count, age)
  local retained, surplus_ids = base .. 'nq:retained:' .. state, {}
  if age then surplus_ids = call('ZRANGEBYSCORE', retained, '-inf', now - age, 'LIMIT', 0, 1000) end
  local surplus = count and call('ZCARD', retained) - count or 0
  if surplus > 0 then
    for _, id in ipairs(call('ZRANGE', retained, 0, math.min(surplus, 1000) - 1)) do
      surplus_ids[#surplus_ids + 1] = id
    end
  end
  for _, id in ipairs(surplus_ids) do
    if call('ZREM', retained, id) == 1 then to_remove[#to_remove + 1] = {base, id, state} end
  end
end

-- Finish a job whose fields or family BullMQ's script cannot read. It may have done a part of this before it failed.
local function finish_plainly(base, id, state, name, value, failure)
  call('LREM', base .. 'active', -1, id)
  call('ZADD', base .. state, now, id)
  call('HSET', base .. id, name, value, 'finishedOn', now)
  call('XADD', base .. 'events', '*', 'event', state, 'jobId', id, name, value, 'prev', 'active')
  note_problem(string.sub(base, #BULL + 1, -2), 'repaired', 'job ' .. string.sub(id, 1, 100) .. ' has ' .. state
    .. ', but nothing that depends on it was updated: ' .. failure)
end

local function finish(base, id, state, name, value, number, count, age)
  if not number then
    local own_count, own_age = removal_options(base, id, state)
    if own_count or own_age then count, age = own_count, own_age end
  end
  local score = finished_score(base, id, number)
  local ok, code = pcall(finish_by_bullmq, base, id, state, name, value, ARGV[5])
  if not ok then
    finish_plainly(base, id, state, name, value, read_failure(code))
  elseif code ~= 0 then
    return
  end
  if score ~= now then call('ZADD', base .. state, 'XX', score, id) end
  if count == 0 then
    to_remove[#to_remove + 1] = {base, id, state}
  elseif (count or age) and call('HEXISTS', base .. id, 'nq:run') == 0 then
    call('ZADD', base .. 'nq:retained:' .. state, score, id)
    drop_surplus(base, state, count, age)
  end
end

-- Remove finished jobs as BullMQ does: without an event, and without touching the deduplication key.
local function remove_finished(unit)
  for _, finished in ipairs(to_remove) do
    local base, id, state = unpack(finished)
    local job = call('HMGET', base .. id, 'nq:scope', 'nq:number', 'nq:run')
    if unit and not job[2] then call('ZADD', NS .. 'units', now, unit) end
    call('ZREM', base .. state, id)
    call('ZREM', base .. 'nq:plain', id)
    call('DEL', base .. id, base .. id .. ':logs', base .. id .. ':dependencies', base .. id .. ':processed',
      base .. id .. ':failed', base .. id .. ':unsuccessful')
    forget_queue(id)
    if job[3] then call('ZREM', NS .. 'run:' .. job[3] .. ':jobs', id) end
    if job[1] then call('ZREM', NS .. 'memo_scopes', job[1] .. '\n' .. id) end
    delete_unused_memos(job[1] or id)
  end
  to_remove = {}
end

-- Return the count of BullMQ's limiter. Delete one that is not a number: it would stop the queue for every program.
local function read_limiter(base)
  local text = try('GET', base .. 'limiter')
  if not text then return 0 end
  local count = type(text) == 'string' and tonumber(text)
  if not count then
    call('DEL', base .. 'limiter')
    note_problem(string.sub(base, #BULL + 1, -2), 'repaired', 'its rate limiter was not a number and was removed')
  end
  return count or 0
end

-- Stop claims from the queue until then. A longer hold stays.
local function hold_queue(base, until_ms)
  if not is_server_clock then
    local held_until = tonumber(call('GET', base .. 'nq:hold_until')) or 0
    if held_until < until_ms then call('SET', base .. 'nq:hold_until', until_ms) end
    return
  end
  local left = until_ms - now
  local held = read_limiter(base) >= LIMITER_FULL and call('PTTL', base .. 'limiter') or 0
  if left > held then call('SET', base .. 'limiter', string.format('%.0f', LIMITER_FULL), 'PX', left) end
end

-- Keep the stack traces of the last ten failures, as BullMQ does.
local function add_stacktrace(key, stack)
  local ok, stacks = pcall(cjson.decode, call('HGET', key, 'stacktrace') or '[]')
  if not ok or type(stacks) ~= 'table' then stacks = {} end
  stacks[#stacks + 1] = stack
  while #stacks > 10 do table.remove(stacks, 1) end
  local is_encoded, text = pcall(cjson.encode, stacks)
  call('HSET', key, 'stacktrace', is_encoded and text or cjson.encode({stack}))
end

local function push_front(base, id)
  call('LREM', base .. 'active', -1, id)
  push_waiting(base, id, true, 'active')
end

-- Return whether the fast path can complete the job. Jobs with a retention limit take BullMQ's script.
local function can_complete_fast(queue, key, out)
  return queue.is_fast and out.kind == 'completed' and out.number and not out.parent and not out.deduplicated
    and not out.count and not out.age and childless_keys[key] and completed_this_minute(queue)
end

-- Call a function that follows what another program wrote about a job's family. It may name any key.
local function tolerate(follow, ...)
  local ok, failure = pcall(follow, ...)
  if not ok then read_failure(failure) end
end

local function end_attempt(queue, id, unit, out)
  local base = queue.base
  local key = base .. id
  buffer_unlock(key)
  buffer_write('ZREM', queue.leases, id)
  if can_complete_fast(queue, key, out) then
    local made = to_count(out.attempts_made) + 1
    if complete_fast(queue, id, out.value, finished_score(base, id, out.number),
      {'atm', made, 'nq:unit', unit, 'nq:token', ''}) then return end
  end
  flush_all()
  call('HSET', key, 'nq:unit', unit, 'nq:token', '')
  if out.gives_attempt_back then increment(key, 'ats', -1) end
  local parent = out.parent
  if out.error then
    call('HSET', key, 'nq:error', out.error)
    increment(key, 'nq:failures', 1)
  end
  if out.stack then add_stacktrace(key, out.stack) end
  if out.kind == 'completed' or out.kind == 'dead' then
    local completed = out.kind == 'completed'
    finish(base, id, completed and 'completed' or 'failed', completed and 'returnvalue' or 'failedReason', out.value,
      out.number, out.count, out.age)
    return tolerate(notify_parent_queue, parent)
  end
  if out.kind == 'released' and out.due <= now then
    call('HSET', key, 'nq:due', out.due)
    if out.value ~= '' then hold_queue(base, tonumber(out.value)) end
    return push_front(base, id)
  end
  call('LREM', base .. 'active', -1, id)
  if out.kind == 'retry' then
    increment(key, 'atm', 1)
    call('HSET', key, 'failedReason', out.value)
  end
  if out.kind == 'cancelled' then
    push_cancelled(base, id)
    tolerate(settle_cancelled_child, key, out.value)
    tolerate(notify_parent_queue, parent)
  elseif out.kind == 'suspended' and not out.due then
    call('HSET', key, 'nq:due', 0)
    call('ZADD', base .. 'nq:suspended', to_count(call('HGET', key, 'nq:number')), id)
  else
    push_delayed(base, id, out.due)
    if out.kind == 'suspended' then call('ZADD', base .. 'nq:timed', out.due, id) end
  end
end
