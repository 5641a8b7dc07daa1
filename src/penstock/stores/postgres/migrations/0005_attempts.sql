-- A claim that did not call the handler gives its attempt number back.
ALTER TYPE penstock.new_unit ADD ATTRIBUTE uncounted smallint;  -- 1: the next claim has the same attempt number
