-- Writes schedules, and what BullMQ's tools know of them.
local function unshow_schedule(id)
  local row = read_fields(NS .. 'schedule:' .. id, 'shown')
  local home = row and row[1]
  if not home then return end
  local base = base_key(home)
  bull_removeJobScheduler({base .. 'repeat', base .. 'delayed', base .. 'events'}, {id, base})
  call('HDEL', NS .. 'schedule:' .. id, 'shown')
end

local function read_published(i)
  local opts = {name = ARGV[i + 1]}
  for n, field in ipairs({'pattern', 'every', 'tz', 'startDate', 'endDate', 'limit'}) do
    if ARGV[i + 1 + n] ~= '' then opts[field] = ARGV[i + 1 + n] end
  end
  return opts, ARGV[i + 8]
end

-- Show a schedule in a queue, instead of a job scheduler of that name there.
local function show_schedule(id, i, next)
  local home, key = ARGV[i], NS .. 'schedule:' .. id
  local base, opts, data = base_key(home), read_published(i)
  local shown = read_fields(scheduler_key(home, id), 'nq')
  if shown and shown[1] ~= NS then
    bull_removeJobScheduler({base .. 'repeat', base .. 'delayed', base .. 'events'}, {id, base})
  end
  bull_storeJobScheduler(id, scheduler_key(home, id), base .. 'repeat', next, opts, data, {})
  call('HSET', scheduler_key(home, id), 'nq', NS, 'ic', (tonumber(call('HGET', key, 'fired') or 0) or 0) + 1)
  call('HSET', key, 'shown', home)
end

local function index_schedule(id, next, paused)
  call('ZADD', NS .. 'schedules', 0, id)
  if next and next ~= '' and paused ~= '1' then
    call('ZADD', NS .. 'schedules:due', next, id)
  else
    call('ZREM', NS .. 'schedules:due', id)
  end
end

-- Move the time that BullMQ's tools show. A schedule that has ended is no longer shown.
local function move_shown(id, next)
  local home = (read_fields(NS .. 'schedule:' .. id, 'shown') or {})[1]
  if not home then return end
  if not next or next == '' then return unshow_schedule(id) end
  call('ZADD', base_key(home) .. 'repeat', next, id)
  call('HSET', scheduler_key(home, id), 'ic', (tonumber(call('HGET', NS .. 'schedule:' .. id, 'fired') or 0) or 0) + 1)
end

local function put_schedule()
  local id = ARGV[schedule_put]
  local key, next, published = NS .. 'schedule:' .. id, ARGV[schedule_put + 3], schedule_put + 14
  if is_schedule_removed(id) or not read_fields(key, 'spec') then call('DEL', key) end
  for n = 1, 6 do
    local value = ARGV[schedule_put + n]
    if value == '' and n > 2 then call('HDEL', key, SCHEDULE_FIELDS[n]) else call('HSET', key, SCHEDULE_FIELDS[n], value) end
  end
  index_schedule(id, next, ARGV[schedule_put + 5])
  if ARGV[published] == '' then
    move_shown(id, next)
  else
    local home = call('HGET', key, 'shown')
    if home and (home ~= ARGV[published] or next == '') then unshow_schedule(id) end
    if next ~= '' then show_schedule(id, published, next) end
  end
  notify('schedules')
end

local function advance_schedule()
  local key = NS .. 'schedule:' .. schedule_move.id
  call('HSET', key, 'last', schedule_move.slot)
  call('HINCRBY', key, 'fired', 1)
  if schedule_move.next then call('HSET', key, 'next', schedule_move.next) else call('HDEL', key, 'next') end
  index_schedule(schedule_move.id, schedule_move.next, call('HGET', key, 'paused'))
  move_shown(schedule_move.id, schedule_move.next)
end
