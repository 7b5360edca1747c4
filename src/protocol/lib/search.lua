-- The search for the token with an id.
-- @include text

local COMPARED = 2000 -- how many tokens one call compares

-- Searches a part of a sorted set of tokens, from a cursor ('0' at first), for the token with this id. Returns the
-- token, or nil and the cursor of the next part (nil: no more parts). A key of another type has no tokens.
local function find_token(key, only, cursor)
  local next, tokens = unpack(redis.pcall('ZSCAN', key, cursor, 'COUNT', COMPARED))
  for n = 1, #(tokens or {}), 2 do
    if id(tokens[n]) == only then return tokens[n] end
  end
  if next and next ~= '0' then return nil, next end
end
