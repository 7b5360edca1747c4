-- renew: lengthen our lease. Never shortens it, never creates a lock that is gone.
-- KEYS: see promote
-- ARGV: 4 token, 5 ttl (ms), 6 reuse (1: another run uses this hold as well from now on, 0)
-- Returns: {1, ms left, fence, limit, slot} when renewed; {2} when given back; {0, who forced us out or nil, entry of a holder or nil} when lost
local token, ttl, reuse = ARGV[4], tonumber(ARGV[5]), ARGV[6]

-- A key that is no string any more isn't our lock either.
local mark = redis.pcall('GET', lock)
if not is_held(token, mark) then return not_held(token, mark) end
local left = extend(token, mark, ttl)
local entry = claimed(token)
if reuse == '1' then
  -- The end of the process that took the lock doesn't mean any more that nobody uses it.
  entry = string.gsub(entry, '"instance":"[^"]*"', '"instance":""')
  redis.call('HSET', meta, token, entry)
end
local fence, limit, slot = string.match(entry, '^(%d+) %d+ (%d+) (%d+) ')
return {1, left, tonumber(fence or 0), tonumber(limit or 1), tonumber(slot or 0)}
