-- Reads the settings of each queue once per script, and counts what the script does to it.
local queues, is_only_adding = {}, false -- true while nothing can leave a wait list

-- Remove settings that BullMQ's scripts cannot read: they would stop the queue for every program.
local function repair_meta(name, base, meta)
  local function drop(field, at)
    note_problem(name, 'repaired', 'its setting `' .. field .. '` is ' .. cjson.encode(string.sub(meta[at], 1, 50))
      .. ', not a number, and was removed')
    call('HDEL', base .. 'meta', field)
    meta[at] = false
  end
  if meta[2] and not tonumber(meta[2]) then drop('concurrency', 2) end
  meta[6] = meta[3] and call('HGET', base .. 'meta', 'duration') or ''
  if meta[3] and not tonumber(meta[3]) then drop('max', 3) end
  if meta[3] and not tonumber(meta[6]) then
    drop('duration', 6)
    call('HDEL', base .. 'meta', 'max')
    meta[3] = false
  end
  if meta[4] and not string.find(meta[4], '^%d+$') then
    drop('opts.maxLenEvents', 4)
    meta[4] = '10000' -- BullMQ's default
    call('HSET', base .. 'meta', 'opts.maxLenEvents', meta[4])
  end
end

-- Read the settings of a queue. Raises if another program wrote a key that the commits of this script may write: nothing
-- is written yet, and a unit that fails later would be half written.
local function read_queue(base)
  call('LLEN', base .. 'wait')
  call('LLEN', base .. 'active')
  call('ZCARD', base .. 'delayed')
  call('ZCARD', base .. 'prioritized')
  call('ZCARD', base .. 'waiting-children')
  call('SCARD', base .. 'stalled')
  for _, counter in ipairs({'id', 'pc'}) do
    local count = call('GET', base .. counter)
    if count and not string.find(count, '^%d+$') then error('not a number', 0) end
  end
  return call('HMGET', base .. 'meta', 'paused', 'concurrency', 'max', 'opts.maxLenEvents', 'version')
end

local function queue_info(name)
  local queue = queues[name]
  if queue then return queue end
  local base = BULL .. name .. ':'
  local is_readable, meta = pcall(read_queue, base)
  local broken = not is_readable and (find_broken_key(base) or read_failure(meta))
  if broken then meta = {} end
  if meta[2] or meta[3] or meta[4] and not string.find(meta[4], '^%d+$') then repair_meta(name, base, meta) end
  local is_fast = not meta[1] and not meta[2] and not meta[3] and meta[4] and true
  -- All fields are set here, because Lua reallocates a table that grows.
  queue = {name = name, base = base, wait = base .. 'wait', active = base .. 'active', events = base .. 'events',
    completed = base .. 'completed', leases = base .. 'nq:leases', is_fast = is_fast, broken = broken, max_events = meta[4],
    paused = meta[1], version = meta[5], finished_ids = false, finished_scores = false, is_tail = false, next_ids = false,
    count = 0, next_delayed = false, next_lease_end = false, is_marked = false, is_trimmed = false, has_waiting = false}
  queues[name] = queue
  return queue
end

local function add_marker(queue)
  if not queue.is_marked then careful_call('ZADD', queue.base .. 'marker', '0', '0') end
  queue.is_marked = true
end

-- Write the counters that cover several jobs of a queue.
local function flush_counts()
  for _, queue in pairs(queues) do
    if queue.first_number and queue.more_numbers > 0 then call('INCRBY', queue.base .. 'id', queue.more_numbers) end
    if queue.completed_count and queue.completed_count > 0 then
      try('HINCRBY', queue.base .. 'metrics:completed', 'count', queue.completed_count)
    end
    queue.first_number, queue.completed_count = nil, nil
  end
end

-- Write all that is buffered. Needed before one of BullMQ's scripts, which reads the same keys.
local function flush_all()
  flush_counts()
  flush_writes()
end

-- Return how many jobs of the queue this script has completed; false if the last job ended in another minute. BullMQ's
-- metrics count by the minute, and its own script starts a new one.
local function completed_this_minute(queue)
  if queue.completed_count == nil then
    local previous = try('HGET', queue.base .. 'metrics:completed', 'prevTS')
    local ms = type(previous) == 'string' and tonumber(previous)
    if previous and not ms then call('DEL', queue.base .. 'metrics:completed') end -- BullMQ's script cannot count on
    queue.completed_count = ms and math.floor(ms / 60000) == math.floor(now / 60000) and 0
  end
  return queue.completed_count
end

local function is_drained(queue)
  if is_only_adding and queue.has_waiting then return false end
  flush_writes()
  if call('LLEN', queue.wait) > 0 then
    queue.has_waiting = true
    return false
  end
  return call('LLEN', queue.active) == 0 and call('ZCARD', queue.base .. 'prioritized') == 0
end

-- Show the status of a node as progress of its job, as readers of BullMQ's events expect it.
local function add_status(queue, id, data)
  careful_call('XADD', queue.events, '*', 'event', 'progress', 'jobId', id, 'data', data)
end

local function running_status(node)
  return '{"eventType":"node","nodeId":"' .. node .. '","nodeStatus":"running","timestamp":' .. now_text .. '}'
end

local function add_completed_event(queue, id, value)
  if queue.is_trimmed then
    careful_call('XADD', queue.events, '*', 'event', 'completed', 'jobId', id, 'returnvalue', value, 'prev', 'active')
  else
    careful_call('XADD', queue.events, 'MAXLEN', '~', queue.max_events, '*', 'event', 'completed', 'jobId', id, 'returnvalue',
      value, 'prev', 'active')
    queue.is_trimmed = true
  end
end
