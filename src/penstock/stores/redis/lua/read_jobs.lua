-- Reads jobs and queues. ARGV[6] names the read, the rest are its arguments. Nothing here writes.
local function arg(n) return ARGV[6 + n] end
local FAR = '\255\255\255\255'

-- Return the lower bound of the next page of an index by name.
local function after_prefix(prefix, after)
  if after ~= '' and after >= prefix then return '(' .. after end
  return '[' .. prefix
end

-- Return the job before a held one with the same order key.
local function previous_in_order(base, id)
  local key = call('HGET', base .. id, 'nq:order_key')
  local rank = key and call('ZRANK', base .. 'nq:order:' .. key, id)
  return rank and rank > 0 and call('ZRANGE', base .. 'nq:order:' .. key, rank - 1, rank - 1)[1]
end

local function job_row(queue, id)
  local base = base_key(queue)
  local flat = try('HGETALL', base .. id)
  if flat.err then
    local reason = 'the key of the job is of type ' .. call('TYPE', base .. id).ok .. ', not hash'
    return {id, queue, 'failed', false, {'failedReason', reason}, false}
  end
  if #flat == 0 then return false end
  local state = job_state(base, id)
  return {id, queue, state, call('ZSCORE', base .. 'nq:leases', id), flat,
    state == 'held' and previous_in_order(base, id)}
end

