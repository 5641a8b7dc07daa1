-- Reads state and schedules.
local function state_row(key)
  local row = try('HMGET', NS .. 'state:' .. key, 'value', 'version', 'expires')
  if row.err then return {key, read_failure(row), 1, false} end -- another program wrote it
  local expires = row[3] and tonumber(row[3])
  if not row[1] or (expires and expires <= now) then return false end
  return {key, row[1], tonumber(row[2]) or 1, expires}
end

function READS.state() return state_row(arg(1)) end

function READS.states()
  local prefix, after, limit, rows = arg(1), arg(2), tonumber(arg(3)), {}
  while #rows < limit do
    local keys = call('ZRANGEBYLEX', NS .. 'states', after_prefix(prefix, after), '(' .. prefix .. FAR, 'LIMIT', 0, 200)
    for _, key in ipairs(keys) do
      local row = #rows < limit and state_row(key)
      if row then rows[#rows + 1] = row end
      after = key
    end
    if #keys < 200 then break end
  end
  return rows
end

local function schedule_row(id)
  local key = NS .. 'schedule:' .. id
  local row = try('HMGET', key, 'spec', 'target', 'next', 'last', 'paused', 'fired')
  if row.err then read_failure(row) return {id, '', '', false, false, '1', false} end -- another program wrote the key
  if (not row[1] and call('EXISTS', key) == 0) or is_schedule_removed(id) then return false end
  return {id, row[1] or '', row[2] or '', unpack(row, 3, 6)}
end

-- Return the job schedulers of other programs: queue, id, next time and fields. Arguments: more queues, besides those we use.
local MAX_FOREIGN = 1000
function READS.foreign_schedules()
  local rows, queues, seen = {}, call('SMEMBERS', NS .. 'queues'), {}
  for n = 1, tonumber(arg(1)) do queues[#queues + 1] = arg(n + 1) end
  for _, queue in ipairs(queues) do
    local found = not seen[queue] and try('ZRANGE', base_key(queue) .. 'repeat', 0, MAX_FOREIGN - 1, 'WITHSCORES') or {}
    seen[queue] = true
    for n = 1, found.err and 0 or #found, 2 do
      local fields = to_table(read_record(scheduler_key(queue, found[n])))
      if fields.nq ~= NS and #rows < MAX_FOREIGN then
        rows[#rows + 1] = {queue, found[n], found[n + 1], fields.name or '', fields.pattern or '', fields.every or '',
          fields.tz or '', fields.limit or '', fields.endDate or '', fields.data or '', fields.ic or ''}
      end
    end
  end
  return rows
end

function READS.schedule() return schedule_row(arg(1)) end

function READS.schedules()
  local rows = {}
  for _, id in ipairs(call('ZRANGE', NS .. 'schedules', 0, -1)) do rows[#rows + 1] = schedule_row(id) or nil end
  return rows
end

function READS.due_schedules()
  local slot, after, limit, rows = arg(1), arg(2), tonumber(arg(3)), {}
  local ids = call('ZRANGEBYSCORE', NS .. 'schedules:due', slot == '' and '-inf' or slot, now, 'WITHSCORES')
  for n = 1, #ids, 2 do
    if not (slot ~= '' and ids[n + 1] == slot and ids[n] <= after) then
      local row = schedule_row(ids[n])
      if row and row[4] then rows[#rows + 1] = row end
      if #rows == limit then break end
    end
  end
  return {now, rows}
end

function READS.next_schedule()
  local first = call('ZRANGEBYSCORE', NS .. 'schedules:due', '(' .. arg(1), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return first and tonumber(first)
end
