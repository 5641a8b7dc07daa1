-- The fast path of a claim: waiting jobs of queues in which no job is due, expired, stalled, held or prioritized.
-- Everything is read and checked before the first write.

-- Return whether the queue has a due, expired or stalled job, or is held.
local function needs_full_path(queue)
  local base = queue.base
  queue.next_delayed, queue.next_lease_end = first_score(base .. 'delayed'), first_score(queue.leases)
  if queue.next_delayed and queue.next_delayed < (now + 1) * 0x1000 then return true end
  if queue.next_lease_end and queue.next_lease_end <= now then return true end
  if not is_server_clock then return call('EXISTS', base .. 'nq:hold_until') == 1 end
  local found = call('MGET', base .. 'stalled-check', base .. 'limiter')
  return not found[1] or found[2]
end

-- Return how many waiting jobs can be claimed, or nothing if the queue needs the full path. Reads one more than there is
-- room for, to know whether any is left.
local function look_fast(queue, room, drained_queues)
  local waiting = call('LRANGE', queue.wait, -1 - room, '-1')
  local count = #waiting
  if count <= room then
    local base, is_empty = queue.base, false
    if count == 0 then
      is_empty = call('EXISTS', queue.active, queue.leases, base .. 'delayed', base .. 'prioritized',
        base .. 'nq:ordered') == 0
    end
    if not is_empty and call('EXISTS', base .. 'prioritized', base .. 'nq:ordered') > 0 then return end
    drained_queues[#drained_queues + 1] = queue.name
    if is_empty then return 0 end
  end
  if needs_full_path(queue) then return end
  queue.next_ids = waiting
  return count < room and count or room
end

local job = {} -- one table for all jobs: a new one would grow each time
-- Check a job, add its claim to the reply and its writes to `claimed`. Returns false if it needs the full path.
local function check_job(queue, id, token, claimed, reply)
  for name in pairs(job) do job[name] = nil end
  local flat = try('HGETALL', queue.base .. id) -- empty if it is not a hash
  for n = 1, #flat, 2 do job[flat[n]] = flat[n + 1] end
  if not job.name or not job['nq:number'] or job.defa or job['nq:priority'] then return false end
  local run, head = job['nq:run'] or false, nil
  if run then
    head = try('HMGET', NS .. 'run:' .. run, 'version', 'closed', 'paused', 'record', 'kind')
    if not tonumber(head[1] or '') or head[2] == '1' or head[3] == '1' or not head[4] then return false end
  end
  local attempt, scope, memos, memo_count = '1', job['nq:scope'] or id, nil, 0
  if job.ats then attempt = tostring(to_count(job.ats) + 1) end
  if attempt ~= '1' or job['nq:unit'] or job['nq:scope'] then
    memos = try('HGETALL', NS .. 'memos:' .. scope)
    if memos.err then return false end
    memo_count = #memos
  end
  claimed[#claimed + 1] = {queue, id, token, attempt, job['nq:stream'], job['nq:started'],
    head and head[5] == 'dag' and job.name}
  local at, scheduler_id = #reply, job.rjk or false
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = id, queue.name, job.name, job.data or false
  reply[at + 5], reply[at + 6], reply[at + 7], reply[at + 8] = job['nq:opts'] or '{}', scope, tonumber(attempt), token
  reply[at + 9], reply[at + 10] = to_count(job['nq:failures']), to_count(job['nq:crashes'])
  reply[at + 11] = run
  reply[at + 12], reply[at + 13] = head and tonumber(head[1]) or 0, head and head[4] or false
  reply[at + 14], reply[at + 15] = scheduler_id, scheduler_id and job.opts or false
  reply[at + 16], reply[at + 17] = head and head[5] or false, memo_count
  for n = 1, memo_count do reply[at + 17 + n] = memos[n] end
  return true
end

-- Check the jobs of all queues. Returns the queues to serve, or nothing if one needs the full path.
local function check_jobs(claimed, reply, drained_queues)
  local served, total_limit = {}, tonumber(ARGV[10])
  if ARGV[11] ~= '' then return end
  for i = 12, 11 + 6 * queue_count, 6 do
    local queue = queue_info(ARGV[i])
    local version, old = version_of(queue)
    local room = tonumber(ARGV[i + 1])
    if total_limit and total_limit - #claimed < room then room = total_limit - #claimed end
    if ARGV[i + 2] ~= '' or ARGV[i + 5] ~= '' or old or queue.broken or room > 500 or queue.next_ids then return end
    if is_server_clock then note_due(now + (version and 200 or 1000)) end -- other programs do not notify us of new jobs
    if not queue.paused and (not total_limit or #claimed < total_limit) then
      local count = look_fast(queue, room, drained_queues)
      if not count or (count > 0 and not queue.is_fast) then return end
      for n = 0, count - 1 do
        local token = ARGV[9] .. '-' .. (#claimed + 1)
        if not check_job(queue, queue.next_ids[#queue.next_ids - n], token, claimed, reply) then return end
      end
      queue.count = count
      served[#served + 1] = queue
    end
  end
  return served
end

-- Move the claimed jobs of a queue to `active` in one step, with their leases.
local function move_to_active(queue, lease_end)
  local count, waiting, ids, leases = queue.count, queue.next_ids, {}, {}
  for n = 1, count do
    ids[n] = waiting[#waiting + 1 - n]
    leases[2 * n - 1], leases[2 * n] = lease_end, ids[n]
  end
  if count == 1 then
    call('RPOPLPUSH', queue.wait, queue.active)
  else
    call('LTRIM', queue.wait, '0', -1 - count)
    call('LPUSH', queue.active, unpack(ids))
  end
  careful_call('ZADD', queue.leases, unpack(leases))
  add_marker(queue)
end

-- Write the lock, BullMQ's event and the attempt of each job, then the `started` events.
local function start_all(claimed, worker, lease)
  local streams, last_stream = {}, nil
  for n = 1, #claimed do
    local row = claimed[n]
    local events, id, token, stream = row[1].events, row[2], row[3], row[5]
    local key = row[1].base .. id
    call('SET', key .. ':lock', token, 'PX', lease)
    careful_call('XADD', events, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
    call('HSET', key, 'processedOn', now_text, 'pb', worker, 'ats', row[4], 'nq:token', token)
    if stream and stream ~= last_stream then
      last_stream = stream
      streams[#streams + 1] = stream
    end
  end
  load_heads(streams)
  local by = ',"worker":"' .. worker .. '"}}'
  for n = 1, #claimed do
    local row = claimed[n]
    if row[5] then append_started_event(row[5], row[6], '"attempt":' .. row[4] .. by) end
    if row[7] then add_status(row[1], row[2], running_status(row[7])) end
  end
end

-- Claim jobs into the reply. Returns the queues without a due job, or nothing if the full path is needed.
local function claim_fast(reply)
  local at, claimed, drained_queues = #reply, {}, {}
  local is_readable, served = pcall(check_jobs, claimed, reply, drained_queues) -- nothing is written yet
  if not is_readable then served = nil end
  if not served then
    for n = #reply, at + 1, -1 do reply[n] = nil end
    next_due = nil
    return
  end
  local lease = ARGV[7]
  local lease_end = string.format('%.0f', now + lease)
  for _, queue in ipairs(served) do
    if queue.count > 0 then move_to_active(queue, lease_end) end
    if queue.next_delayed then note_due(math.floor(queue.next_delayed / 0x1000)) end
    note_due(queue.next_lease_end)
  end
  if #claimed > 0 then note_due(now + lease) end
  start_all(claimed, ARGV[8], lease)
  return drained_queues
end
