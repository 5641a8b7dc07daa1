-- What a script knows of each queue it works on, read once; and what is told of one.
local queues, growing = {}, false -- whether nothing is taken from the lists of those who wait

local function queue_at(name)
  local queue = queues[name]
  if queue then return queue end
  local base = BULL .. name .. ':'
  local meta = call('HMGET', base .. 'meta', 'paused', 'concurrency', 'max', 'opts.maxLenEvents', 'version')
  local usual = not meta[1] and not meta[2] and not meta[3] and meta[4] and true
  -- With all it may come to know: a table that grows is made anew several times.
  queue = {name = name, base = base, wait = base .. 'wait', active = base .. 'active', events = base .. 'events',
    completed = base .. 'completed', leases = base .. 'nq:leases', usual = usual, most = meta[4], paused = meta[1],
    version = meta[5], ends = false, scores = false, last = false, line = false, count = 0, next = false, lapses = false,
    marked = false, trimmed = false, filled = false}
  queues[name] = queue
  return queue
end

local function mark_work(queue)
  if not queue.marked then call('ZADD', queue.base .. 'marker', '0', '0') end
  queue.marked = true
end

-- What counts more than one job of a queue.
local function keep_counts()
  for _, queue in pairs(queues) do
    if queue.number and queue.more > 0 then call('INCRBY', queue.base .. 'id', queue.more) end
    if queue.ended and queue.ended > 0 then call('HINCRBY', queue.base .. 'metrics:completed', 'count', queue.ended) end
    queue.number, queue.ended = nil, nil
  end
end

-- Before a script of BullMQ's is run: it is to find everything as if each write had been made at once.
local function catch_up()
  keep_counts()
  settle()
end

-- BullMQ's metrics count by the minute: whether it is still the one of the last job.
local function same_minute(queue)
  if queue.ended == nil then
    local last = call('HGET', queue.base .. 'metrics:completed', 'prevTS')
    queue.ended = last and math.floor(last / 60000) == math.floor(now / 60000) and 0
  end
  return queue.ended
end

local function is_drained(queue)
  if growing and queue.filled then return false end
  settle()
  if call('LLEN', queue.wait) > 0 then
    queue.filled = true
    return false
  end
  return call('LLEN', queue.active) == 0 and call('ZCARD', queue.base .. 'prioritized') == 0
end

local function tell_completed(queue, id, value)
  if queue.trimmed then
    call('XADD', queue.events, '*', 'event', 'completed', 'jobId', id, 'returnvalue', value, 'prev', 'active')
  else
    call('XADD', queue.events, 'MAXLEN', '~', queue.most, '*', 'event', 'completed', 'jobId', id, 'returnvalue', value,
      'prev', 'active')
    queue.trimmed = true
  end
end
