-- Moves jobs between BullMQ's lists and sets, and our own beside them: nq:suspended, nq:held and nq:cancelled (sorted
-- sets), nq:leases (job to the end of its lease), nq:timed (jobs
-- in `delayed` that wait until a timeout, to count them), nq:urgent (jobs in `wait` with a priority below 0) and nq:plain (finished
-- jobs that belong to no run, see housekeeping.lua).
local base_keys = {}
local function base_key(queue)
  local base = base_keys[queue]
  if not base then
    base = BULL .. queue .. ':'
    base_keys[queue] = base
  end
  return base
end

local LIMITER_FULL = 9007199254740991 -- the value of BullMQ's limiter that stops every worker

local function lookup_queue(id)
  local queue = job_queues[id]
  if queue == nil then
    queue = call('HGET', NS .. 'job_queues', id)
    job_queues[id] = queue
  end
  return queue
end

local function remember_queue(id, queue) job_queues[id], unsaved_job_queues[id] = queue, queue end

local function forget_queue(id)
  job_queues[id], unsaved_job_queues[id] = false, nil
  call('HDEL', NS .. 'job_queues', id)
end

local function existing_queue(id)
  local queue = lookup_queue(id)
  if queue and call('EXISTS', BULL .. queue .. ':' .. id) == 1 then return queue end
  return false
end

-- Find the queue of any job. Jobs of other programs are in no index of ours, so each queue is checked.
local function find_queue(id)
  local queue = existing_queue(id)
  if queue then return queue end
  for _, name in ipairs(call('SMEMBERS', NS .. 'queues')) do
    local key = BULL .. name .. ':' .. id
    if call('EXISTS', key) == 1 and call('TYPE', key).ok == 'hash'
      and (call('HEXISTS', key, 'name') == 1 or call('HEXISTS', key, 'nq:error') == 1) then
      return name
    end
  end
  return false
end

-- Return the queue whose job of that id was set aside.
local function find_set_aside(id)
  for _, name in ipairs(call('SMEMBERS', NS .. 'queues')) do
    if call('HEXISTS', BULL .. name .. ':nq:set_aside', id) == 1 then return name end
  end
  return false
end

local registered = {}
local function register_queue(queue)
  if not registered[queue] then
    registered[queue] = true
    call('SADD', NS .. 'queues', queue)
  end
end

-- Add to a count of a job. One that another program wrote and that is no number starts at 0.
local function increment(key, field, by)
  local count = try('HINCRBY', key, field, by)
  if type(count) == 'table' then call('HSET', key, field, math.max(by, 0)) end
end

