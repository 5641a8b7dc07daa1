-- Buffers writes of many jobs to one key and sends them in one call: at the end of the script, or before the key is read.
local buffered, buffer_order, locks_to_delete = {}, {}, {}
local MAX_CALL_VALUES = 2000 -- Lua's unpack fails at some thousands

local function flush_entry(entry)
  buffered[entry.name] = nil
  careful_call(unpack(entry))
end

local function buffer_write(command, key, value, second)
  local name = command .. key
  local entry = buffered[name]
  if not entry then
    entry = {command, key, name = name}
    buffered[name] = entry
    buffer_order[#buffer_order + 1] = entry
  end
  entry[#entry + 1] = value
  entry[#entry + 1] = second
  if #entry > MAX_CALL_VALUES then flush_entry(entry) end
end

-- Call a command with a list of values, in as many calls as needed.
local function call_in_chunks(values, command, key)
  for first = 1, #values, MAX_CALL_VALUES do
    local last = math.min(first + MAX_CALL_VALUES - 1, #values)
    if key then careful_call(command, key, unpack(values, first, last)) else call(command, unpack(values, first, last)) end
  end
end

-- The queue of each job id: all that were read or added, and those not yet saved.
local job_queues, unsaved_job_queues = {}, {}

local function flush_writes()
  local entries, deleted_locks, rows = buffer_order, locks_to_delete, {}
  buffer_order, locks_to_delete = {}, {}
  for _, entry in ipairs(entries) do
    if buffered[entry.name] == entry then flush_entry(entry) end
  end
  call_in_chunks(deleted_locks, 'DEL')
  for id, queue in pairs(unsaved_job_queues) do
    rows[#rows + 1] = id
    rows[#rows + 1] = queue
  end
  unsaved_job_queues = {}
  call_in_chunks(rows, 'HSET', NS .. 'job_queues')
end
