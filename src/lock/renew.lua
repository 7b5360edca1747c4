-- renew: lengthen our lease. Never shortens it, never creates a lock that is gone.
-- KEYS: 1 lock, 2 state, 3 meta, 4 index
-- ARGV: 1 token, 2 ttl (ms)
-- Returns: {1} when renewed; {0, who forced us out or nil, meta of the new holder or nil} when lost
local lock, state, meta, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl = ARGV[1], tonumber(ARGV[2])
local KEPT = 30 * 24 * 3600 * 1000

-- A key that is no string any more isn't our lock either.
local holder = redis.pcall('GET', lock)
if holder == token then
  if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end
  redis.call('PEXPIRE', meta, KEPT)
  redis.call('PEXPIRE', index, KEPT)
  return {1}
end

local by = false
if redis.call('HGET', state, 'forced') == token then by = redis.call('HGET', state, 'forced_by') end
local other = false
if type(holder) == 'string' then other = redis.call('HGET', meta, holder) end
return {0, by, other}
