-- Reads what operators need.

-- Return the workers that are alive: id, time of the last report and facts in one text, and expiry.
function READS.workers()
  local rows = {}
  local flat = call('ZRANGEBYSCORE', NS .. 'workers', '(' .. now_text, '+inf', 'WITHSCORES')
  for n = 1, #flat, 2 do
    local report = call('HGET', NS .. 'worker_facts', flat[n])
    if report then rows[#rows + 1] = {flat[n], report, flat[n + 1]} end
  end
  return rows
end

-- Return the counts of minutes: queue, minute and the counts in one text. Arguments: queue or nothing, first minute.
function READS.rates()
  local wanted, since, rows = arg(1), tonumber(arg(2)), {}
  local prefix = NS .. 'minutes:'
  for _, key in ipairs(call('ZRANGEBYSCORE', NS .. 'minute_keys', since - 86400000, '+inf')) do
    local queue = string.match(string.sub(key, #prefix + 1), '^(.*):%d+$')
    if wanted == '' or queue == wanted then
      local flat = read_record(key)
      for n = 1, #flat, 2 do
        if (tonumber(flat[n]) or 0) >= since then rows[#rows + 1] = {queue, flat[n], flat[n + 1]} end
      end
    end
  end
  return rows
end

-- Return how many jobs of each order key or rate key are in each state: key, state and count. Arguments: queue, and how
-- many jobs of each state to read.
function READS.open_keys()
  local base, look, rows = base_key(arg(1)), tonumber(arg(2)), {}
  local function count(state, ids)
    local counts = {}
    for _, id in ipairs(ids) do
      local job = read_fields(base .. id, 'nq:order_key', 'nq:rate_key') or {}
      local key = job[1] or job[2]
      if key then counts[key] = (counts[key] or 0) + 1 end
    end
    for key, number in pairs(counts) do rows[#rows + 1] = {key, state, number} end
  end
  count('waiting', waiting_ids(base, '', look))
  count('active', active_ids(base, '', look))
  count('delayed', page_of(base .. 'delayed', '', look))
  count('held', page_of(base .. 'nq:held', '', look))
  return rows
end

-- Return the error groups of a dead-letter queue: group, count, first and last time, and the newest job.
function READS.error_groups()
  local base, rows = base_key(arg(1)), {}
  for _, group in ipairs(call('SMEMBERS', base .. 'nq:errors')) do
    local set = base .. 'nq:error:' .. group
    local first, last = call('ZRANGE', set, 0, 0)[1], call('ZRANGE', set, -1, -1)[1]
    if first then
      local function added(id) return to_count((read_fields(base .. id, 'timestamp') or {})[1]) end
      rows[#rows + 1] = {group, call('ZCARD', set), added(first), added(last), last}
    end
  end
  table.sort(rows, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[1] < b[1] end)
  return rows
end

function READS.jobs_of_error_group()
  return page_of(base_key(arg(1)) .. 'nq:error:' .. arg(2), arg(3), tonumber(arg(4)))
end
