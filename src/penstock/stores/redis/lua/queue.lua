-- Jobs in BullMQ's places, and in the few of our own beside them: nq:suspended, nq:held and nq:cancelled (sorted sets),
-- nq:leases (until when a worker may be silent) and nq:urgent (who in `wait` has a priority below 0).
local bases = {}
local function base_of(queue)
  local base = bases[queue]
  if not base then
    base = BULL .. queue .. ':'
    bases[queue] = base
  end
  return base
end

local FULL = 9007199254740991 -- of BullMQ's limiter: more than any limit

local function queue_named(id)
  local queue = where[id]
  if queue == nil then
    queue = call('HGET', NS .. 'where', id)
    where[id] = queue
  end
  return queue
end

local function is_placed(id, queue) where[id], placed[id] = queue, queue end

local function not_placed(id)
  where[id], placed[id] = false, nil
  call('HDEL', NS .. 'where', id)
end

local function queue_of(id)
  local queue = queue_named(id)
  if queue and call('EXISTS', BULL .. queue .. ':' .. id) == 1 then return queue end
  return false
end

-- A job that another program added is in no index of ours: each queue is asked.
local function find_queue(id)
  local queue = queue_of(id)
  if queue then return queue end
  for _, name in ipairs(call('SMEMBERS', NS .. 'queues')) do
    if call('EXISTS', BULL .. name .. ':' .. id) == 1 and call('TYPE', BULL .. name .. ':' .. id).ok == 'hash'
      and call('HEXISTS', BULL .. name .. ':' .. id, 'name') == 1 then
      return name
    end
  end
  return false
end

local known = {}
local function know_queue(queue)
  if not known[queue] then
    known[queue] = true
    call('SADD', NS .. 'queues', queue)
  end
end

local function mark(base)
  if call('HEXISTS', base .. 'meta', 'paused') == 0 then call('ZADD', base .. 'marker', 0, '0') end
end

local function mark_delayed(base)
  local first = call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')
  if first[2] then call('ZADD', base .. 'marker', tonumber(first[2]) / 0x1000, '1') end
end

-- Puts an urgent job, or one that comes back to the front, behind those of `wait` that go before it. Workers take from
-- the right end, so only the urgent ones are passed on the way.
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

-- Puts a job in line: `front` is for one that was there before.
local function push(base, id, front, from)
  local job = call('HMGET', base .. id, 'priority', 'nq:p', 'nq:n')
  local priority = tonumber(job[2] or job[1] or 0)
  if priority > 0 then
    local count = 0
    if not front then count = call('INCR', base .. 'pc') % 0x100000000 end
    call('ZADD', base .. 'prioritized', priority * 0x100000000 + count, id)
  elseif priority < 0 then
    local rank = priority * 0x100000000 + tonumber(job[3] or 0)
    push_ordered(base, id, rank)
    call('ZADD', base .. 'nq:urgent', rank, id)
  elseif front then
    push_ordered(base, id, 0)
  else
    call('LPUSH', base .. 'wait', id)
  end
  mark(base)
  call('XADD', base .. 'events', '*', 'event', 'waiting', 'jobId', id, 'prev', from)
end

local function push_delayed(base, id, due)
  local score = due * 0x1000
  local last = call('ZREVRANGEBYSCORE', base .. 'delayed', score + 0xfff, score, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if last then score = math.min(tonumber(last) + 1, score + 0xfff) end
  call('ZADD', base .. 'delayed', score, id)
  call('HSET', base .. id, 'delay', math.max(due - now, 0), 'nq:d', due)
  call('XADD', base .. 'events', '*', 'event', 'delayed', 'jobId', id, 'delay', due)
  mark_delayed(base)
end

-- The score of a finished job: its time, and within a millisecond its order of arrival.
local function finished_score(base, id, arrived)
  return now + (tonumber(arrived or call('HGET', base .. id, 'nq:n') or 0) % 1024) / 1024
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

-- Where a job is: its state, and the sorted set it is in if it is in one.
local function state_of(base, id)
  settle()
  for _, set in ipairs(SETS) do
    if call('ZSCORE', base .. set, id) then return STATES[set] or set, set end
  end
  if call('ZSCORE', base .. 'nq:leases', id) or call('LPOS', base .. 'active', id) then return 'active' end
  return 'waiting'
end

local function pull(base, id, set)
  if set then
    call('ZREM', base .. set, id)
    if set == 'completed' or set == 'failed' then call('ZREM', base .. 'nq:kept:' .. set, id) end
  else
    call('LREM', base .. 'wait', -1, id)
    call('ZREM', base .. 'nq:urgent', id)
  end
end

-- What a worker held is nobody's: the lock, the lease and the fence go together.
local function let_go(base, id)
  call('DEL', base .. id .. ':lock')
  call('SREM', base .. 'stalled', id)
  call('ZREM', base .. 'nq:leases', id)
  call('HDEL', base .. id, 'nq:t')
end

-- Memos go with the last job that could read them: one that continues another names its scope, and from a dead letter
-- such a one may still be made.
local function forget_memos(scope)
  if queue_of(scope) or queue_of(scope .. '.dlq') then return end
  if #call('ZRANGEBYLEX', NS .. 'scopes', '[' .. scope .. '\n', '(' .. scope .. '\11', 'LIMIT', 0, 1) == 0 then
    call('DEL', NS .. 'memos:' .. scope)
  end
end

-- What became of a child may let its parent go on, in whatever queue that is. BullMQ's scripts move it; our workers are
-- woken, and its due time is kept where we read it.
local function parent_moved(parent)
  if not parent or string.sub(parent, 1, #BULL) ~= BULL then return end
  local queue, id = string.match(string.sub(parent, #BULL + 1), '^(.*):([^:]*)$')
  if not queue then return end
  local due = call('ZSCORE', base_of(queue) .. 'delayed', id)
  if due then call('HSET', parent, 'nq:d', math.floor(tonumber(due) / 0x1000)) end
  touch('queue:' .. queue)
end

-- Deletes a job that no worker holds; gives whose memos it read.
local function delete_job(base, id, set)
  local job = call('HMGET', base .. id, 'nq:s', 'nq:r', 'parentKey')
  pull(base, id, set)
  bull_removeJob({base .. id, base .. 'repeat'}, {id, '0', base})
  not_placed(id)
  if job[1] then call('ZREM', NS .. 'scopes', job[1] .. '\n' .. id) end
  if job[2] then call('ZREM', NS .. 'run:' .. job[2] .. ':jobs', id) end
  parent_moved(job[3])
  return job[1] or id
end
