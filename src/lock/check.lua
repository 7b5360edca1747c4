-- check: whether we still hold the lock, and whether somebody wants us to end. Read only.
-- KEYS: see promote
-- ARGV: 4 token
-- Returns: {1, ms left, who cancelled us or nil} when held; {2} when given back; {0, who forced us out or nil, entry of a holder or nil} when lost
local token = ARGV[4]

local mark = redis.pcall('GET', lock)
if not is_held(token, mark) then return not_held(token, mark) end
local left = redis.call('PTTL', lock)
if mark ~= token then left = tonumber(redis.call('ZSCORE', holders, token)) - now end
return {1, left, word('cancelled', token)}
