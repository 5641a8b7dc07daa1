-- Units one after another, each with every check first and every write after.
growing = true
local at, receipts = 6, {}
while at <= #ARGV do
  at = read_unit(at)
  keep_unit()
  note_unit()
end
read_ahead()
guarded(function()
  for n, kept in ipairs(units) do
    use_unit(kept)
    receipts[n] = check() or write()
  end
end)
return {receipts, publish()}
