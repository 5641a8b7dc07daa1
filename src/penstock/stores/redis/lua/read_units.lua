-- Reads units from ARGV: a letter and its values, with `U`, `Y` or `Z` at the start of each unit. Every value costs
-- server time, so rare values have letters of their own. Bodies are opaque.
local unit, needs_record
local claim, outcome, run, schedule_move, once_key, progress, schedule_put, current_run
local events, jobs, memos, waits, states, wakes, removes, logs, cancels, statuses
local removed_from

local NONE = {} -- shared by the lists that stay empty
local function append_to(list, value)
  if list == NONE then return {value} end
  list[#list + 1] = value
  return list
end

local function optional(value)
  if value == '' then return false end
  return value
end

-- Read a part that few units have.
local function read_rare_part(letter, i)
  if letter == 'V' then -- more of the run
    run.closed, run.paused, run.cancel = ARGV[i] == '1', ARGV[i + 1] == '1', ARGV[i + 2] == '1'
    run.after = optional(ARGV[i + 3])
    return 4
  elseif letter == 'O' then
    outcome = {kind = ARGV[i], due = tonumber(ARGV[i + 1]), value = ARGV[i + 2], error = optional(ARGV[i + 3]),
      count = tonumber(ARGV[i + 4]), age = tonumber(ARGV[i + 5]), stack = optional(ARGV[i + 6]),
      gives_attempt_back = ARGV[i + 7] == '1'}
    return 8
  elseif letter == 'B' then -- more of the job
    local job = jobs[#jobs]
    job.priority, job.due, job.scope = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 2]
    job.rate_key, job.deduplicates = ARGV[i + 3], ARGV[i + 4] == '1'
    return 5
  elseif letter == 'F' then -- its parent and children
    local job = jobs[#jobs]
    job.has_children, job.parent = ARGV[i] == '1', optional(ARGV[i + 1])
    job.parent_queue, job.on_failure, job.replaces = ARGV[i + 2], ARGV[i + 3], optional(ARGV[i + 4])
    return 5
  elseif letter == 'M' then
    memos = append_to(memos, i)
    return 3
  elseif letter == 'P' then
    progress = ARGV[i]
  elseif letter == 'n' then -- a status of a job: queue, id, data
    statuses = append_to(statuses, i)
    return 3
  elseif letter == 'L' then
    logs = append_to(logs, ARGV[i])
  elseif letter == 'W' then
    waits = append_to(waits, {i, true})
    return 9
  elseif letter == 'X' then
    waits = append_to(waits, {i, false})
    return 4
  elseif letter == 'S' then
    states = append_to(states, i)
    return 5
  elseif letter == 'K' then
    wakes = append_to(wakes, ARGV[i])
  elseif letter == 'T' then
    removes = append_to(removes, ARGV[i])
  elseif letter == 'D' then
    schedule_move = {id = ARGV[i], slot = ARGV[i + 1], next = optional(ARGV[i + 2])}
    return 3
  elseif letter == 'N' then
    once_key = ARGV[i]
  elseif letter == 'Q' then
    schedule_put = i
    return 23
  elseif letter == 'x' then -- a job to cancel: id, error, its text, and the attempt it must have
    cancels = append_to(cancels, i)
    return 4
  elseif letter == 'I' then -- a run that is not a flow
    run.kind = ARGV[i]
  elseif letter == 'i' then -- a key that the run is found by
    run.keys = append_to(run.keys or NONE, ARGV[i])
  elseif letter == 'p' then -- the parent of the run
    run.parent, run.root, run.depth, run.call = ARGV[i], ARGV[i + 1], ARGV[i + 2], optional(ARGV[i + 3])
    return 4
  elseif letter == 'o' then -- the order key of the job
    jobs[#jobs].order_key = ARGV[i]
  elseif letter == 'g' then -- the error group of the job, a dead letter
    jobs[#jobs].error_group = ARGV[i]
  elseif letter == 'c' then -- the order key of the claimed job
    claim.order_key = ARGV[i]
  end
  return 1
end

-- Read the part that starts at i. Returns the number of its values.
local function read_part(letter, i)
  if letter == 'E' then
    events = append_to(events, i)
    return 2
  elseif letter == 'H' then -- with its kind: a wait may be pending for it
    events = append_to(events, i)
    return 3
  elseif letter == 'h' then -- with its kind and its body before redaction
    events = append_to(events, i)
    return 4
  elseif letter == 'C' then
    claim = {queue = ARGV[i], job = ARGV[i + 1], attempt = ARGV[i + 2], token = ARGV[i + 3], run = ARGV[i + 4]}
    return 5
  elseif letter == 'G' then -- completed and retained
    outcome = {kind = 'completed', value = ARGV[i]}
    return 1
  elseif letter == 'R' then
    run = {id = ARGV[i], expect = tonumber(ARGV[i + 1]), record = ARGV[i + 2], flow = ARGV[i + 3],
      status = ARGV[i + 4], closed = false, paused = false, cancel = false, after = false}
    return 5
  elseif letter == 'J' then
    jobs = append_to(jobs, {id = ARGV[i], queue = ARGV[i + 1], name = ARGV[i + 2], payload = ARGV[i + 3],
      run = ARGV[i + 4], opts = ARGV[i + 5], stream = ARGV[i + 6], started = ARGV[i + 7],
      options = ARGV[i + 8], priority = 0, due = 0})
    return 9
  elseif letter == 'A' then -- the event that the job was added
    jobs[#jobs].added_event = i
    return 3
  end
  return read_rare_part(letter, i)
end

-- Read the unit that starts here. Returns where the next one starts.
local function read_unit(at)
  unit, needs_record = ARGV[at + 1], false
  claim, outcome, run, schedule_move, once_key, progress, schedule_put = nil, nil, nil, nil, nil, nil, nil
  events, jobs, memos, waits, states, wakes, removes, logs = NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE
  cancels, statuses = NONE, NONE
  if ARGV[at] == 'Y' or ARGV[at] == 'Z' then -- a completed attempt, without a run or with one that it changes
    claim = {queue = ARGV[at + 2], job = ARGV[at + 3], attempt = ARGV[at + 4], token = ARGV[at + 5], run = ''}
    outcome = {kind = 'completed', value = ARGV[at + 6]}
    if ARGV[at] == 'Z' then
      run = {id = ARGV[at + 7], expect = tonumber(ARGV[at + 8]), record = ARGV[at + 9], flow = ARGV[at + 10],
        status = ARGV[at + 11], closed = ARGV[at + 12] == '1', paused = false, cancel = false, after = false}
      at = at + 6
    end
    at = at + 7
  else
    needs_record = ARGV[at + 2] == '1'
    at = at + 3
  end
  while at <= #ARGV and ARGV[at] ~= 'U' and ARGV[at] ~= 'Y' and ARGV[at] ~= 'Z' do
    at = at + 1 + read_part(ARGV[at], at + 1)
  end
  return at
end

local units = {}
local function save_unit()
  units[#units + 1] = {unit, needs_record, claim, outcome, run, schedule_move, once_key, progress, schedule_put,
    events, jobs, memos, waits, states, wakes, removes, logs, cancels, statuses}
end

local function load_unit(saved)
  unit, needs_record, claim, outcome, run, schedule_move, once_key, progress, schedule_put, events, jobs, memos,
    waits, states, wakes, removes, logs, cancels, statuses = unpack(saved, 1, 19)
  current_run, removed_from = nil, {}
end

-- What the checks of all units read, in one call per kind: locks, stream heads, queues of job ids, existing jobs and jobs
-- with children. A unit that changes one of these changes the table too.
local lock_tokens = {} -- job key to the token of its lock
local streams, new_job_ids, new_job_keys, claimed_keys, completed_keys, has_parents = {}, {}, {}, {}, {}, false

local function collect_stream(stream)
  if saved_heads[stream] == nil then
    saved_heads[stream] = false
    streams[#streams + 1] = stream
  end
end

local function collect_reads()
  if claim then
    local key = base_key(claim.queue) .. claim.job
    claimed_keys[#claimed_keys + 1] = key
    if outcome and outcome.kind == 'completed' then
      completed_keys[#completed_keys + 1] = key
    end
  end
  for _, i in ipairs(events) do collect_stream(ARGV[i]) end
  for _, job in ipairs(jobs) do
    new_job_ids[#new_job_ids + 1] = job.id
    new_job_keys[#new_job_keys + 1] = base_key(job.queue) .. job.id
    has_parents = has_parents or job.parent
    if job.added_event then collect_stream(ARGV[job.added_event]) end
  end
end

-- Call `read` with ranges that fit into one call of Redis.
local function in_chunks(names, read)
  for first = 1, #names, MAX_CALL_VALUES do
    local last = math.min(first + MAX_CALL_VALUES - 1, #names)
    read(first, last)
  end
end

local function prefetch_reads()
  load_heads(streams)
  in_chunks(claimed_keys, function(first, last)
    local locks = {}
    for i = first, last do locks[i - first + 1] = claimed_keys[i] .. ':lock' end
    local found = call('MGET', unpack(locks))
    for i = first, last do lock_tokens[claimed_keys[i]] = found[i - first + 1] end
  end)
  in_chunks(new_job_ids, function(first, last)
    local found = call('HMGET', NS .. 'job_queues', unpack(new_job_ids, first, last))
    for i = first, last do job_queues[new_job_ids[i]] = found[i - first + 1] end
  end)
  in_chunks(new_job_keys, function(first, last)
    if call('EXISTS', unpack(new_job_keys, first, last)) > 0 then return end
    for i = first, last do absent_keys[new_job_keys[i]] = true end
  end)
  if has_parents then return end -- a unit of this call may add children
  in_chunks(completed_keys, function(first, last)
    local sets = {}
    for i = first, last do
      sets[#sets + 1] = completed_keys[i] .. ':dependencies'
      sets[#sets + 1] = completed_keys[i] .. ':unsuccessful'
    end
    if call('EXISTS', unpack(sets)) > 0 then return end
    for i = first, last do childless_keys[completed_keys[i]] = true end
  end)
end
