-- The full path of a commit: units in order, each with all checks before its first write.
local at, reply = ...
is_only_adding = true
while at <= #ARGV do
  at = read_unit(at)
  save_unit()
  collect_reads()
end
prefetch_reads()
for _, saved in ipairs(units) do
  load_unit(saved)
  add_receipt(reply, check_unit() or write_unit())
end
is_only_adding = false
