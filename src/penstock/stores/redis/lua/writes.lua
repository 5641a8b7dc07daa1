-- What a unit that was not refused writes.
local function each_job_of_run(work)
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run.id .. ':jobs', 0, -1)) do
    local queue = queue_of(id)
    if queue then work(id, queue, base_of(queue)) end
  end
end

local function release(id, queue, base)
  settle()
  if call('ZREM', base .. 'nq:held', id) == 1 then
    local due = tonumber(call('HGET', base .. id, 'nq:d') or 0)
    if due > now then push_delayed(base, id, due) else push(base, id, false, 'held') end
    touch('queue:' .. queue)
  end
end

local CANCELLABLE = {waiting = true, delayed = true, suspended = true, held = true}
local function cancel(id, _, base)
  local state, set = state_of(base, id)
  if CANCELLABLE[state] then
    pull(base, id, set)
    growing = false
    call('HSET', base .. id, 'nq:u', unit)
    push_cancelled(base, id)
  end
end

local function unlist_wait(id, wait)
  call('ZREM', NS .. 'waits:' .. wait.kind, id)
  if wait.topic then
    call('ZREM', NS .. 'topic:' .. wait.topic, id)
    call('ZREM', NS .. 'topickeys:' .. wait.topic, (wait.key or '') .. '\n' .. id)
  end
end

local function close_wait(id, state)
  local wait = fields(call('HGETALL', NS .. 'wait:' .. id))
  if wait.state == 'pending' then
    unlist_wait(id, wait)
    call('HSET', NS .. 'wait:' .. id, 'state', state)
  end
end

local function index_run(key, created)
  local lists = {'runs:status:' .. run.status, run.closed and 'runs:closed' or 'runs:open'}
  if before then
    if before[2] ~= run.status then call('ZREM', NS .. 'runs:status:' .. before[2], run.id) end
    if (before[3] == '1') ~= run.closed then
      call('ZREM', NS .. (run.closed and 'runs:open' or 'runs:closed'), run.id)
    end
  else
    lists[3], lists[4] = 'runs', 'runs:flow:' .. run.flow
  end
  for _, list in ipairs(lists) do call('ZADD', NS .. list, created, run.id) end
end

local function write_run()
  local key = NS .. 'run:' .. run.id
  local closed, paused = run.closed and '1' or '0', run.paused and '1' or '0'
  local created = before and tonumber(before[6]) or now
  local version = run.expect + 1
  if not before then
    call('HSET', key, 'version', version, 'updated', stamp, 'unit', unit, 'record', run.record, 'status', run.status,
      'closed', closed, 'paused', paused, 'created', stamp, 'flow', run.flow)
    index_run(key, created)
  elseif before[2] ~= run.status or before[3] ~= closed or before[4] ~= paused then
    call('HSET', key, 'version', version, 'updated', stamp, 'unit', unit, 'record', run.record, 'status', run.status,
      'closed', closed, 'paused', paused)
    index_run(key, created)
    if before[4] == '1' and not run.paused then each_job_of_run(release) end
  else
    call('HSET', key, 'version', version, 'updated', stamp, 'unit', unit, 'record', run.record)
  end
  if run.closed then touch('run:' .. run.id) end
  if run.cancel then
    each_job_of_run(cancel)
    touch('cancelled')
  end
end

local COMING_BACK = {retry = true, given_back = true, suspended = true}
local function write_job()
  local base = base_of(claim.queue)
  if progress then
    call('HSET', base .. claim.job, 'progress', progress)
    call('XADD', base .. 'events', '*', 'event', 'progress', 'jobId', claim.job, 'data', progress)
  end
  for _, line in ipairs(logs) do call('RPUSH', base .. claim.job .. ':logs', line) end
  if #logs > 0 then call('LTRIM', base .. claim.job .. ':logs', -1000, -1) end
  if outcome then
    end_attempt(queue_at(claim.queue), claim.job, unit, outcome)
    if COMING_BACK[outcome.kind] then touch('queue:' .. claim.queue) end
  end
end

local WAKEABLE = {delayed = true, suspended = true}
local function wake(id)
  local queue = find_queue(id)
  if not queue then return end
  local base = base_of(queue)
  local state, set = state_of(base, id)
  if WAKEABLE[state] then
    pull(base, id, set)
    call('HSET', base .. id, 'nq:d', 0, 'delay', 0)
    push(base, id, false, state)
    touch('queue:' .. queue)
  end
end

-- The last place given out in the order of all streams.
local function position()
  local last = call('XREVRANGE', NS .. 'feed', '+', '-', 'COUNT', 1)[1]
  return last and last[1] or '0-0'
end

