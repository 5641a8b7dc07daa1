-- The long way of committing: units one after another, each with every check first and every write after.
local at, reply = ...
growing = true
while at <= #ARGV do
  at = read_unit(at)
  keep_unit()
  note_unit()
end
read_ahead()
for _, kept in ipairs(units) do
  use_unit(kept)
  answer(reply, check() or write())
end
growing = false
