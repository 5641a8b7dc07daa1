-- Adding jobs by BullMQ's own scripts, with our fields beside theirs.
local function place(base, job, delay)
  catch_up()
  local opts = job.options and job.options ~= '' and cjson.decode(job.options) or {}
  opts.jobId = job.id
  local named = {base, job.id, job.name, now}
  local parent = parent_of(base, job)
  if parent then
    named[5], named[6], named[7] = parent.key, parent.key .. ':dependencies', parent.data
    opts.parent = {id = parent.data.id, queue = parent.data.queueKey}
    if parent.flag then opts[parent.flag] = true end
  end
  if opts.de then named[9] = base .. 'de:' .. opts.de.id end
  if job.priority > 0 then opts.priority = job.priority end
  if delay > 0 then opts.delay = delay end
  if job.waits then
    bull_addParentJob({base .. 'meta', base .. 'id', base .. 'delayed', base .. 'waiting-children', base .. 'completed',
      base .. 'events'}, {cmsgpack.pack(named), job.payload, cmsgpack.pack(opts)})
    park(base, job.id, call('GET', base .. 'id'))
    return job.id
  elseif delay > 0 then
    return bull_addDelayedJob({base .. 'marker', base .. 'meta', base .. 'id', base .. 'delayed', base .. 'completed',
      base .. 'events'}, {cmsgpack.pack(named), job.payload, cmsgpack.pack(opts)})
  elseif job.priority > 0 then
    return bull_addPrioritizedJob({base .. 'marker', base .. 'meta', base .. 'id', base .. 'prioritized', base .. 'delayed',
      base .. 'completed', base .. 'active', base .. 'events', base .. 'pc'},
      {cmsgpack.pack(named), job.payload, cmsgpack.pack(opts)})
  else
    return bull_addStandardJob({base .. 'wait', base .. 'paused', base .. 'meta', base .. 'id', base .. 'completed',
      base .. 'delayed', base .. 'active', base .. 'events', base .. 'marker'},
      {cmsgpack.pack(named), job.payload, cmsgpack.pack(opts)})
  end
end

-- BullMQ's key for jobs that stand for each other goes by the server's clock; where another one is set, this follows it.
local function follow_clock(base, dedupe)
  local key, kept = base .. 'de:' .. dedupe.id, base .. 'nq:de:' .. dedupe.id
  local till = tonumber(call('GET', kept) or 0)
  if till > 0 and till <= now then call('DEL', key, kept) end
  return function()
    if dedupe.ttl then call('SET', kept, now + dedupe.ttl) else call('DEL', kept) end
  end
end

-- Whether a job of that id is there, ours or another program's.
local absent = {} -- keys that are known not to be
local function is_there(id, base)
  if queue_of(id) then return true end
  local key = base .. id
  if absent[key] then
    absent[key] = nil -- it is about to be added
    return false
  end
  return call('EXISTS', key) == 1
end

-- Our fields beside BullMQ's.
local function fields_of(job)
  local ours = {'nq:o', job.opts}
  local function also(name, value)
    if value and value ~= '' then
      ours[#ours + 1] = name
      ours[#ours + 1] = value
    end
  end
  also('nq:r', job.run)
  also('nq:s', job.scope)
  also('nq:k', job.rate_key)
  also('nq:ss', job.stream)
  also('nq:sh', job.head)
  if job.due ~= 0 then also('nq:d', job.due) end
  if job.priority < 0 then also('nq:p', job.priority) end
  if job.waits then also('nq:w', '1') end
  return ours
end

-- Adds by BullMQ's scripts; gives the number it has arrived by, or which job stands for it.
local function add_unusual(base, job, delay)
  local keep = job.deduplicates and not real and follow_clock(base, cjson.decode(job.options).de)
  local placed = place(base, job, delay)
  if placed ~= job.id then return nil, placed end
  if keep then keep() end
  local number = tonumber(call('GET', base .. 'id'))
  call('HSET', base .. job.id, 'nq:n', number, unpack(fields_of(job)))
  return number
end

-- Adds a job if its id is new; says whether it was, or which other job stands for it.
local function add_job(job)
  local base = base_of(job.queue)
  touch('queue:' .. job.queue)
  know_queue(job.queue)
  if is_there(job.id, base) then return 0 end
  local delay, queue, arrived, stands = job.due > now and job.due - now or 0, queue_at(job.queue), nil, nil
  if queue.usual and is_usual(job, delay) then
    arrived = add_usual(queue, job, fields_of(job))
  else
    arrived, stands = add_unusual(base, job, delay)
  end
  if not arrived then return stands end
  is_placed(job.id, job.queue)
  if job.run and job.run ~= '' then call('ZADD', NS .. 'run:' .. job.run .. ':jobs', arrived, job.id) end
  if job.scope and job.scope ~= '' then call('ZADD', NS .. 'scopes', 0, job.scope .. '\n' .. job.id) end
  if job.priority < 0 and job.due <= now and not job.waits then
    call('LREM', base .. 'wait', 1, job.id)
    push_ordered(base, job.id, job.priority * 0x100000000 + arrived)
    call('ZADD', base .. 'nq:urgent', job.priority * 0x100000000 + arrived, job.id)
  end
  return 1
end

-- A job for each event that someone waits for. A gate that is opened later looks back by itself.
local function deliver()
  local news = told
  told = {}
  for _, one in ipairs(news) do
    local kind, stream, id, pos, body = unpack(one)
    if listened[kind] == nil then listened[kind] = call('ZCARD', NS .. 'topic:' .. kind) > 0 end
    if listened[kind] then
      add_job({id = 'told.' .. pos, queue = 'penstock-events', name = 'deliver', priority = 0, due = 0, opts = '{}',
        payload = '{"stream":' .. cjson.encode(stream) .. ',"id":"' .. id .. '","cursor":"' .. pos .. '","body":' .. body
          .. '}'})
    end
  end
end
