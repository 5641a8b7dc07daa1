-- Adds jobs with BullMQ's scripts, and our fields beside theirs.
local function run_bullmq_add(base, job, delay)
  flush_all()
  local opts = job.options and job.options ~= '' and cjson.decode(job.options) or {}
  opts.jobId = job.id
  local args = {base, job.id, job.name, now}
  local parent = parent_args(base, job)
  if parent then
    args[5], args[6], args[7] = parent.key, parent.key .. ':dependencies', parent.data
    opts.parent = {id = parent.data.id, queue = parent.data.queueKey}
    if parent.flag then opts[parent.flag] = true end
  end
  if opts.de then args[9] = base .. 'de:' .. opts.de.id end
  if job.priority > 0 then opts.priority = job.priority end
  if delay > 0 then opts.delay = delay end
  if job.has_children or job.is_held then
    local added = bull_addParentJob({base .. 'meta', base .. 'id', base .. 'delayed', base .. 'waiting-children',
      base .. 'completed', base .. 'events'}, {cmsgpack.pack(args), job.payload, cmsgpack.pack(opts)})
    if job.is_held then
      call('ZREM', base .. 'waiting-children', job.id)
    else
      push_waiting_children(base, job.id, call('GET', base .. 'id'))
    end
    return added
  elseif delay > 0 then
    return bull_addDelayedJob({base .. 'marker', base .. 'meta', base .. 'id', base .. 'delayed', base .. 'completed',
      base .. 'events'}, {cmsgpack.pack(args), job.payload, cmsgpack.pack(opts)})
  elseif job.priority > 0 then
    return bull_addPrioritizedJob({base .. 'marker', base .. 'meta', base .. 'id', base .. 'prioritized',
      base .. 'delayed', base .. 'completed', base .. 'active', base .. 'events', base .. 'pc'},
      {cmsgpack.pack(args), job.payload, cmsgpack.pack(opts)})
  else
    return bull_addStandardJob({base .. 'wait', base .. 'paused', base .. 'meta', base .. 'id', base .. 'completed',
      base .. 'delayed', base .. 'active', base .. 'events', base .. 'marker'},
      {cmsgpack.pack(args), job.payload, cmsgpack.pack(opts)})
  end
end

-- Expire BullMQ's deduplication key by a test's clock; Redis expires it by its own.
local function expire_dedupe_key(base, dedupe)
  local key, until_key = base .. 'de:' .. dedupe.id, base .. 'nq:dedupe_until:' .. dedupe.id
  local ends_at = tonumber(call('GET', until_key) or 0)
  if ends_at > 0 and ends_at <= now then call('DEL', key, until_key) end
  return function()
    if dedupe.ttl then call('SET', until_key, now + dedupe.ttl) else call('DEL', until_key) end
  end
end

local absent_keys = {} -- keys that one EXISTS has shown to be absent

-- Return whether a job of that id exists, ours or another program's.
local function job_exists(id, base)
  if existing_queue(id) then return true end
  local key = base .. id
  if absent_keys[key] then
    absent_keys[key] = nil -- the caller adds it
    return false
  end
  return call('EXISTS', key) == 1
end

-- Return our fields of a job and their values.
local function own_fields(job)
  local values = {'nq:opts', job.opts}
  local function add_field(name, value)
    if value and value ~= '' then
      values[#values + 1] = name
      values[#values + 1] = value
    end
  end
  add_field('nq:run', job.run)
  add_field('nq:scope', job.scope)
  add_field('nq:rate_key', job.rate_key)
  add_field('nq:order_key', job.order_key)
  add_field('nq:error_group', job.error_group)
  add_field('nq:stream', job.stream)
  add_field('nq:started', job.started)
  if job.due ~= 0 then add_field('nq:due', job.due) end
  if job.priority < 0 then add_field('nq:priority', job.priority) end
  if job.has_children then add_field('nq:has_children', '1') end
  return values
end

-- Add a job with BullMQ's scripts. Returns its number in the queue, or nil and the id of the job it duplicates.
local function add_by_bullmq(base, job, delay)
  local save_dedupe_end = job.deduplicates and not is_server_clock
    and expire_dedupe_key(base, cjson.decode(job.options).de)
  local added_id = run_bullmq_add(base, job, delay)
  if added_id ~= job.id then return nil, added_id end
  if save_dedupe_end then save_dedupe_end() end
  local number = tonumber(call('GET', base .. 'id'))
  call('HSET', base .. job.id, 'nq:number', number, unpack(own_fields(job)))
  return number
end

-- Add a job if its id is new. Returns 1, 0 if the id exists, or the id of the job it duplicates.
local function add_job(job)
  local base = base_key(job.queue)
  notify('queue:' .. job.queue)
  register_queue(job.queue)
  if job_exists(job.id, base) then return 0 end
  local delay, queue, number, duplicate_of = job.due > now and job.due - now or 0, queue_info(job.queue), nil, nil
  job.is_held = job.order_key and order_head(base, job.order_key)
  if queue.is_fast and is_fast_job(job, delay) then
    number = add_fast(queue, job, own_fields(job))
  else
    number, duplicate_of = add_by_bullmq(base, job, delay)
  end
  if not number then return duplicate_of end
  if job.error_group then
    call('ZADD', base .. 'nq:error:' .. job.error_group, number, job.id)
    call('SADD', base .. 'nq:errors', job.error_group)
  end
  if job.order_key then join_order(base, job.id, job.order_key, number, job.is_held) end
  remember_queue(job.id, job.queue)
  if job.run and job.run ~= '' then call('ZADD', NS .. 'run:' .. job.run .. ':jobs', number, job.id) end
  if job.scope and job.scope ~= '' then call('ZADD', NS .. 'memo_scopes', 0, job.scope .. '\n' .. job.id) end
  if job.priority < 0 and job.due <= now and not job.has_children and not job.is_held then
    call('LREM', base .. 'wait', 1, job.id)
    push_ordered(base, job.id, job.priority * 0x100000000 + number)
    call('ZADD', base .. 'nq:urgent', job.priority * 0x100000000 + number, job.id)
  end
  return 1
end

-- Add a delivery job for each event that a wait is pending for. A wait created later looks back by itself.
local function deliver_events()
  local events = undelivered
  undelivered = {}
  for _, event in ipairs(events) do
    local kind, stream, id, pos, body = unpack(event)
    if awaited_kinds[kind] == nil then awaited_kinds[kind] = call('ZCARD', NS .. 'topic:' .. kind) > 0 end
    if awaited_kinds[kind] then
      add_job({id = 'delivery.' .. pos, queue = 'penstock-events', name = 'deliver', priority = 0, due = 0, opts = '{}',
        payload = '{"stream":' .. cjson.encode(stream) .. ',"id":"' .. id .. '","cursor":"' .. pos .. '","body":' .. body
          .. '}'})
    end
  end
end
