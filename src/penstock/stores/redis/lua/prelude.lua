-- Part of every script: key prefixes, the time, and the topics to notify. KEYS[1] is the wake-up channel. ARGV[1..4]:
-- namespace, queue prefix, now in ms (empty: the server's clock), and the id of the calling process.
local call, try, ARGV = redis.call, redis.pcall, ARGV -- `try` returns {err = text} where `call` raises
local NS, BULL = ARGV[1] .. ':', ARGV[2] .. ':'
local now = tonumber(ARGV[3])
local is_server_clock = not now
if is_server_clock then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local now_text = string.format('%.0f', now) -- Lua would format the number for every call

local topics, notified = {}, {}
local function notify(topic)
  if not notified[topic] then
    notified[topic] = true
    topics[#topics + 1] = topic
  end
end

-- Return the topics since the last call, and start a new list.
local function take_topics()
  if #topics == 0 then return '' end
  local text = table.concat(topics, '\n')
  topics, notified = {}, {}
  return text
end

-- Notify the other processes. The caller gets the topics in the reply and ignores the message that carries its own id.
local function publish(text)
  if text ~= '' then call('PUBLISH', KEYS[1], ARGV[4] .. '\n' .. text) end
  return text
end

-- Return a count that any program may have written: 0 if it is none. Larger ones would lose digits as text.
local function to_count(text)
  if text and #text < 14 and string.find(text, '^%d+$') then return tonumber(text) end
  return 0
end

-- Return the text of an error. Raise it again if the server caused it, and no key of another program.
local function read_failure(failure)
  local text = type(failure) == 'table' and failure.err or tostring(failure)
  for _, word in ipairs({'OOM ', 'LOADING ', 'READONLY ', 'MASTERDOWN ', 'CLUSTERDOWN ', 'NOPERM ', 'NOREPLICAS ',
    'MISCONF ', "The user executing the script can't"}) do
    if string.find(text, word, 1, true) then error(text, 0) end
  end
  return text
end

-- Read fields of one of our records. Return nil if another program wrote its key as another type.
local function read_fields(key, ...)
  local found = try('HMGET', key, ...)
  if not found.err then return found end
  read_failure(found)
end

-- Read all fields of one of our records; none if another program wrote its key as another type.
local function read_record(key)
  local flat = try('HGETALL', key)
  if not flat.err then return flat end
  read_failure(flat)
  return {}
end

-- What an operator must know: queue, kind ('stopped', 'repaired' or 'aside') and text of each problem, one after the other.
local problems = {}
local function note_problem(queue, kind, text)
  local at = #problems
  problems[at + 1], problems[at + 2], problems[at + 3] = queue, kind, (string.gsub(text, '%z', '?'))
end

-- Convert a flat list of fields and values to a table.
local function to_table(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
