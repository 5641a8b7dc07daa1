-- Reading units: a letter and the values that belong to it, `U`, `Y` or `Z` beginning the next unit. Each
-- value costs the server something: what is usually not said has letters of its own. Bodies are the caller's and are
-- never looked into.
local unit, remember
local claim, outcome, run, move, once, progress, put, before
local events, jobs, memos, waits, states, wakes, takes, logs
local taken

local NONE = {} -- most of these lists stay empty: they share one
local function with(list, value)
  if list == NONE then return {value} end
  list[#list + 1] = value
  return list
end

local function optional(value)
  if value == '' then return false end
  return value
end

-- Reads what few units have.
local function read_rarer(letter, i)
  if letter == 'V' then -- more of the run
    run.closed, run.paused, run.cancel = ARGV[i] == '1', ARGV[i + 1] == '1', ARGV[i + 2] == '1'
    run.after = optional(ARGV[i + 3])
    return 4
  elseif letter == 'O' then
    outcome = {kind = ARGV[i], due = tonumber(ARGV[i + 1]), value = ARGV[i + 2], error = optional(ARGV[i + 3]),
      count = tonumber(ARGV[i + 4]), age = tonumber(ARGV[i + 5]), stack = optional(ARGV[i + 6])}
    return 7
  elseif letter == 'B' then -- more of the job
    local job = jobs[#jobs]
    job.priority, job.due, job.scope = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 2]
    job.rate_key, job.deduplicates = ARGV[i + 3], ARGV[i + 4] == '1'
    return 5
  elseif letter == 'F' then -- its family
    local job = jobs[#jobs]
    job.waits, job.parent = ARGV[i] == '1', optional(ARGV[i + 1])
    job.parent_queue, job.on_failure, job.instead = ARGV[i + 2], ARGV[i + 3], optional(ARGV[i + 4])
    return 5
  elseif letter == 'M' then
    memos = with(memos, i)
    return 3
  elseif letter == 'P' then
    progress = ARGV[i]
  elseif letter == 'L' then
    logs = with(logs, ARGV[i])
  elseif letter == 'W' then
    waits = with(waits, {i, true})
    return 9
  elseif letter == 'X' then
    waits = with(waits, {i, false})
    return 3
  elseif letter == 'S' then
    states = with(states, i)
    return 5
  elseif letter == 'K' then
    wakes = with(wakes, ARGV[i])
  elseif letter == 'T' then
    takes = with(takes, ARGV[i])
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

-- Reads what begins at i and is called by a letter; gives how many values it has.
local function read_part(letter, i)
  if letter == 'E' then
    events = with(events, i)
    return 2
  elseif letter == 'H' then -- with its kind: someone may wait for it
    events = with(events, i)
    return 3
  elseif letter == 'C' then
    claim = {queue = ARGV[i], job = ARGV[i + 1], attempt = ARGV[i + 2], token = ARGV[i + 3], run = ARGV[i + 4]}
    return 5
  elseif letter == 'G' then -- completed, and to stay
    outcome = {kind = 'completed', value = ARGV[i]}
    return 1
  elseif letter == 'R' then
    run = {id = ARGV[i], expect = tonumber(ARGV[i + 1]), record = ARGV[i + 2], flow = ARGV[i + 3],
      status = ARGV[i + 4], closed = false, paused = false, cancel = false, after = false}
    return 5
  elseif letter == 'J' then
    jobs = with(jobs, {id = ARGV[i], queue = ARGV[i + 1], name = ARGV[i + 2], payload = ARGV[i + 3], run = ARGV[i + 4],
      opts = ARGV[i + 5], stream = ARGV[i + 6], head = ARGV[i + 7], options = ARGV[i + 8], priority = 0, due = 0})
    return 9
  elseif letter == 'A' then -- the event of adding the job
    jobs[#jobs].added = i
    return 3
  end
  return read_rarer(letter, i)
end

-- Reads the unit that begins here; gives where the next one does.
local function read_unit(at)
  unit, remember = ARGV[at + 1], false
  claim, outcome, run, move, once, progress, put = nil, nil, nil, nil, nil, nil, nil
  events, jobs, memos, waits, states, wakes, takes, logs = NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE
  if ARGV[at] == 'Y' or ARGV[at] == 'Z' then -- a plain end, of no run or of one that it changes
    claim = {queue = ARGV[at + 2], job = ARGV[at + 3], attempt = ARGV[at + 4], token = ARGV[at + 5], run = ''}
    outcome = {kind = 'completed', value = ARGV[at + 6]}
    if ARGV[at] == 'Z' then
      run = {id = ARGV[at + 7], expect = tonumber(ARGV[at + 8]), record = ARGV[at + 9], flow = ARGV[at + 10],
        status = ARGV[at + 11], closed = ARGV[at + 12] == '1', paused = false, cancel = false, after = false}
      at = at + 6
    end
    at = at + 7
  else
    remember = ARGV[at + 2] == '1'
    at = at + 3
  end
  while at <= #ARGV and ARGV[at] ~= 'U' and ARGV[at] ~= 'Y' and ARGV[at] ~= 'Z' do at = at + 1 + read_part(ARGV[at], at + 1) end
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
  if kept_heads[stream] == nil then
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
  for _, job in ipairs(jobs) do
    ids[#ids + 1] = job.id
    fresh[#fresh + 1] = base_of(job.queue) .. job.id
    parents = parents or job.parent
    if job.added then note_stream(ARGV[job.added]) end
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
