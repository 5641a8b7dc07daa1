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
    local queue = find_queue(id)
    local state, set
    if queue then state, set = job_state(base_key(queue), id) end
    if not REMOVABLE[state] and not (state == 'held' and call('HEXISTS', base_key(queue) .. id, 'nq:order_key') == 1) then
      return {REFUSED, 'taken', id}
    end
    removed_from[id] = {queue, set}
  end
end

local function check_waits()
  for _, wait in ipairs(waits) do
    local i, is_new = wait[1], wait[2]
    local state = (read_fields(NS .. 'wait:' .. ARGV[i], 'state') or {})[1]
    local is_refused
    if is_new then
      is_refused = state == 'resolved' or state == 'expired'
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
  if call('EXISTS', key) == 0 then return ARGV[schedule_put + 7] == '' end
  if not current or not current[1] then return ARGV[schedule_put + 7] ~= '' end -- it is unreadable: replace it
  for n = 1, 6 do
    if (current[n] or '') ~= ARGV[schedule_put + 7 + n] then return false end
  end
  return ARGV[schedule_put + 7] ~= ''
end

local function check_unit()
  if schedule_put and not check_schedule_put() then return {REFUSED, 'schedule', ARGV[schedule_put]} end
  if needs_record and call('ZSCORE', NS .. 'units', unit) then return REPEATED end
  local refusal = claim and check_fence()
  if refusal then return refusal end
  refusal = run and check_version()
  if refusal then return refusal end
  if once_key and call('ZSCORE', NS .. 'once_keys', once_key) then return {REFUSED, 'duplicate', once_key} end
  if outcome and outcome.may_have_children and has_open_children(base_key(claim.queue) .. claim.job) then
    return {REFUSED, 'children', claim.job}
  end
  refusal = check_tree() or check_removes() or check_waits() or check_states()
  if refusal then return refusal end
  local moved = schedule_move and (read_fields(NS .. 'schedule:' .. schedule_move.id, 'next') or {})[1]
  if schedule_move and moved ~= schedule_move.slot then
    return {REFUSED, 'schedule', schedule_move.id}
  end
end

