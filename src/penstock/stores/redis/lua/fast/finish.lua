-- The fast path of a commit: completed attempts with their events, which is what nearly every call holds. Lua creates all
-- functions of a script for each call, and the fast path needs none of the full path's. Everything is read and checked
-- before the first write: if a function here returns nothing, nothing was written, and the full path starts over.
-- A unit starts with Y (unit, queue, job, attempt, token, value) or, with a run, with Z (the same, then see steps.lua).
local SIZES = {Y = 7, Z = 13}
local finishing_queues = {}

-- Return where the units start, their streams, and for steps their jobs and event kinds; nothing if a unit has more.
local function read_fast_units(at)
  local unit_starts, count, streams, last, jobs, kinds = {}, 0, {}, nil, nil, nil
  while at <= #ARGV do
    local letter = ARGV[at]
    local size = SIZES[letter]
    if not size then return end
    if letter == 'Z' and not jobs then jobs, kinds = {}, {} end
    count = count + 1
    unit_starts[count] = at
    at = at + size
    while ARGV[at] == 'n' do at = at + 4 end
    while ARGV[at] == 'E' or jobs and ARGV[at] == 'H' do
      if ARGV[at + 1] ~= last then
        last = ARGV[at + 1]
        streams[#streams + 1] = last
      end
      if ARGV[at] == 'H' then
        kinds[ARGV[at + 3]] = true
        at = at + 1
      end
      at = at + 3
    end
    while jobs and ARGV[at] == 'J' do
      jobs[#jobs + 1] = at
      at = at + 10
    end
  end
  return unit_starts, streams, jobs, kinds
end

-- Return the keys of the jobs and of their locks; nothing if a queue, a lock or children need the full path.
local function job_keys(unit_starts)
  local keys, locks, child_keys, seen = {}, {}, {}, {}
  for n = 1, #unit_starts do
    local at = unit_starts[n]
    local queue, id = queue_info(ARGV[at + 2]), ARGV[at + 3]
    local key = queue.base .. id
    if not queue.is_fast or seen[key] or not completed_this_minute(queue) then return end
    if not queue.finished_ids then
      queue.finished_ids, queue.finished_scores, finishing_queues[#finishing_queues + 1] = {}, {}, queue
    end
    queue.finished_ids[#queue.finished_ids + 1] = id
    seen[key], keys[n], locks[n] = true, key, key .. ':lock'
    child_keys[2 * n - 1], child_keys[2 * n] = key .. ':dependencies', key .. ':unsuccessful'
  end
  local tokens = call('MGET', unpack(locks))
  for n = 1, #unit_starts do
    if tokens[n] ~= ARGV[unit_starts[n] + 5] then return end
  end
  if call('EXISTS', unpack(child_keys)) == 0 then return keys, locks end
end

-- Return the attempts made and the finished score of each job; nothing if a fence, a parent or deduplication needs the
-- full path.
local function check_fences(unit_starts, keys)
  local attempts_made, scores = {}, {}
  for n = 1, #unit_starts do
    local at = unit_starts[n]
    local job = try('HMGET', keys[n], 'nq:token', 'ats', 'nq:unit', 'nq:number', 'nq:has_children',
      'parentKey', 'deid', 'atm')
    if job[1] ~= ARGV[at + 5] or job[2] ~= ARGV[at + 4] or job[3] == ARGV[at + 1] or not job[4] or job[5] or job[6]
      or job[7] then return end
    attempts_made[n], scores[n] = job[8] and to_count(job[8]) + 1 or '1', now + (to_count(job[4]) % 1024) / 1024
  end
  return attempts_made, scores
end

-- Return whether all finished jobs are active, as BullMQ requires. They are usually the last of the list.
local function are_all_active(queue)
  local ids, last = queue.finished_ids, {}
  local found = call('LRANGE', queue.active, -#ids, '-1')
  for n = 1, #found do last[found[n]] = true end
  queue.is_tail = true
  for n = 1, #ids do
    if not last[ids[n]] then
      queue.is_tail = false
      if not call('LPOS', queue.active, ids[n], 'RANK', '-1') then return false end
    end
  end
  return true
end

local function remove_active(queue)
  local ids = queue.finished_ids
  if queue.is_tail then
    call('LTRIM', queue.active, '0', -1 - #ids)
  else
    for n = 1, #ids do call('LREM', queue.active, '-1', ids[n]) end
  end
  careful_call('ZREM', queue.leases, unpack(ids))
  queue.completed_count = queue.completed_count + #ids
end

-- Write each unit with its events and jobs, and add the receipts to the reply.
local function write_fast_units(unit_starts, keys, attempts_made, scores, reply, runs, write_run, add_fast_job)
  local at_reply = #reply
  for n = 1, #unit_starts do
    local at = unit_starts[n]
    local queue, id, value = queue_info(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 6]
    local finished_scores = queue.finished_scores
    local last = #finished_scores
    finished_scores[last + 1], finished_scores[last + 2] = scores[n], id
    if runs and runs[n] then write_run(at, runs[n]) end
    call('HSET', keys[n], 'returnvalue', value, 'finishedOn', now_text, 'atm', attempts_made[n], 'nq:unit', ARGV[at + 1],
      'nq:token', '')
    add_completed_event(queue, id, value)
    if last + 2 == 2 * #queue.finished_ids and is_drained(queue) then
      careful_call('XADD', queue.events, '*', 'event', 'drained')
    end
    local count, added = at_reply + 2, 0
    reply[at_reply + 1], reply[count], at_reply = 1, 0, count
    at = at + SIZES[ARGV[at]]
    while ARGV[at] == 'n' do
      add_status(queue_info(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3])
      at = at + 4
    end
    while ARGV[at] == 'E' or ARGV[at] == 'H' do
      local kind = ARGV[at] == 'H' and ARGV[at + 3]
      reply[at_reply + 1], reply[at_reply + 2] = append(ARGV[at + 1], ARGV[at + 2], kind)
      at, at_reply = at + (kind and 4 or 3), at_reply + 2
    end
    reply[count], reply[at_reply + 1] = at_reply - count, 0
    at_reply = at_reply + 1
    while ARGV[at] == 'J' do
      add_fast_job(at)
      at, added = at + 10, added + 1
      reply[at_reply + added] = 1
    end
    reply[at_reply], at_reply = added, at_reply + added
  end
end

-- Commit the units from `first` on. Returns false if the full path is needed.
local function commit_fast(first, reply)
  local unit_starts, streams, jobs, kinds = read_fast_units(first)
  if not unit_starts then return false end
  local keys, locks = job_keys(unit_starts)
  if not keys then return false end
  local attempts_made, scores = check_fences(unit_starts, keys)
  if not attempts_made then return false end
  local runs, load_runs, are_all_new, write_run, add_fast_job
  if jobs then
    load_runs, are_all_new, write_run, add_fast_job = load_fast_steps()
    runs = load_runs(unit_starts)
    if not runs or not are_all_new(jobs, kinds) then return false end
  end
  for _, queue in ipairs(finishing_queues) do
    if not are_all_active(queue) then return false end
  end
  load_heads(streams)
  for _, queue in ipairs(finishing_queues) do remove_active(queue) end
  call('DEL', unpack(locks))
  write_fast_units(unit_starts, keys, attempts_made, scores, reply, runs, write_run, add_fast_job)
  for _, queue in ipairs(finishing_queues) do careful_call('ZADD', queue.completed, unpack(queue.finished_scores)) end
  undelivered = {} -- no wait is pending for them
  if jobs then flush_writes() end -- the claim of this call may take them
  return true
end
