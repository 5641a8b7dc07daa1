-- The end of an attempt. ARGV[5] is what BullMQ's moveToFinished is told besides; the fence was checked before.
local ended = {} -- jobs that are to go when what their unit adds is there: memos may be read by a dead letter

local childless = {} -- keys of jobs that are known to have no children

local function unlock_later(key) locks[#locks + 1] = key .. ':lock' end

local function to_finish(base, id, state, name, value, how)
  return bull_moveToFinished({base .. 'wait', base .. 'active', base .. 'prioritized', base .. 'events',
    base .. 'stalled', base .. 'limiter', base .. 'delayed', base .. 'paused', base .. 'meta', base .. 'pc',
    base .. state, base .. id, base .. 'metrics:' .. state, base .. 'marker'},
    {id, now, name, value, state, '0', base, how, ''})
end

-- What a job of another program says of how many that ended are to stay; nothing if it does not say.
local function said_to_keep(base, id, state)
  local ok, opts = pcall(cjson.decode, call('HGET', base .. id, 'opts') or '{}')
  local said = ok and type(opts) == 'table' and opts[state == 'completed' and 'removeOnComplete' or 'removeOnFail']
  if said == true then return 0 end
  if type(said) == 'number' and said >= 0 then return said end
  if type(said) == 'table' then
    return tonumber(said.count), tonumber(said.age) and tonumber(said.age) * 1000
  end
end

-- Jobs beyond a count or an age, of those that ended with such a setting and belong to no run.
local function crowd_out(base, state, count, age)
  local kept, gone = base .. 'nq:kept:' .. state, {}
  if age then gone = call('ZRANGEBYSCORE', kept, '-inf', now - age, 'LIMIT', 0, 1000) end
  local surplus = count and call('ZCARD', kept) - count or 0
  if surplus > 0 then
    for _, id in ipairs(call('ZRANGE', kept, 0, math.min(surplus, 1000) - 1)) do gone[#gone + 1] = id end
  end
  for _, id in ipairs(gone) do
    if call('ZREM', kept, id) == 1 then ended[#ended + 1] = {base, id, state} end
  end
end

local function finish(base, id, state, name, value, arrived, count, age)
  if not arrived then
    local own_count, own_age = said_to_keep(base, id, state)
    if own_count or own_age then count, age = own_count, own_age end
  end
  local score = finished_score(base, id, arrived)
  local code = to_finish(base, id, state, name, value, ARGV[5])
  if code ~= 0 then return end
  if score ~= now then call('ZADD', base .. state, 'XX', score, id) end
  if count == 0 then
    ended[#ended + 1] = {base, id, state}
  elseif (count or age) and call('HEXISTS', base .. id, 'nq:r') == 0 then
    call('ZADD', base .. 'nq:kept:' .. state, score, id)
    crowd_out(base, state, count, age)
  end
end

-- Removes what is not to stay, as BullMQ does: quietly, and a key that others are deduplicated by keeps its time.
local function forget_ended(unit)
  for _, one in ipairs(ended) do
    local base, id, state = unpack(one)
    local job = call('HMGET', base .. id, 'nq:s', 'nq:n')
    if unit and not job[2] then call('ZADD', NS .. 'units', now, unit) end
    call('ZREM', base .. state, id)
    call('DEL', base .. id, base .. id .. ':logs', base .. id .. ':dependencies', base .. id .. ':processed',
      base .. id .. ':failed', base .. id .. ':unsuccessful')
    not_placed(id)
    if job[1] then call('ZREM', NS .. 'scopes', job[1] .. '\n' .. id) end
    forget_memos(job[1] or id)
  end
  ended = {}
end

-- Nobody is handed a job of the queue before then. A hold that lasts longer stays.
local function hold(base, till)
  if not real then
    if tonumber(call('GET', base .. 'nq:hold') or 0) < till then call('SET', base .. 'nq:hold', till) end
    return
  end
  local left = till - now
  local held = tonumber(call('GET', base .. 'limiter') or 0) >= FULL and call('PTTL', base .. 'limiter') or 0
  if left > held then call('SET', base .. 'limiter', string.format('%.0f', FULL), 'PX', left) end
end

-- The stacks of a job's failures, as BullMQ keeps them: the last ten.
local function note_stack(key, stack)
  local kept = call('HGET', key, 'stacktrace')
  local ok, stacks = pcall(cjson.decode, kept or '[]')
  if not ok or type(stacks) ~= 'table' then stacks = {} end
  stacks[#stacks + 1] = stack
  while #stacks > 10 do table.remove(stacks, 1) end
  call('HSET', key, 'stacktrace', cjson.encode(stacks))
end

local function to_front(base, id)
  call('LREM', base .. 'active', -1, id)
  push(base, id, true, 'active')
end

-- Whether a job may be completed the usual way. Of one that is to go, or may crowd out others, more is to be done.
local function ends_usual(queue, key, out)
  return queue.usual and out.kind == 'completed' and out.arrived and not out.parent and not out.deduplicated
    and not out.count and not out.age and childless[key] and same_minute(queue)
end

local function end_attempt(queue, id, unit, out)
  local base = queue.base
  local key = base .. id
  unlock_later(key)
  write_later('ZREM', queue.leases, id)
  if ends_usual(queue, key, out) then
    local made = (out.made or 0) + 1
    if complete_usual(queue, id, out.value, finished_score(base, id, out.arrived),
      {'atm', made, 'nq:u', unit, 'nq:t', ''}) then return end
  end
  catch_up()
  call('HSET', key, 'nq:u', unit, 'nq:t', '')
  local parent = out.parent
  if out.error then
    call('HSET', key, 'nq:e', out.error)
    call('HINCRBY', key, 'nq:f', 1)
  end
  if out.stack then note_stack(key, out.stack) end
  if out.kind == 'completed' or out.kind == 'dead' then
    local completed = out.kind == 'completed'
    finish(base, id, completed and 'completed' or 'failed', completed and 'returnvalue' or 'failedReason', out.value,
      out.arrived, out.count, out.age)
    return parent_moved(parent)
  end
  if out.kind == 'given_back' and out.due <= now then
    call('HSET', key, 'nq:d', out.due)
    if out.value ~= '' then hold(base, tonumber(out.value)) end
    return to_front(base, id)
  end
  call('LREM', base .. 'active', -1, id)
  if out.kind == 'retry' then
    call('HINCRBY', key, 'atm', 1)
    call('HSET', key, 'failedReason', out.value)
  end
  if out.kind == 'cancelled' then
    push_cancelled(base, id)
    leave_parent(key)
    parent_moved(parent)
  elseif out.kind == 'suspended' and not out.due then
    call('HSET', key, 'nq:d', 0)
    call('ZADD', base .. 'nq:suspended', tonumber(call('HGET', key, 'nq:n') or 0), id)
  else
    push_delayed(base, id, out.due)
  end
end
