-- Parents and children in BullMQ's keys: `<parent>:dependencies` (who is waited for), `:processed` (their values),
-- `:failed` (why ignored ones failed) and `:unsuccessful` (those that failed their parent).
local FLAGS = {fail = 'fpof', continue = 'cpof', ignore = 'idof', remove = 'rdof'}

-- Who waits for a new job, as BullMQ's adding scripts are told. One that takes the place of another is a child only if that
-- one is still waited for.
local function parent_of(base, job)
  if not job.parent then return end
  local home = BULL .. job.parent_queue
  local key = home .. ':' .. job.parent
  if job.instead and call('SREM', key .. ':dependencies', base .. job.instead) == 0 then return end
  if call('EXISTS', key) == 0 then return end
  local parent = {id = job.parent, queueKey = home}
  local flag = FLAGS[job.on_failure]
  if flag then parent[flag] = true end
  return {key = key, flag = flag, data = parent}
end

-- A line of those that wait for their children, in order of arrival within a millisecond.
local function park(base, id, arrived)
  call('ZADD', base .. 'waiting-children', now + (tonumber(arrived or 0) % 1024) / 1024, id)
end

-- Whether a job may complete: none of its children is waited for, and none has failed it.
local function has_unsettled(key)
  return call('SCARD', key .. ':dependencies') > 0 or call('ZCARD', key .. ':unsuccessful') > 0
end

-- A child that was cancelled is waited for no more, as if it had been removed.
local function leave_parent(key)
  local parent = call('HGET', key, 'parentKey')
  if not parent or call('SREM', parent .. ':dependencies', key) == 0 then return end
  local base, id = string.match(parent, '^(.*:)([^:]*)$')
  if call('SCARD', parent .. ':dependencies') > 0 or call('ZREM', base .. 'waiting-children', id) == 0 then return end
  local delay = tonumber(call('HGET', parent, 'delay') or 0)
  if delay > 0 then push_delayed(base, id, now + delay) else push(base, id, true, 'waiting-children') end
end

-- A failed child that is tried again is waited for again.
local function back_to_parent(key)
  local parent = call('HGET', key, 'parentKey')
  if parent and call('EXISTS', parent) == 1
    and (call('ZREM', parent .. ':unsuccessful', key) == 1 or call('HDEL', parent .. ':failed', key) == 1) then
    call('SADD', parent .. ':dependencies', key)
  end
end