local function open_wait(i)
  local id = ARGV[i]
  local key = NS .. 'wait:' .. id
  local kept = fields(call('HGETALL', key))
  if kept.state == 'pending' then unlist_wait(id, kept) end
  local wait = {run = ARGV[i + 1], scope = ARGV[i + 2], kind = ARGV[i + 3], topic = optional(ARGV[i + 7]),
    key = optional(ARGV[i + 8])}
  call('HSET', key, 'run', kept.run or wait.run, 'scope', kept.scope or wait.scope, 'kind', kept.kind or wait.kind,
    'state', 'pending', 'body', ARGV[i + 4], 'due', ARGV[i + 5], 'job', ARGV[i + 6], 'pos', kept.pos or position())
  call('HDEL', key, 'topic', 'key')
  call('ZADD', NS .. 'waits:' .. (kept.kind or wait.kind), 0, id)
  call('ZADD', NS .. 'run:' .. (kept.run or wait.run) .. ':waits', 0, id)
  if wait.topic then
    call('HSET', key, 'topic', wait.topic)
    if wait.key then call('HSET', key, 'key', wait.key) end
    listened[wait.topic] = nil
    call('ZADD', NS .. 'topic:' .. wait.topic, 0, id)
    call('ZADD', NS .. 'topickeys:' .. wait.topic, 0, (wait.key or '') .. '\n' .. id)
  end
end

local function write_state(i)
  local key, name = NS .. 'state:' .. ARGV[i], ARGV[i]
  local over = call('HGET', key, 'x')
  if ARGV[i + 2] == '0' then
    call('DEL', key)
    call('ZREM', NS .. 'states', name)
    call('ZREM', NS .. 'states:due', name)
    return
  end
  call('HINCRBY', key, 'n', 1)
  call('HSET', key, 'v', ARGV[i + 1])
  call('ZADD', NS .. 'states', 0, name)
  if ARGV[i + 4] ~= '' then
    call('HSET', key, 'x', ARGV[i + 4])
    call('ZADD', NS .. 'states:due', ARGV[i + 4], name)
  elseif over then
    call('HDEL', key, 'x')
    call('ZREM', NS .. 'states:due', name)
  end
end

local function list_schedule(id, next, paused)
  call('ZADD', NS .. 'schedules', 0, id)
  if next and next ~= '' and paused ~= '1' then
    call('ZADD', NS .. 'schedules:due', next, id)
  else
    call('ZREM', NS .. 'schedules:due', id)
  end
end

local function put_schedule()
  local key = NS .. 'schedule:' .. ARGV[put]
  for n = 1, 6 do
    local value = ARGV[put + n]
    if value == '' then call('HDEL', key, ROW[n]) else call('HSET', key, ROW[n], value) end
  end
  list_schedule(ARGV[put], ARGV[put + 3], ARGV[put + 5])
  touch('schedules')
end

local function move_schedule()
  local key = NS .. 'schedule:' .. move.id
  call('HSET', key, 'last', move.slot)
  call('HINCRBY', key, 'fired', 1)
  if move.next then call('HSET', key, 'next', move.next) else call('HDEL', key, 'next') end
  list_schedule(move.id, move.next, call('HGET', key, 'paused'))
end

local function write_parts()
  local places, added = {}, {}
  for _, i in ipairs(events) do
    local ms, seq = append(ARGV[i], ARGV[i + 1], ARGV[i - 1] == 'H' and ARGV[i + 2])
    places[#places + 1] = ms
    places[#places + 1] = seq
  end
  for _, job in ipairs(jobs) do
    local new, i = known_tree and 0 or add_job(job), job.added
    added[#added + 1] = new
    if new == 1 and i then append(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  end
  for _, i in ipairs(memos) do call('HSETNX', NS .. 'memos:' .. ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  for _, wait in ipairs(waits) do
    if wait[2] then open_wait(wait[1]) else close_wait(ARGV[wait[1]], ARGV[wait[1] + 1]) end
  end
  for _, i in ipairs(states) do write_state(i) end
  return {COMMITTED, places, added}
end

-- After the unit's own waits: one that the last unit of a run has resolved is not cancelled.
local function cancel_waits()
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run.id .. ':waits', 0, -1)) do close_wait(id, 'cancelled') end
end

local function write()
  if remember then call('ZADD', NS .. 'units', now, unit) end
  if put then put_schedule() end
  if run then write_run() end
  if claim then write_job() end
  if #takes > 0 then growing = false end
  for _, id in ipairs(takes) do delete_job(base_of(taken[id][1]), id, taken[id][2]) end
  for _, id in ipairs(wakes) do wake(id) end
  local receipt = write_parts()
  if run and run.closed then cancel_waits() end
  forget_ended(unit)
  if move then move_schedule() end
  if once then call('ZADD', NS .. 'once', now, once) end
  deliver()
  return receipt
end

