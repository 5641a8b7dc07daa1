-- Checks a unit before its first write. Each check returns the receipt of a refusal, or nothing.
local COMMITTED, REPEATED, FENCED, CONFLICT, REFUSED = 1, {2}, {3}, 4, 5

-- Add a receipt to the reply. The reply is one flat list, because Redis sends every nested list with a write of its own.
local function add_receipt(reply, receipt)
  reply[#reply + 1] = receipt[1]
  for n = 2, #receipt do
    local value = receipt[n]
    if type(value) == 'table' then
      reply[#reply + 1] = #value
      for _, item in ipairs(value) do reply[#reply + 1] = item end
    else
      reply[#reply + 1] = value
    end
  end
end

local function check_fence()
  local base = base_key(claim.queue)
  local key = base .. claim.job
  local job = try('HMGET', key, 'nq:token', 'ats', 'nq:unit', 'nq:number', 'nq:has_children',
    'parentKey', 'deid', 'atm')
  if job[3] == unit then return REPEATED end
  if not job[2] and call('ZSCORE', NS .. 'units', unit) then return REPEATED end -- it was removed when it ended
  if job[1] ~= claim.token or job[2] ~= claim.attempt then return FENCED end
  if outcome then
    outcome.number, outcome.parent = job[4], job[6]
    outcome.deduplicated, outcome.attempts_made = job[7], job[8]
    -- For a job of another program only its keys show whether it has children.
    outcome.may_have_children = outcome.kind == 'completed' and (job[5] or not job[4])
  end
  local lock = lock_tokens[key]
  if lock ~= claim.token then
    -- The lease has expired and no worker has claimed the job: it may still end, unless BullMQ's stalled check moved it.
    if lock or not call('LPOS', base .. 'active', claim.job) then return FENCED end
  end
  if not run and claim.run ~= '' and (#events > 0 or not outcome) then
    local head = read_fields(NS .. 'run:' .. claim.run, 'closed')
    if head and head[1] ~= '0' then return FENCED end
  end
end

local function check_version()
  current_run = read_fields(NS .. 'run:' .. run.id, 'version', 'status', 'closed', 'paused', 'unit', 'created')
  if not current_run or (current_run[1] and not tonumber(current_run[1])) then
    -- It is unreadable: only cancelling it replaces it.
    current_run, run.is_unreadable = nil, true
    return not run.cancel and {CONFLICT, 1, ''} or nil
  end
  if not current_run[1] then
    current_run = nil
    if run.expect ~= 0 then return {CONFLICT, 0, false} end
    return
  end
  if current_run[5] == unit then return REPEATED end
  if tonumber(current_run[1]) ~= run.expect or (run.after and run.after ~= current_run[5]) then
    return {CONFLICT, tonumber(current_run[1]), call('HGET', NS .. 'run:' .. run.id, 'record') or ''}
  end
end

local REMOVABLE = {waiting = true, delayed = true, suspended = true, failed = true}
local function check_removes()
  for _, id in ipairs(removes) do
    local queue = readable_queue(id)
    local state, set
    if queue then state, set = job_state(base_key(queue), id) end
    if not REMOVABLE[state] and not (state == 'held' and call('HEXISTS', base_key(queue) .. id, 'nq:order_key') == 1) then
      return {REFUSED, 'taken', id}
    end
    removed_from[id] = {queue, set}
  end
end

local ENDED = {completed = true, failed = true, cancelled = true}
local function check_cancels()
  for _, i in ipairs(cancels) do
    local queue = readable_queue(ARGV[i])
    if not queue or ENDED[job_state(base_key(queue), ARGV[i])] then return {REFUSED, 'taken', ARGV[i]} end
    if ARGV[i + 3] ~= '' and (call('HGET', base_key(queue) .. ARGV[i], 'ats') or '0') ~= ARGV[i + 3] then
      return {REFUSED, 'taken', ARGV[i]}
    end
  end
end

local function check_waits()
  for _, wait in ipairs(waits) do
    local i, is_new = wait[1], wait[2]
    local state, final = unpack(read_fields(NS .. 'wait:' .. ARGV[i], 'state', 'final') or {})
    local is_refused
    if is_new then
      is_refused = state == 'resolved' or state == 'expired' or final
    else
      is_refused = ARGV[i + 2] ~= '1' and state ~= 'pending'
    end
    if is_refused then return {REFUSED, 'wait', ARGV[i]} end
  end
end

local function check_states()
  for _, i in ipairs(states) do
    if ARGV[i + 3] ~= '' then
      local current = read_fields(NS .. 'state:' .. ARGV[i], 'version', 'expires') or {}
      local version = current[1] or '0'
      if current[2] and (tonumber(current[2]) or 0) <= now then version = '0' end
      if version ~= ARGV[i + 3] then return {REFUSED, 'state', ARGV[i]} end
    end
  end
end

-- A tree is added whole. If its root exists, nothing is added.
local tree_exists
local function check_tree()
  tree_exists = false
  local first = jobs[1]
  if not first or not first.has_children then return end
  local function exists(job) return existing_queue(job.id) or call('EXISTS', base_key(job.queue) .. job.id) == 1 end
  tree_exists = exists(first)
  if tree_exists then return end
  for n = 2, #jobs do
    if exists(jobs[n]) then return {REFUSED, 'job', jobs[n].id} end
  end
end

local SCHEDULE_FIELDS = {'spec', 'target', 'next', 'last', 'paused', 'fired'}
local function check_schedule_put()
  local key = NS .. 'schedule:' .. ARGV[schedule_put]
  local current = read_fields(key, unpack(SCHEDULE_FIELDS))
  if call('EXISTS', key) == 0 or is_schedule_removed(ARGV[schedule_put]) then return ARGV[schedule_put + 7] == '' end
  if not current or not current[1] then return ARGV[schedule_put + 7] ~= '' end -- it is unreadable: replace it
  for n = 1, 6 do
    if (current[n] or '') ~= ARGV[schedule_put + 7 + n] then return false end
  end
  return ARGV[schedule_put + 7] ~= ''
end

-- Return the refusal of a unit that would write a broken queue.
local function check_queues()
  local function check(name)
    local broken = name and queue_info(name).broken
    return broken and {REFUSED, 'queue', broken}
  end
  local function check_of(id) return check(lookup_queue(id) or find_queue(id)) end
  local function is_awaited(kind) return call('ZCARD', NS .. 'topic:' .. kind) > 0 end
  local refusal = claim and check(claim.queue) or schedule_put and ARGV[schedule_put + 14] ~= ''
    and check(ARGV[schedule_put + 14])
  for _, job in ipairs(jobs) do refusal = refusal or check(job.queue) or job.parent and check(job.parent_queue) end
  for _, id in ipairs(removes) do refusal = refusal or check_of(id) end
  for _, id in ipairs(wakes) do refusal = refusal or check_of(id) end
  for _, i in ipairs(cancels) do refusal = refusal or check_of(ARGV[i]) end
  for _, i in ipairs(events) do
    local kind = ARGV[i - 1] ~= 'E' and ARGV[i + 2]
    if kind and not refusal and (#waits > 0 or is_awaited(kind)) then refusal = check('penstock-events') end
  end
  return refusal
end

-- Return the refusal of a unit that changes jobs which its checks have found: those of a run that goes on, and a parent.
local function check_other_queues()
  local refusal
  local function check(name) refusal = refusal or name and queue_info(name).broken end
  if outcome and outcome.parent then
    check(string.sub(outcome.parent, 1, #BULL) == BULL and string.match(outcome.parent, '^(.+):[^:]*$', #BULL + 1))
  end
  if current_run and current_run[4] == '1' and not run.paused then
    for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run.id .. ':jobs', 0, -1)) do check(lookup_queue(id)) end
  end
  return refusal and {REFUSED, 'queue', refusal}
end

local function check_unit()
  if schedule_put and not check_schedule_put() then return {REFUSED, 'schedule', ARGV[schedule_put]} end
  if needs_record and call('ZSCORE', NS .. 'units', unit) then return REPEATED end
  local refusal = check_queues() or claim and check_fence()
  if refusal then return refusal end
  refusal = run and check_version()
  refusal = refusal or check_other_queues()
  if refusal then return refusal end
  if once_key and call('ZSCORE', NS .. 'once_keys', once_key) then return {REFUSED, 'duplicate', once_key} end
  if outcome and outcome.may_have_children and has_open_children(base_key(claim.queue) .. claim.job) then
    return {REFUSED, 'children', claim.job}
  end
  refusal = check_tree() or check_removes() or check_cancels() or check_waits() or check_states()
  if refusal then return refusal end
  local moved = schedule_move and (read_fields(NS .. 'schedule:' .. schedule_move.id, 'next') or {})[1]
  if schedule_move and (moved ~= schedule_move.slot or is_schedule_removed(schedule_move.id)) then
    return {REFUSED, 'schedule', schedule_move.id}
  end
end

