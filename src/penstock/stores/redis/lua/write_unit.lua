-- Writes a unit that passed its checks.
local function each_job_of_run(visit)
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run.id .. ':jobs', 0, -1)) do
    local queue = existing_queue(id) and readable_queue(id)
    if queue then visit(id, queue, base_key(queue)) end
  end
end

local CANCELLABLE = {waiting = true, delayed = true, suspended = true, held = true}
local function cancel_job(id, queue, base)
  if queue_info(queue).broken then return end -- the next claim of the queue cancels it
  local state, set = job_state(base, id)
  if CANCELLABLE[state] then
    remove_from_state(base, id, set)
    is_only_adding = false
    call('HSET', base .. id, 'nq:unit', unit)
    push_cancelled(base, id)
  end
end

-- Delete the deduplication key of a job that has ended, unless the key has a time to live.
local function release_dedupe_key(base, id)
  local dedupe = call('HGET', base .. id, 'deid')
  local key = dedupe and base .. 'de:' .. dedupe
  if key and call('GET', key) == id and call('PTTL', key) == -1 then call('DEL', key) end
end

-- Cancel a plain job, also an active one: its lock and its fence are gone. Other programs see it as failed.
local function cancel_plain_job(id, error, reason)
  local queue = find_queue(id)
  local base = base_key(queue)
  local state, set = job_state(base, id)
  local key, prev = base .. id, set or state
  is_only_adding = false
  if state == 'active' then
    call('LREM', base .. 'active', -1, id)
    release_lock(base, id)
    prev = 'active'
  else
    remove_from_state(base, id, set)
  end
  call('HSET', key, 'nq:unit', unit, 'nq:error', error, 'failedReason', reason, 'finishedOn', now)
  call('ZADD', base .. 'nq:cancelled', finished_score(base, id), id)
  call('XADD', base .. 'events', '*', 'event', 'failed', 'jobId', id, 'failedReason', reason, 'prev', prev, 'nq', 'cancelled')
  release_dedupe_key(base, id)
  tolerate(settle_cancelled_child, key, reason)
  tolerate(notify_parent_queue, call('HGET', key, 'parentKey'))
  local order_key = call('HGET', key, 'nq:order_key')
  if order_key then
    call('ZREM', order_of(base, order_key), id)
    release_head(base, order_key)
  end
  notify('cancelled')
end

local function unlist_wait(id, wait)
  call('ZREM', NS .. 'waits:' .. wait.kind, id)
  if wait.topic then
    call('ZREM', NS .. 'topic:' .. wait.topic, id)
    call('ZREM', NS .. 'topic_keys:' .. wait.topic, (wait.key or '') .. '\n' .. id)
  end
end

local function settle_wait(id, state, is_final)
  local wait = to_table(read_record(NS .. 'wait:' .. id))
  if not wait.kind then -- it is unreadable: remove it
    call('DEL', NS .. 'wait:' .. id)
    for _, kind in ipairs({'time', 'event', 'trigger', 'call', 'flow'}) do call('ZREM', NS .. 'waits:' .. kind, id) end
    if run then call('ZREM', NS .. 'run:' .. run.id .. ':waits', id) end
  elseif wait.state == 'pending' then
    unlist_wait(id, wait)
    call('HSET', NS .. 'wait:' .. id, 'state', state, 'settled', now_text)
    if is_final then call('HSET', NS .. 'wait:' .. id, 'final', 1) end
    if wait.kind == 'trigger' then call('ZADD', NS .. 'waits:trigger:' .. state, wait.created or 0, id) end
  end
end

local function index_run(key, created)
  local lists = {'runs:status:' .. run.status, run.closed and 'runs:closed' or 'runs:open'}
  if current_run then
    if current_run[2] ~= run.status then call('ZREM', NS .. 'runs:status:' .. current_run[2], run.id) end
    if (current_run[3] == '1') ~= run.closed then
      call('ZREM', NS .. (run.closed and 'runs:open' or 'runs:closed'), run.id)
    end
  else
    lists[3], lists[4] = 'runs', 'runs:flow:' .. run.flow
  end
  for _, list in ipairs(lists) do call('ZADD', NS .. list, list == 'runs:closed' and now or created, run.id) end
end

