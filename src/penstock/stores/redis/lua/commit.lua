-- Commits units, then claims jobs. Tries the fast path first. The full path starts over if the fast path declines; its
-- functions are created only then. The reply is one flat list, because Redis sends every nested list with a write of its
-- own. It starts with: topics of the commit, number of receipt values, now, next due time, topics of the claim, queues
-- without a due job, and problems.
local reply, first = {'', 0, now, false, '', '', ''}, queue_count > 0 and 12 + 6 * queue_count or 7
local drained_queues

-- Write what is buffered and read queue settings again.
local function reset_queues()
  flush_all()
  queues = {}
end

run_and_flush(function()
  local commit_full, claim_full
  if first <= #ARGV and not commit_fast(first, reply) then
    commit_full, claim_full = load_full_path()
    commit_full(first, reply)
    reset_queues()
  end
  reply[1], reply[2] = take_topics(), #reply - 7
  if queue_count == 0 then return end
  drained_queues = claim_fast(reply)
  if drained_queues then return end
  reset_queues()
  if not claim_full then commit_full, claim_full = load_full_path() end
  drained_queues = claim_full(reply)
end)
local committed_topics, claimed_topics = reply[1], take_topics()
local separator = committed_topics ~= '' and claimed_topics ~= '' and '\n' or ''
publish(committed_topics .. separator .. claimed_topics)
if #problems > 0 then reply[7] = table.concat(problems, '\0') end
if queue_count > 0 then
  reply[4], reply[5], reply[6] = next_due or false, claimed_topics, table.concat(drained_queues, '\n')
end
return reply
