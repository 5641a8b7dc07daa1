-- Parents and children in BullMQ's keys: `<parent>:dependencies` (pending children), `:processed` (their values),
-- `:failed` (errors of ignored children) and `:unsuccessful` (children that failed their parent).
local FLAGS = {fail = 'fpof', continue = 'cpof', ignore = 'idof', remove = 'rdof'}

-- Return the parent of a new job as BullMQ's add scripts expect it. A job that replaces another is a child only if the
-- parent still waits for that one.
local function parent_args(base, job)
  if not job.parent then return end
  local parent_queue_key = BULL .. job.parent_queue
  local key = parent_queue_key .. ':' .. job.parent
  if job.replaces and call('SREM', key .. ':dependencies', base .. job.replaces) == 0 then return end
  if call('EXISTS', key) == 0 then return end
  local parent = {id = job.parent, queueKey = parent_queue_key}
  local flag = FLAGS[job.on_failure]
  if flag then parent[flag] = true end
  return {key = key, flag = flag, data = parent}
end

-- Add a job that waits for its children, ordered by arrival within a millisecond.
local function push_waiting_children(base, id, number)
  call('ZADD', base .. 'waiting-children', now + (to_count(number) % 1024) / 1024, id)
end

-- Return whether children keep a job from completing: one is pending, or one has failed it.
local function has_open_children(key)
  local pending, failed = try('SCARD', key .. ':dependencies'), try('ZCARD', key .. ':unsuccessful')
  return type(pending) == 'number' and pending > 0 or type(failed) == 'number' and failed > 0
end

-- Let a parent go on that waits for its children. Its delay starts now.
local function release_parent(parent)
  local base, id = string.match(parent, '^(.*:)([^:]*)$')
  if call('ZREM', base .. 'waiting-children', id) == 0 then return end
  local delay = tonumber(call('HGET', parent, 'delay')) or 0
  if delay > 0 then push_delayed(base, id, now + delay) else push_waiting(base, id, true, 'waiting-children') end
end

-- Let a parent go on that will fail: a delay does not keep it.
local function release_failed_parent(parent, key)
  local base, id = string.match(parent, '^(.*:)([^:]*)$')
  if call('ZREM', base .. 'delayed', id) == 1 or call('ZREM', base .. 'waiting-children', id) == 1 then
    call('HSET', parent, 'delay', 0, 'nq:due', 0)
    push_waiting(base, id, true, 'waiting-children')
  end
  if not call('ZSCORE', base .. 'failed', id) then call('HSET', parent, 'defa', 'child ' .. key .. ' failed') end
end

-- Update the parent of a cancelled child, as BullMQ does for one that has failed.
local function settle_cancelled_child(key, reason)
  local child = call('HMGET', key, 'parentKey', 'parent')
  local parent, data = child[1], child[2] and cjson.decode(child[2]) or {}
  if not parent or call('EXISTS', parent) == 0 or not (data.fpof or data.cpof or data.idof or data.rdof) then return end
  if call('SREM', parent .. ':dependencies', key) == 0 then return end
  if data.fpof then
    call('ZADD', parent .. ':unsuccessful', now, key)
    return release_failed_parent(parent, key)
  end
  if not data.rdof then call('HSET', parent .. ':failed', key, reason) end
  if data.cpof or call('SCARD', parent .. ':dependencies') == 0 then release_parent(parent) end
end

-- Add a failed child that is retried to its parent's dependencies again.
local function reattach_to_parent(key)
  local parent = call('HGET', key, 'parentKey')
  if parent and call('EXISTS', parent) == 1
    and (call('ZREM', parent .. ':unsuccessful', key) == 1 or call('HDEL', parent .. ':failed', key) == 1) then
    call('SADD', parent .. ':dependencies', key)
  end
end
