-- The arguments of a claim. ARGV[6]: number of queues; then lease in ms, worker, token prefix, total limit, the jobs that
-- may be claimed ('': any, else lines of r:<run> and j:<job>), and six values per queue: name, limit, rate limit, its duration in ms, whether it is per key, and the maximum of active jobs.
local queue_count = tonumber(ARGV[6])
local next_due

local function note_due(ms)
  if ms and ms < 2 ^ 53 and (not next_due or ms < next_due) then next_due = ms end -- a score may be infinite
end

-- Return the lowest score of a sorted set.
local function first_score(key) return tonumber(careful_call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) end

-- Return the version that another program wrote to the queue, and whether it is BullMQ 5 or older, which loses jobs that
-- are added to a paused queue.
local function version_of(queue)
  local version = queue.version
  local major = version and tonumber(string.match(version, '^bullmq:(%d+)'))
  return version, major and major < 6
end