local function job_rows(queue, ids)
  local rows = {}
  for _, id in ipairs(ids) do
    local row = job_row(queue, id)
    if row then rows[#rows + 1] = row end
  end
  return rows
end

-- Return a page of a sorted set after a member; from the start if the member is gone.
local function page_of(set, after, limit)
  local rank = after ~= '' and call('ZRANK', set, after)
  local start = rank and rank + 1 or 0
  return call('ZRANGE', set, start, start + limit - 1)
end

local function waiting_ids(base, after, limit)
  local ids, wait = {}, base .. 'wait'
  if after ~= '' and call('ZSCORE', base .. 'prioritized', after) then
    return page_of(base .. 'prioritized', after, limit)
  end
  local at = after ~= '' and call('LPOS', wait, after, 'RANK', -1)
  local high = at and at - 1 or call('LLEN', wait) - 1
  if high >= 0 then
    local list = call('LRANGE', wait, math.max(high - limit + 1, 0), high)
    for n = #list, 1, -1 do ids[#ids + 1] = list[n] end
  end
  if #ids < limit then
    for _, id in ipairs(call('ZRANGE', base .. 'prioritized', 0, limit - #ids - 1)) do ids[#ids + 1] = id end
  end
  return ids
end

local function active_ids(base, after, limit)
  local ids, active = {}, base .. 'active'
  local at = after ~= '' and call('LPOS', active, after, 'RANK', -1)
  local high = at and at - 1 or call('LLEN', active) - 1
  if high < 0 then return ids end
  local list = call('LRANGE', active, math.max(high - limit + 1, 0), high)
  for n = #list, 1, -1 do ids[#ids + 1] = list[n] end
  return ids
end

local READS = {}

function READS.job()
  local queue = find_queue(arg(1)) or find_set_aside(arg(1))
  return queue and job_row(queue, arg(1))
end

-- Return the jobs that were set aside: queue, id and type of the key.
function READS.set_aside()
  local rows = {}
  for _, name in ipairs(call('SMEMBERS', NS .. 'queues')) do
    local flat = call('HGETALL', base_key(name) .. 'nq:set_aside')
    for n = 1, #flat, 2 do rows[#rows + 1] = {name, flat[n], flat[n + 1]} end
  end
  return rows
end

-- Return what stops queues: keys of theirs that another program wrote.
function READS.broken_queues()
  local found = {}
  for _, name in ipairs(call('SMEMBERS', NS .. 'queues')) do found[#found + 1] = find_broken_key(base_key(name)) end
  return found
end

-- Return the keys of ours that another program wrote and that were moved: key, type, and where they are now.
function READS.keys_set_aside()
  local rows, flat = {}, read_record(NS .. 'set_aside')
  for n = 1, #flat, 2 do
    local moved = NS .. 'aside:' .. flat[n]
    if call('EXISTS', moved) == 1 then rows[#rows + 1] = {flat[n], flat[n + 1], moved} end
  end
  return rows
end

-- Return the children of a job: key, state, and value or error.
function READS.children()
  local queue, rows = find_queue(arg(1)), {}
  if not queue then return rows end
  local key = base_key(queue) .. arg(1)
  for _, child in ipairs(try('SMEMBERS', key .. ':dependencies')) do rows[#rows + 1] = {child, 'unprocessed'} end
  for _, child in ipairs(try('ZRANGE', key .. ':unsuccessful', 0, -1)) do rows[#rows + 1] = {child, 'failed'} end
  for set, state in pairs({processed = 'processed', failed = 'ignored'}) do
    local flat = try('HGETALL', key .. ':' .. set)
    for n = 1, #flat, 2 do rows[#rows + 1] = {flat[n], state, flat[n + 1]} end
  end
  return rows
end

function READS.jobs()
  local queue, state, after, limit = arg(1), arg(2), arg(3), tonumber(arg(4))
  local base, ids = base_key(queue), nil
  if state == 'waiting' then
    ids = waiting_ids(base, after, limit)
  elseif state == 'active' then
    ids = active_ids(base, after, limit)
  else
    local own = {suspended = true, held = true, cancelled = true}
    ids = page_of(base .. (own[state] and 'nq:' or '') .. state, after, limit)
  end
  return job_rows(queue, ids)
end

-- Return since when a job waits; false if it is gone or another program's.
local function waiting_since(base, id)
  local job = id and read_fields(base .. id, 'timestamp', 'delay', 'nq:due')
  if not job or not job[1] then return false end
  return math.max(to_count(job[1]) + to_count(job[2]), to_count(job[3]))
end

-- Return the earliest of the first job in line, the first of each priority, and jobs whose delay is over. The score of a
-- prioritized job starts with its priority, that of a delayed one with its due time.
local function oldest_waiting(base)
  local found = {}
  local function note(id) found[#found + 1] = waiting_since(base, id) or nil end
  local waiting = try('LRANGE', base .. 'wait', -1, -1)
  note(waiting[1])
  local low, n = '-inf', 0
  repeat
    local head = try('ZRANGEBYSCORE', base .. 'prioritized', low, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    note(head[1])
    n = n + 1
    if head[2] then low = string.format('%.0f', (math.floor(tonumber(head[2]) / 4294967296) + 1) * 4294967296) end
  until not head[2] or n == 100
  local delayed = try('ZRANGEBYSCORE', base .. 'delayed', '-inf', (now + 1) * 4096, 'WITHSCORES', 'LIMIT', 0, 1)
  if delayed[2] and math.floor(tonumber(delayed[2]) / 4096) <= now then
    found[#found + 1] = math.floor(tonumber(delayed[2]) / 4096)
  end
  return #found > 0 and math.min(unpack(found))
end

function READS.queues()
  local rows = {}
  for _, name in ipairs(call('SMEMBERS', NS .. 'queues')) do
    local base = base_key(name)
    local function count(command, key, field)
      local found = field and try(command, base .. key, field) or try(command, base .. key)
      return type(found) == 'number' and found or 0 -- a key of another type
    end
    local function size(set) return count('ZCARD', set) end
    local delayed = size('delayed')
    local timed = math.min(size('nq:timed'), delayed)
    rows[#rows + 1] = {name, count('HEXISTS', 'meta', 'paused'),
      count('LLEN', 'wait') + size('prioritized'), delayed - timed, count('LLEN', 'active'),
      size('nq:suspended') + timed, size('completed'), size('failed'), size('nq:cancelled'), size('waiting-children'),
      size('nq:held'), oldest_waiting(base)}
  end
  return rows
end
