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

-- Return what an operator must do about a queue: another program wrote a key that work cannot do without. Nil if all are
-- readable, or do not exist.
local function find_broken_key(base)
  local function describe(key, found, wanted)
    return 'another program wrote the key ' .. key .. ' of queue ' .. string.sub(base, #BULL + 1, -2) .. ' as ' .. found
      .. ', not as ' .. wanted .. '; rename or delete that key, and the queue continues by itself'
  end
  for name, wanted in pairs({meta = 'hash', wait = 'list', active = 'list', delayed = 'zset', prioritized = 'zset',
    ['waiting-children'] = 'zset', id = 'string', pc = 'string', stalled = 'set', paused = 'list'}) do
    local kind = call('TYPE', base .. name).ok
    if kind ~= 'none' and kind ~= wanted then return describe(base .. name, 'a ' .. kind, 'a ' .. wanted) end
    local text = wanted == 'string' and kind == wanted and call('GET', base .. name)
    if text and not string.find(text, '^%d+$') then
      return describe(base .. name, cjson.encode(string.sub(text, 1, 50)), 'a number')
    end
  end
end

-- Return the index of the streams of a type, by the time they were created.
local function type_index(stream) return NS .. 'streams:by_type:' .. (string.match(stream, '^[^:]*:[^:]*:') or '') end

-- Move a key of ours that another program wrote out of the way. `set_aside` has its name and its type, for `doctor`.
local function set_key_aside(key)
  local kind, notes = call('TYPE', key).ok, NS .. 'set_aside'
  call('RENAME', key, NS .. 'aside:' .. key)
  if type(try('HSET', notes, key, kind)) == 'table' then -- that key too
    call('DEL', notes)
    call('HSET', notes, key, kind)
  end
  note_problem('', 'aside', 'another program wrote ' .. string.sub(key, 1, 200) .. ' (' .. kind .. ')')
end

-- Return whether an error names a key of another type, or a stream whose last id is the highest.
local function is_foreign_key(failure)
  return string.find(failure.err, 'WRONGTYPE', 1, true) or string.find(failure.err, 'exhausted', 1, true)
end

-- Repeat a command that failed, without the key that another program wrote. Lua creates the functions in it only then.
local function replace_key(failure, command, key, ...)
  -- Return whether work goes on without a key: it is ours, or it only lists finished jobs, reports
  -- events or wakes workers.
  local function is_replaceable()
    return string.sub(key, 1, #NS) == NS or string.find(key, ':nq:', 1, true) or string.find(key, ':completed$')
      or string.find(key, ':failed$') or string.find(key, ':marker$') or string.find(key, ':events$')
  end

  -- Write an index again, from the waits that are pending: without it, an event would wake none of them.
  local function restore_topic(index, topic)
    for _, id in ipairs(call('ZRANGE', NS .. 'waits:event', 0, -1)) do
      local wait = read_fields(NS .. 'wait:' .. id, 'state', 'topic', 'key') or {}
      if wait[1] == 'pending' and wait[2] == topic then
        call('ZADD', key, 0, index == 'topic' and id or (wait[3] or '') .. '\n' .. id)
      end
    end
  end

  if string.find(failure.err, 'WRONGTYPE', 1, true) and is_replaceable() then
    set_key_aside(key)
    local index, topic = string.match(string.sub(key, #NS + 1), '^(topic[_keys]*):(.*)$')
    if index then restore_topic(index, topic) end
  end
  return call(command, key, ...) -- raises every other error
end

-- Call a command. A key that another program wrote as another type is moved, and leaves no unit half written. It takes a
-- little longer than `call`: the fast paths use it only for keys that they have not read before.
local function careful_call(...)
  local reply = try(...)
  if type(reply) == 'table' and reply.err then return replace_key(reply, ...) end
  return reply
end

-- Convert a flat list of fields and values to a table.
local function to_table(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
