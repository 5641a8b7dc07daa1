-- What refuses a unit. Each gives the answer to send, or nothing.
local COMMITTED, REPEATED, FENCED, CONFLICT, REFUSED = 1, {2}, {3}, 4, 5

-- Puts an answer into the reply, which is one flat list: Redis would send each list inside it by itself.
local function answer(reply, receipt)
  reply[#reply + 1] = receipt[1]
  for n = 2, #receipt do
    local value = receipt[n]
    if type(value) == 'table' then
      reply[#reply + 1] = #value
      for _, one in ipairs(value) do reply[#reply + 1] = one end
    else
      reply[#reply + 1] = value
    end
  end
end

local function check_fence()
  local base = base_of(claim.queue)
  local key = base .. claim.job
  local job = call('HMGET', key, 'nq:t', 'ats', 'nq:u', 'nq:n', 'nq:w', 'parentKey', 'deid', 'atm')
  if job[3] == unit then return REPEATED end
  if not job[2] and call('ZSCORE', NS .. 'units', unit) then return REPEATED end -- it went when it ended
  if job[1] ~= claim.token or job[2] ~= claim.attempt then return FENCED end
  if outcome then
    outcome.arrived, outcome.parent = job[4], job[6]
    outcome.deduplicated, outcome.made = job[7], job[8]
    -- Of a job that another program added, only its keys say whether it has children.
    outcome.family = outcome.kind == 'completed' and (job[5] or not job[4])
  end
  local lock = held[key]
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
      late = ARGV[i + 2] ~= '1' and state ~= 'pending'
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
  if not first or not first.waits then return end
  local function there(job) return queue_of(job.id) or call('EXISTS', base_of(job.queue) .. job.id) == 1 end
  known_tree = there(first)
  if known_tree then return end
  for n = 2, #jobs do
    if there(jobs[n]) then return {REFUSED, 'job', jobs[n].id} end
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

