-- Writes what operators read. `workers` is a sorted set of worker ids by their expiry, `worker_facts` a hash of what they report.
function VERBS.report_worker()
  local id = arg(1)
  call('ZADD', NS .. 'workers', now + tonumber(arg(3)), id)
  call('HSET', NS .. 'worker_facts', id, now_text .. '\n' .. arg(2))
  return 1
end

function VERBS.remove_worker()
  call('HDEL', NS .. 'worker_facts', arg(1))
  return call('ZREM', NS .. 'workers', arg(1))
end

-- Add to the counts of minutes: queue, minute, added, completed, failed, retried of each. A queue has one hash for each day.
function VERBS.add_counts()
  for at = 1, #ARGV - 6, 6 do
    local queue, minute = arg(at), tonumber(arg(at + 1))
    local day = string.format('%.0f', math.floor(minute / 86400000) * 86400000)
    local key, field = NS .. 'minutes:' .. queue .. ':' .. day, arg(at + 1)
    local counts = {0, 0, 0, 0}
    local n = 0
    for count in string.gmatch(call('HGET', key, field) or '', '%d+') do
      n = n + 1
      counts[n] = tonumber(count)
    end
    for k = 1, 4 do counts[k] = string.format('%.0f', counts[k] + tonumber(arg(at + 1 + k))) end
    call('HSET', key, field, table.concat(counts, ' '))
    call('ZADD', NS .. 'minute_keys', day, key)
  end
  return 1
end