-- Take a job whose key is not a hash out of its queue, where it would stop every claim. `nq:set_aside` has its id and the
-- type of its key, which stays as it is.
local function set_aside(base, id)
  local queue, kind = string.sub(base, #BULL + 1, -2), call('TYPE', base .. id).ok
  flush_writes()
  for _, list in ipairs({'wait', 'active'}) do call('LREM', base .. list, 0, id) end
  for _, set in ipairs({'delayed', 'prioritized', 'waiting-children', 'nq:leases', 'nq:urgent', 'nq:suspended', 'nq:held',
    'nq:timed'}) do
    call('ZREM', base .. set, id)
  end
  call('SREM', base .. 'stalled', id)
  call('HSET', base .. 'nq:set_aside', id, kind)
  register_queue(queue)
  note_problem(queue, 'aside', 'job ' .. string.sub(id, 1, 100) .. ' has a key of type ' .. kind .. ', not hash')
end

-- Return the queue of any job. One whose key is not a hash is set aside, and there is no such job.
local function readable_queue(id)
  local queue = find_queue(id)
  if not queue or call('TYPE', BULL .. queue .. ':' .. id).ok == 'hash' then return queue end
  set_aside(base_key(queue), id)
  return false
end

local function add_marker_if_running(base)
  if call('HEXISTS', base .. 'meta', 'paused') == 0 then call('ZADD', base .. 'marker', 0, '0') end
end

local function add_delayed_marker(base)
  local first = call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')
  if first[2] then call('ZADD', base .. 'marker', tonumber(first[2]) / 0x1000, '1') end
end

-- Insert an urgent or returning job behind the jobs of `wait` that run before it. Workers take from the right end, so
-- only urgent jobs are moved.
local function push_ordered(base, id, rank)
  local wait, urgent, ahead = base .. 'wait', base .. 'nq:urgent', {}
  while true do
    local last = call('LINDEX', wait, -1 - #ahead)
    local score = last and call('ZSCORE', urgent, last)
    if not score or tonumber(score) > rank then break end
    ahead[#ahead + 1] = last
  end
  if #ahead > 0 then call('LTRIM', wait, 0, -1 - #ahead) end
  call('RPUSH', wait, id)
  for i = #ahead, 1, -1 do call('RPUSH', wait, ahead[i]) end
end

-- Add a job to its queue. `front`: it was claimed before and goes first.
local function push_waiting(base, id, front, from)
  local job = call('HMGET', base .. id, 'priority', 'nq:priority', 'nq:number')
  local priority = tonumber(job[2] or job[1]) or 0
  if priority > 0 then
    local count = 0
    if not front then count = call('INCR', base .. 'pc') % 0x100000000 end
    call('ZADD', base .. 'prioritized', priority * 0x100000000 + count, id)
  elseif priority < 0 then
    local rank = priority * 0x100000000 + to_count(job[3])
    push_ordered(base, id, rank)
    call('ZADD', base .. 'nq:urgent', rank, id)
  elseif front then
    push_ordered(base, id, 0)
  else
    call('LPUSH', base .. 'wait', id)
  end
  add_marker_if_running(base)
  call('XADD', base .. 'events', '*', 'event', 'waiting', 'jobId', id, 'prev', from)
end

local function push_delayed(base, id, due)
  local score = due * 0x1000
  local last = call('ZREVRANGEBYSCORE', base .. 'delayed', score + 0xfff, score, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if last then score = math.min(tonumber(last) + 1, score + 0xfff) end
  call('ZADD', base .. 'delayed', score, id)
  call('HSET', base .. id, 'delay', math.max(due - now, 0), 'nq:due', due)
  call('XADD', base .. 'events', '*', 'event', 'delayed', 'jobId', id, 'delay', due)
  add_delayed_marker(base)
end

-- Return the score of a finished job: its time, and within a millisecond its order of arrival.
local function finished_score(base, id, arrived)
  return now + (to_count(arrived or call('HGET', base .. id, 'nq:number')) % 1024) / 1024
end

local function push_cancelled(base, id)
  call('ZADD', base .. 'nq:cancelled', finished_score(base, id), id)
  call('HSET', base .. id, 'finishedOn', now)
  call('XADD', base .. 'events', '*', 'event', 'removed', 'jobId', id, 'prev', 'cancelled')
end

local SETS = {'delayed', 'completed', 'failed', 'nq:suspended', 'nq:cancelled', 'nq:held', 'prioritized',
  'waiting-children'}
local STATES = {['nq:suspended'] = 'suspended', ['nq:cancelled'] = 'cancelled', ['nq:held'] = 'held',
  prioritized = 'waiting'}

-- Return the state of a job, and the sorted set it is in, if any.
local function job_state(base, id)
  flush_writes()
  for _, set in ipairs(SETS) do
    if call('ZSCORE', base .. set, id) then return STATES[set] or set, set end
  end
  if call('ZSCORE', base .. 'nq:leases', id) or call('LPOS', base .. 'active', id) then return 'active' end
  return 'waiting'
end

local function remove_from_state(base, id, set)
  if set then
    call('ZREM', base .. set, id)
    if set == 'delayed' then call('ZREM', base .. 'nq:timed', id) end
    if set == 'completed' or set == 'failed' then call('ZREM', base .. 'nq:retained:' .. set, id) end
    call('ZREM', base .. 'nq:plain', id)
  else
    call('LREM', base .. 'wait', -1, id)
    call('ZREM', base .. 'nq:urgent', id)
  end
end

-- Remove the lock, the lease and the fence of a job together.
local function release_lock(base, id)
  call('DEL', base .. id .. ':lock')
  call('SREM', base .. 'stalled', id)
  call('ZREM', base .. 'nq:leases', id)
  call('HDEL', base .. id, 'nq:token')
end
