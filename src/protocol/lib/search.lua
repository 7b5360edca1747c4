-- Which token has an id.
-- @include text

local COMPARED = 2000 -- with how many tokens one call compares an id

-- Looks through a part of a sorted set of tokens, from a cursor on ('0' at first), for the one with this id.
-- Returns it, or nil and the cursor of the next part (nil: that was all). A key of another type has none.
local function find_token(key, only, cursor)
  local next, tokens = unpack(redis.pcall('ZSCAN', key, cursor, 'COUNT', COMPARED))
  for n = 1, #(tokens or {}), 2 do
    if id(tokens[n]) == only then return tokens[n] end
  end
  if next and next ~= '0' then return nil, next end
end
