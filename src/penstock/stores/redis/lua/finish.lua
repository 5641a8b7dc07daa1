-- The end of an attempt. ARGV[5] is what BullMQ's moveToFinished is told besides; the fence was checked before.
local function finish(base, id, state, name, value, arrived)
  local score = finished_score(base, id, arrived)
  local code = bull_moveToFinished({base .. 'wait', base .. 'active', base .. 'prioritized', base .. 'events',
    base .. 'stalled', base .. 'limiter', base .. 'delayed', base .. 'paused', base .. 'meta', base .. 'pc',
    base .. state, base .. id, base .. 'metrics:' .. state, base .. 'marker'},
    {id, now, name, value, state, '0', base, ARGV[5], ''})
  if code == 0 and score ~= now then call('ZADD', base .. state, 'XX', score, id) end
end

local function to_front(base, id)
  call('LREM', base .. 'active', -1, id)
  push(base, id, true, 'active')
end

local function end_attempt(base, id, unit, out)
  local key = base .. id
  call('DEL', key .. ':lock')
  call('ZREM', base .. 'nq:leases', id)
  call('HSET', key, 'nq:u', unit, 'nq:t', '')
  local parent = out.parent
  if out.error then
    call('HSET', key, 'nq:e', out.error)
    call('HINCRBY', key, 'nq:f', 1)
  end
  if out.kind == 'completed' or out.kind == 'dead' then
    local completed = out.kind == 'completed'
    finish(base, id, completed and 'completed' or 'failed', completed and 'returnvalue' or 'failedReason', out.value,
      out.arrived)
    return parent_moved(parent)
  end
  if out.kind == 'given_back' and out.due <= now then
    call('HSET', key, 'nq:d', out.due)
    return to_front(base, id)
  end
  call('LREM', base .. 'active', -1, id)
  if out.kind == 'retry' then call('HINCRBY', key, 'atm', 1) end
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
