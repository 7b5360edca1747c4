-- renew: lengthen our lease. Never shortens it, never creates a lock that is gone.
-- KEYS: see promote
-- ARGV: 3 token, 4 ttl (ms), 5 reuse (1: another run uses this hold as well from now on, 0)
-- Returns: {1, fence, limit, slot} when renewed; {2} when given back; {0, who forced us out or nil, entry of a holder or nil} when lost
local token, ttl, reuse = ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- A key that is no string any more isn't our lock either.
local mark = redis.pcall('GET', lock)
if not is_held(token, mark) then return not_held(token, mark) end
extend(token, mark, ttl)
-- The names of locks whose holders died.
redis.call('ZREMRANGEBYSCORE', index, '-inf', digits(now))
local entry = redis.call('HGET', meta, token) or ''
if reuse == '1' then
  -- The end of the process that took the lock doesn't mean any more that nobody uses it.
  entry = string.gsub(entry, ',"instance":"[^"]*"', '')
  redis.call('HSET', meta, token, entry)
end
local fence, limit, slot = string.match(entry, '^(%d+) %d+ (%d+) (%d+) ')
return {1, tonumber(fence or 0), tonumber(limit or 1), tonumber(slot or 0)}
