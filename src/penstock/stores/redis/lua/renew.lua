-- Extends leases. ARGV[6] is the lease in ms; then queue, job, attempt, token and run of each claim. Returns the indexes
-- of the lost ones.
local lost = {}
for i = 7, #ARGV, 5 do
  local base, id = base_key(ARGV[i]), ARGV[i + 1]
  local job = call('HMGET', base .. id, 'nq:token', 'ats')
  if job[1] == ARGV[i + 3] and job[2] == ARGV[i + 2] then
    call('SET', base .. id .. ':lock', ARGV[i + 3], 'PX', ARGV[6])
    call('SREM', base .. 'stalled', id)
    call('ZADD', base .. 'nq:leases', 'XX', now + tonumber(ARGV[6]), id)
    local head = ARGV[i + 4] ~= '' and read_fields(NS .. 'run:' .. ARGV[i + 4], 'closed')
    if head and head[1] ~= '0' then
      lost[#lost + 1] = (i - 7) / 5
    end
  else
    lost[#lost + 1] = (i - 7) / 5
  end
end
return lost
