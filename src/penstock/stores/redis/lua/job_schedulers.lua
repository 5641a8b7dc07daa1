-- Our schedules as BullMQ's job schedulers, so that its tools list and remove them: a member of the queue's `repeat` set, and
-- a hash with its times. The hash has our mark. If a hash has gone or lost the mark, another program removed or replaced the
-- schedule, and ours no longer exists.
local function scheduler_key(home, id) return base_key(home) .. 'repeat:' .. id end

-- Return whether another program removed a schedule.
local function is_schedule_removed(id)
  local row = read_fields(NS .. 'schedule:' .. id, 'shown')
  if not row or not row[1] then return false end
  local mark = read_fields(scheduler_key(row[1], id), 'nq')
  return not mark or mark[1] ~= NS
end
