-- Reading units. From ARGV[6] on: a letter and the values that belong to it, `U` beginning the next unit. Bodies are the
-- caller's and are never looked into.
local unit, remember
local claim, outcome, run, move, once, progress, put, before
local events, jobs, memos, waits, states, wakes, takes, logs
local taken

-- Reads what begins at i and is called by a letter; gives how many values it has.
local function read_part(letter, i)
  if letter == 'E' then
    events[#events + 1] = i
    return 3
  elseif letter == 'J' then
    jobs[#jobs + 1] = i
    return 22
  elseif letter == 'C' then
    claim = {queue = ARGV[i], job = ARGV[i + 1], attempt = ARGV[i + 2], token = ARGV[i + 3], run = ARGV[i + 4]}
    return 5
  elseif letter == 'O' then
    outcome = {kind = ARGV[i], due = tonumber(ARGV[i + 1]), value = ARGV[i + 2], error = optional(ARGV[i + 3]),
      count = tonumber(ARGV[i + 4]), age = tonumber(ARGV[i + 5]), stack = optional(ARGV[i + 6])}
    return 7
  elseif letter == 'R' then
    run = {id = ARGV[i], expect = tonumber(ARGV[i + 1]), record = ARGV[i + 2], flow = ARGV[i + 3],
      status = ARGV[i + 4], closed = ARGV[i + 5] == '1', paused = ARGV[i + 6] == '1', cancel = ARGV[i + 7] == '1',
      after = optional(ARGV[i + 8])}
    return 9
  elseif letter == 'M' then
    memos[#memos + 1] = i
    return 3
  elseif letter == 'P' then
    progress = ARGV[i]
  elseif letter == 'L' then
    logs[#logs + 1] = ARGV[i]
  elseif letter == 'W' then
    waits[#waits + 1] = {i, true}
    return 9
  elseif letter == 'X' then
    waits[#waits + 1] = {i, false}
    return 3
  elseif letter == 'S' then
    states[#states + 1] = i
    return 5
  elseif letter == 'K' then
    wakes[#wakes + 1] = ARGV[i]
  elseif letter == 'T' then
    takes[#takes + 1] = ARGV[i]
  elseif letter == 'D' then
    move = {id = ARGV[i], slot = ARGV[i + 1], next = optional(ARGV[i + 2])}
    return 3
  elseif letter == 'N' then
    once = ARGV[i]
  elseif letter == 'Q' then
    put = i
    return 14
  end
  return 1
end

-- Reads the unit that begins here; gives where the next one does.
local function read_unit(at)
  unit, remember = ARGV[at + 1], ARGV[at + 2] == '1'
  claim, outcome, run, move, once, progress, put = nil, nil, nil, nil, nil, nil, nil
  events, jobs, memos, waits, states, wakes, takes, logs = {}, {}, {}, {}, {}, {}, {}, {}
  at = at + 3
  while at <= #ARGV and ARGV[at] ~= 'U' do at = at + 1 + read_part(ARGV[at], at + 1) end
  return at
end

local units = {}
local function keep_unit()
  units[#units + 1] = {unit, remember, claim, outcome, run, move, once, progress, put, events, jobs, memos, waits, states,
    wakes, takes, logs}
end

local function use_unit(kept)
  unit, remember, claim, outcome, run, move, once, progress, put, events, jobs, memos, waits, states, wakes, takes, logs =
    unpack(kept, 1, 17)
  before, taken = nil, {}
end

-- What the checks of all units ask for, read in one call each: locks, where streams end, which jobs are known, which are
-- there and which have children. What an earlier unit changes of it is changed in these tables too.
local held = {} -- a job's key to the token of its lock
local streams, ids, fresh, keys, kin, parents = {}, {}, {}, {}, {}, false

local function note_stream(stream)
  if stream ~= '' and kept_heads[stream] == nil then
    kept_heads[stream] = false
    streams[#streams + 1] = stream
  end
end

local function note_unit()
  if claim then
    local key = base_of(claim.queue) .. claim.job
    keys[#keys + 1] = key
    if outcome and outcome.kind == 'completed' then
      kin[#kin + 1] = key
    end
  end
  for _, i in ipairs(events) do note_stream(ARGV[i]) end
  for _, i in ipairs(jobs) do
    ids[#ids + 1] = ARGV[i]
    fresh[#fresh + 1] = base_of(ARGV[i + 1]) .. ARGV[i]
    parents = parents or ARGV[i + 18] ~= ''
    note_stream(ARGV[i + 14])
  end
end

-- Reads something of many in calls that are not too long.
local function read_many(names, read)
  for first = 1, #names, LONGEST do
    local last = math.min(first + LONGEST - 1, #names)
    read(first, last)
  end
end

local function read_ahead()
  know_heads(streams)
  read_many(keys, function(first, last)
    local locks = {}
    for i = first, last do locks[i - first + 1] = keys[i] .. ':lock' end
    local found = call('MGET', unpack(locks))
    for i = first, last do held[keys[i]] = found[i - first + 1] end
  end)
  read_many(ids, function(first, last)
    local found = call('HMGET', NS .. 'where', unpack(ids, first, last))
    for i = first, last do where[ids[i]] = found[i - first + 1] end
  end)
  read_many(fresh, function(first, last)
    if call('EXISTS', unpack(fresh, first, last)) > 0 then return end
    for i = first, last do absent[fresh[i]] = true end
  end)
  if parents then return end -- a job may get children here
  read_many(kin, function(first, last)
    local sets = {}
    for i = first, last do
      sets[#sets + 1] = kin[i] .. ':dependencies'
      sets[#sets + 1] = kin[i] .. ':unsuccessful'
    end
    if call('EXISTS', unpack(sets)) > 0 then return end
    for i = first, last do childless[kin[i]] = true end
  end)
end