-- List the run under its keys. The hash of the run lists them too, to remove them with it.
local function index_keys(key, created)
  local found = {}
  for known in string.gmatch(call('HGET', key, 'keys') or '', '%S+') do found[known] = true end
  for _, one in ipairs(run.keys) do found[one] = true end
  local names = {}
  for name in pairs(found) do
    names[#names + 1] = name
    add_to_index(NS .. 'runs:key:' .. name, created, run.id)
  end
  table.sort(names)
  call('HSET', key, 'keys', table.concat(names, ' '))
end

local function write_parent(key)
  call('HSET', key, 'parent', run.parent, 'root', run.root, 'depth', run.depth)
  if run.call then call('HSET', key, 'call', run.call) end
end

local function write_run()
  local key = NS .. 'run:' .. run.id
  local closed, paused = run.closed and '1' or '0', run.paused and '1' or '0'
  local created = current_run and tonumber(current_run[6]) or now
  if run.is_unreadable then
    call('DEL', key)
    call('ZREM', NS .. 'runs:open', run.id)
    for _, status in ipairs({'running', 'waiting', 'paused', 'compensating'}) do
      call('ZREM', NS .. 'runs:status:' .. status, run.id)
    end
  end
  local version = run.expect + 1
  if not current_run then
    call('HSET', key, 'version', version, 'updated', now_text, 'unit', unit, 'record', run.record, 'status', run.status,
      'closed', closed, 'paused', paused, 'created', now_text, 'flow', run.flow)
    if run.kind then call('HSET', key, 'kind', run.kind) end
    if run.parent then write_parent(key) end
    index_run(key, created)
  elseif current_run[2] ~= run.status or current_run[3] ~= closed or current_run[4] ~= paused then
    call('HSET', key, 'version', version, 'updated', now_text, 'unit', unit, 'record', run.record, 'status', run.status,
      'closed', closed, 'paused', paused)
    index_run(key, created)
    if current_run[4] == '1' and not run.paused then each_job_of_run(release_held) end
  else
    call('HSET', key, 'version', version, 'updated', now_text, 'unit', unit, 'record', run.record)
  end
  if run.keys then index_keys(key, created) end
  if run.call then call(run.closed and 'SREM' or 'SADD', NS .. 'open_children:' .. run.call, run.id) end
  if run.closed then notify('run:' .. run.id) end
  if run.cancel then
    each_job_of_run(cancel_job)
    notify('cancelled')
  end
end

local REQUEUED = {retry = true, released = true, suspended = true}
local FINAL = {completed = true, dead = true, cancelled = true}
local function write_job()
  local base = base_key(claim.queue)
  if progress then
    call('HSET', base .. claim.job, 'progress', progress)
    call('XADD', base .. 'events', '*', 'event', 'progress', 'jobId', claim.job, 'data', progress)
  end
  for _, line in ipairs(logs) do call('RPUSH', base .. claim.job .. ':logs', line) end
  if #logs > 0 then call('LTRIM', base .. claim.job .. ':logs', -1000, -1) end
  if outcome then
    end_attempt(queue_info(claim.queue), claim.job, unit, outcome)
    if REQUEUED[outcome.kind] then notify('queue:' .. claim.queue) end
    if claim.order_key and FINAL[outcome.kind] then release_head(base, claim.order_key) end
  end
end

local WAKEABLE = {delayed = true, suspended = true}
local function wake_job(id)
  local queue = readable_queue(id)
  if not queue then return end
  local base = base_key(queue)
  local state, set = job_state(base, id)
  if WAKEABLE[state] then
    remove_from_state(base, id, set)
    call('HSET', base .. id, 'nq:due', 0, 'delay', 0)
    push_waiting(base, id, false, state)
    notify('queue:' .. queue)
  end
end

-- Return the newest id of the feed.
local function last_feed_position()
  local last = call('XREVRANGE', NS .. 'feed', '+', '-', 'COUNT', 1)[1]
  return last and last[1] or '0-0'
end

local function create_wait(i)
  local id = ARGV[i]
  local key = NS .. 'wait:' .. id
  local current = to_table(read_record(key))
  if not current.kind then call('DEL', key) end -- it is new, or unreadable
  if current.state == 'pending' and current.kind then unlist_wait(id, current) end
  if current.kind == 'trigger' then call('ZREM', NS .. 'waits:trigger:cancelled', id) end
  local wait = {run = ARGV[i + 1], scope = ARGV[i + 2], kind = ARGV[i + 3], topic = optional(ARGV[i + 7]),
    key = optional(ARGV[i + 8])}
  call('HSET', key, 'run', current.run or wait.run, 'scope', current.scope or wait.scope, 'kind',
    current.kind or wait.kind, 'state', 'pending', 'body', ARGV[i + 4], 'due', ARGV[i + 5], 'job', ARGV[i + 6],
    'pos', current.pos or last_feed_position(), 'created', current.created or now_text)
  call('HDEL', key, 'topic', 'key', 'settled')
  call('ZADD', NS .. 'waits:' .. (current.kind or wait.kind), current.created or now, id)
  call('ZADD', NS .. 'run:' .. (current.run or wait.run) .. ':waits', 0, id)
  if wait.topic then
    call('HSET', key, 'topic', wait.topic)
    if wait.key then call('HSET', key, 'key', wait.key) end
    awaited_kinds[wait.topic] = nil
    call('ZADD', NS .. 'topic:' .. wait.topic, 0, id)
    call('ZADD', NS .. 'topic_keys:' .. wait.topic, 0, (wait.key or '') .. '\n' .. id)
  end
end

local function write_state(i)
  local key, name = NS .. 'state:' .. ARGV[i], ARGV[i]
  local old = read_fields(key, 'expires', 'version')
  if not old or (old[2] and not tonumber(old[2])) then call('DEL', key) end -- it is unreadable
  local old_expiry = old and old[1]
  if ARGV[i + 2] == '0' then
    call('DEL', key)
    call('ZREM', NS .. 'states', name)
    call('ZREM', NS .. 'states:due', name)
    return
  end
  call('HINCRBY', key, 'version', 1)
  call('HSET', key, 'value', ARGV[i + 1])
  call('ZADD', NS .. 'states', 0, name)
  if ARGV[i + 4] ~= '' then
    call('HSET', key, 'expires', ARGV[i + 4])
    call('ZADD', NS .. 'states:due', ARGV[i + 4], name)
  elseif old_expiry then
    call('HDEL', key, 'expires')
    call('ZREM', NS .. 'states:due', name)
  end
end

local function write_parts()
  local event_ids, added = {}, {}
  for _, i in ipairs(events) do
    local letter = ARGV[i - 1]
    local ms, seq = append(ARGV[i], ARGV[i + 1], letter ~= 'E' and ARGV[i + 2], letter == 'h' and ARGV[i + 3])
    event_ids[#event_ids + 1] = ms
    event_ids[#event_ids + 1] = seq
  end
  for _, job in ipairs(jobs) do
    local new, i = tree_exists and 0 or add_job(job), job.added_event
    added[#added + 1] = new
    if new == 1 and i then append(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  end
  for _, i in ipairs(memos) do
    local added = try('HSETNX', NS .. 'memos:' .. ARGV[i], ARGV[i + 1], ARGV[i + 2])
    if type(added) == 'table' then -- another program wrote the key: the earlier memos are lost, and their step must fail
      local text = read_failure(added)
      call('DEL', NS .. 'memos:' .. ARGV[i])
      call('HSET', NS .. 'memos:' .. ARGV[i], 'memos#0', text, ARGV[i + 1], ARGV[i + 2])
    end
  end
  for _, wait in ipairs(waits) do
    if wait[2] then create_wait(wait[1]) else settle_wait(ARGV[wait[1]], ARGV[wait[1] + 1], ARGV[wait[1] + 3] == '1') end
  end
  for _, i in ipairs(states) do write_state(i) end
  return {COMMITTED, event_ids, added}
end

-- Cancel the run's waits. Runs after the unit's own wait changes: a wait that the last unit resolves stays resolved.
local function cancel_waits()
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run.id .. ':waits', 0, -1)) do settle_wait(id, 'cancelled') end
end

local function write_unit()
  if needs_record then call('ZADD', NS .. 'units', now, unit) end
  if schedule_put then put_schedule() end
  if run then write_run() end
  for _, i in ipairs(statuses) do add_status(queue_info(ARGV[i]), ARGV[i + 1], ARGV[i + 2]) end
  if claim then write_job() end
  if #removes > 0 then is_only_adding = false end
  for _, id in ipairs(removes) do delete_job(base_key(removed_from[id][1]), id, removed_from[id][2]) end
  for _, i in ipairs(cancels) do cancel_plain_job(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
  for _, id in ipairs(wakes) do wake_job(id) end
  local receipt = write_parts()
  if run and run.closed then cancel_waits() end
  remove_finished(unit)
  if schedule_move then advance_schedule() end
  if once_key then call('ZADD', NS .. 'once_keys', now, once_key) end
  deliver_events()
  return receipt
end

