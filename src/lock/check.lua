-- check: whether we still hold the lock. Read only.
-- KEYS: see promote
-- ARGV: 3 token
-- Returns: {1} when held; {2} when given back; {0, who forced us out or nil, entry of a holder or nil} when lost
local token = ARGV[3]

local mark = redis.pcall('GET', lock)
if is_held(token, mark) then return {1} end
return not_held(token, mark)
