-- Units one after another, each with every check first and every write after. From ARGV[6] on: a letter and the values
-- that belong to it, `U` beginning the next unit. Bodies are the caller's and are never looked into.
local unit, remember
local claim, outcome, run, move, once, progress, put, before
local events, jobs, memos, waits, states, wakes, takes, logs
local taken

local READ = {
  C = function(i)
    claim = {queue = ARGV[i], job = ARGV[i + 1], attempt = ARGV[i + 2], token = ARGV[i + 3], run = ARGV[i + 4]}
    return 5
  end,
  O = function(i)
    outcome = {kind = ARGV[i], due = tonumber(ARGV[i + 1]), value = ARGV[i + 2], error = optional(ARGV[i + 3]),
      count = tonumber(ARGV[i + 4]), age = tonumber(ARGV[i + 5]), stack = optional(ARGV[i + 6])}
    return 7
  end,
  P = function(i) progress = ARGV[i] return 1 end,
  L = function(i) logs[#logs + 1] = ARGV[i] return 1 end,
  R = function(i)
    run = {id = ARGV[i], expect = tonumber(ARGV[i + 1]), record = ARGV[i + 2], flow = ARGV[i + 3],
      status = ARGV[i + 4], closed = ARGV[i + 5] == '1', paused = ARGV[i + 6] == '1', cancel = ARGV[i + 7] == '1',
      after = optional(ARGV[i + 8])}
    return 9
  end,
  E = function(i) events[#events + 1] = i return 3 end,
  J = function(i) jobs[#jobs + 1] = i return 22 end,
  M = function(i) memos[#memos + 1] = i return 3 end,
  W = function(i) waits[#waits + 1] = {i, true} return 9 end,
  X = function(i) waits[#waits + 1] = {i, false} return 3 end,
  S = function(i) states[#states + 1] = i return 5 end,
  K = function(i) wakes[#wakes + 1] = ARGV[i] return 1 end,
  T = function(i) takes[#takes + 1] = ARGV[i] return 1 end,
  D = function(i) move = {id = ARGV[i], slot = ARGV[i + 1], next = optional(ARGV[i + 2])} return 3 end,
  N = function(i) once = ARGV[i] return 1 end,
  Q = function(i) put = i return 14 end,
}

-- Reads the unit that begins here; gives where the next one does.
local function read_unit(at)
  unit, remember = ARGV[at + 1], ARGV[at + 2] == '1'
  claim, outcome, run, move, once, progress, put, before = nil, nil, nil, nil, nil, nil, nil, nil
  events, jobs, memos, waits, states, wakes, takes, taken, logs = {}, {}, {}, {}, {}, {}, {}, {}, {}
  at = at + 3
  while at <= #ARGV and ARGV[at] ~= 'U' do at = at + 1 + READ[ARGV[at]](at + 1) end
  return at
end

-- Checks

local COMMITTED, REPEATED, FENCED, CONFLICT, REFUSED = 1, {2}, {3}, 4, 5

local function check_fence()
  local base = base_of(claim.queue)
  local key = base .. claim.job
  local job = call('HMGET', key, 'nq:t', 'ats', 'nq:u', 'nq:n', 'nq:w', 'parentKey')
  if job[3] == unit then return REPEATED end
  if not job[2] and call('ZSCORE', NS .. 'units', unit) then return REPEATED end -- it went when it ended
  if job[1] ~= claim.token or job[2] ~= claim.attempt then return FENCED end
  if outcome then
    outcome.arrived, outcome.parent = job[4], job[6]
    -- Of a job that another program added, only its keys say whether it has children.
    outcome.family = outcome.kind == 'completed' and (job[5] or not job[4])
  end
  local lock = call('GET', key .. ':lock')
  if lock ~= claim.token then
    -- The lease ran out, and nobody has taken the job: it may still end, unless BullMQ's own check has moved it.
    if lock or not call('LPOS', base .. 'active', claim.job) then return FENCED end
  end
  if not run and claim.run ~= '' and (#events > 0 or not outcome) then
    local closed = call('HGET', NS .. 'run:' .. claim.run, 'closed')
    if closed ~= '0' then return FENCED end
  end
end

local function check_version()
  before = call('HMGET', NS .. 'run:' .. run.id, 'version', 'status', 'closed', 'paused', 'unit', 'created')
  if not before[1] then
    before = nil
    if run.expect ~= 0 then return {CONFLICT, 0, false} end
    return
  end
  if before[5] == unit then return REPEATED end
  if tonumber(before[1]) ~= run.expect or (run.after and run.after ~= before[5]) then
    return {CONFLICT, tonumber(before[1]), call('HGET', NS .. 'run:' .. run.id, 'record')}
  end
end

local TAKEABLE = {waiting = true, delayed = true, suspended = true, failed = true}
local function check_takes()
  for _, id in ipairs(takes) do
    local queue = find_queue(id)
    local state, set
    if queue then state, set = state_of(base_of(queue), id) end
    if not TAKEABLE[state] then return {REFUSED, 'taken', id} end
    taken[id] = {queue, set}
  end
end

local function check_waits()
  for _, wait in ipairs(waits) do
    local i, opening = wait[1], wait[2]
    local state = call('HGET', NS .. 'wait:' .. ARGV[i], 'state')
    local late
    if opening then
      late = state == 'resolved' or state == 'expired'
    else
      late = ARGV[i + 2] ~= '1' and state ~= 'open'
    end
    if late then return {REFUSED, 'wait', ARGV[i]} end
  end
end

local function check_states()
  for _, i in ipairs(states) do
    if ARGV[i + 3] ~= '' then
      local kept = call('HMGET', NS .. 'state:' .. ARGV[i], 'n', 'x')
      local version = kept[1] or '0'
      if kept[2] and tonumber(kept[2]) <= now then version = '0' end
      if version ~= ARGV[i + 3] then return {REFUSED, 'state', ARGV[i]} end
    end
  end
end

-- A tree is added whole, or not at all if it is there already.
local known_tree
local function check_tree()
  known_tree = false
  local first = jobs[1]
  if not first or ARGV[first + 17] ~= '1' then return end
  local function there(i) return queue_of(ARGV[i]) or call('EXISTS', base_of(ARGV[i + 1]) .. ARGV[i]) == 1 end
  known_tree = there(first)
  if known_tree then return end
  for n = 2, #jobs do
    if there(jobs[n]) then return {REFUSED, 'job', ARGV[jobs[n]]} end
  end
end

local ROW = {'spec', 'target', 'next', 'last', 'paused', 'fired'}
local function check_put()
  local kept = call('HMGET', NS .. 'schedule:' .. ARGV[put], unpack(ROW))
  if ARGV[put + 7] == '' then return not kept[1] end
  for n = 1, 6 do
    if (kept[n] or '') ~= ARGV[put + 7 + n] or not kept[1] then return false end
  end
  return true
end

local function check()
  if put and not check_put() then return {REFUSED, 'schedule', ARGV[put]} end
  if remember and call('ZSCORE', NS .. 'units', unit) then return REPEATED end
  local no = claim and check_fence()
  if no then return no end
  no = run and check_version()
  if no then return no end
  if once and call('ZSCORE', NS .. 'once', once) then return {REFUSED, 'duplicate', once} end
  if outcome and outcome.family and has_unsettled(base_of(claim.queue) .. claim.job) then
    return {REFUSED, 'children', claim.job}
  end
  no = check_tree() or check_takes() or check_waits() or check_states()
  if no then return no end
  if move and call('HGET', NS .. 'schedule:' .. move.id, 'next') ~= move.slot then
    return {REFUSED, 'schedule', move.id}
  end
end

-- Writes

local function each_job_of_run(work)
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run.id .. ':jobs', 0, -1)) do
    local queue = queue_of(id)
    if queue then work(id, queue, base_of(queue)) end
  end
end

local function release(id, queue, base)
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
  if wait.state == 'open' then
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
  call('HSET', key, 'version', run.expect + 1, 'updated', now, 'unit', unit, 'record', run.record)
  if not before or before[2] ~= run.status or before[3] ~= closed or before[4] ~= paused then
    call('HSET', key, 'status', run.status, 'closed', closed, 'paused', paused)
    if not before then call('HSET', key, 'created', now, 'flow', run.flow) end
    index_run(key, created)
    if before and before[4] == '1' and not run.paused then each_job_of_run(release) end
  end
  if run.closed then
    for _, id in ipairs(call('ZRANGE', key .. ':waits', 0, -1)) do close_wait(id, 'cancelled') end
    touch('run:' .. run.id)
  end
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
    end_attempt(base, claim.job, unit, outcome)
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

local function open_wait(i)
  local id = ARGV[i]
  local key = NS .. 'wait:' .. id
  local kept = fields(call('HGETALL', key))
  if kept.state == 'open' then unlist_wait(id, kept) end
  local wait = {run = ARGV[i + 1], scope = ARGV[i + 2], kind = ARGV[i + 3], topic = optional(ARGV[i + 7]),
    key = optional(ARGV[i + 8])}
  call('HSET', key, 'run', kept.run or wait.run, 'scope', kept.scope or wait.scope, 'kind', kept.kind or wait.kind,
    'state', 'open', 'body', ARGV[i + 4], 'due', ARGV[i + 5], 'job', ARGV[i + 6], 'pos', kept.pos or position())
  call('HDEL', key, 'topic', 'key')
  call('ZADD', NS .. 'waits:' .. (kept.kind or wait.kind), 0, id)
  call('ZADD', NS .. 'run:' .. (kept.run or wait.run) .. ':waits', 0, id)
  if wait.topic then
    call('HSET', key, 'topic', wait.topic)
    if wait.key then call('HSET', key, 'key', wait.key) end
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

local function new_job(i)
  return {id = ARGV[i], queue = ARGV[i + 1], name = ARGV[i + 2], payload = ARGV[i + 3],
    priority = tonumber(ARGV[i + 4]), due = tonumber(ARGV[i + 5]), run = ARGV[i + 6], scope = ARGV[i + 7],
    opts = ARGV[i + 8], stream = ARGV[i + 9], head = ARGV[i + 10], rate_key = ARGV[i + 11],
    options = ARGV[i + 12], waits = ARGV[i + 17] == '1', parent = optional(ARGV[i + 18]),
    parent_queue = ARGV[i + 19], on_failure = ARGV[i + 20], instead = optional(ARGV[i + 21])}
end

local function write_parts()
  local places, added = {}, {}
  for _, i in ipairs(events) do
    local ms, seq = append(ARGV[i], ARGV[i + 1], ARGV[i + 2])
    places[#places + 1] = ms
    places[#places + 1] = seq
  end
  for _, i in ipairs(jobs) do
    local new = known_tree and 0 or add_job(new_job(i))
    added[#added + 1] = new
    if new == 1 and ARGV[i + 13] == '1' then append(ARGV[i + 14], ARGV[i + 15], ARGV[i + 16]) end
  end
  for _, i in ipairs(memos) do call('HSETNX', NS .. 'memos:' .. ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  for _, wait in ipairs(waits) do
    if wait[2] then open_wait(wait[1]) else close_wait(ARGV[wait[1]], ARGV[wait[1] + 1]) end
  end
  for _, i in ipairs(states) do write_state(i) end
  return {COMMITTED, places, added}
end

local function write()
  if remember then call('ZADD', NS .. 'units', now, unit) end
  if put then put_schedule() end
  if run then write_run() end
  if claim then write_job() end
  for _, id in ipairs(takes) do delete_job(base_of(taken[id][1]), id, taken[id][2]) end
  for _, id in ipairs(wakes) do wake(id) end
  local receipt = write_parts()
  forget_ended(unit)
  if move then move_schedule() end
  if once then call('ZADD', NS .. 'once', now, once) end
  deliver()
  return receipt
end

local receipts, at = {}, 6
guarded(function()
  while at <= #ARGV do
    at = read_unit(at)
    receipts[#receipts + 1] = check() or write()
  end
end)
return {receipts, publish()}
