-- release: give the lock back if it is still ours, and tell those who wait.
-- KEYS: 1 lock, 2 state, 3 meta, 4 index
-- ARGV: 1 token, 2 name, 3 channel
-- Returns: {1} when released; {0, who forced us out or nil, meta of the holder or nil} when it wasn't ours
local lock, state, meta, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, name, channel = ARGV[1], ARGV[2], ARGV[3]

local holder = redis.pcall('GET', lock)
if holder ~= token then
  local by = false
  if redis.call('HGET', state, 'forced') == token then by = redis.call('HGET', state, 'forced_by') end
  local other = false
  if type(holder) == 'string' then other = redis.call('HGET', meta, holder) end
  return {0, by, other}
end

redis.call('DEL', lock, meta)
redis.call('ZREM', index, name)
-- Where PUBLISH is forbidden the waiters find out by themselves.
redis.pcall('PUBLISH', channel, 'released')
return {1}
