-- acquire: take the exclusive lock, or say who has it. Safe to repeat with the same token.
-- KEYS: 1 lock, 2 state, 3 meta, 4 index
-- ARGV: 1 token, 2 ttl (ms), 3 who (JSON), 4 name
-- Returns: {1, fence} when held; {0, ms left (-1: never), meta of the holder or nil} when busy
local lock, state, meta, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl, who, name = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local KEPT = 30 * 24 * 3600 * 1000

local holder = redis.call('GET', lock)
if holder == token then
  -- The reply to an earlier try was lost: it is ours already.
  if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end
  return {1, redis.call('HGET', state, 'fence')}
end
if holder then
  return {0, redis.call('PTTL', lock), redis.call('HGET', meta, holder)}
end

redis.call('SET', lock, token, 'PX', ttl)

-- Grows also when the state was flushed: server time in microseconds, below 2^53 until 2255.
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('HGET', state, 'fence') or 0)
if fence <= last then fence = last + 1 end
fence = string.format('%.0f', fence)
redis.call('HSET', state, 'fence', fence)
redis.call('PEXPIRE', state, KEPT)

local since = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('DEL', meta)
redis.call('HSET', meta, token, fence .. ' ' .. since .. ' ' .. who)
redis.call('PEXPIRE', meta, KEPT)
redis.call('ZADD', index, since, name)
redis.call('PEXPIRE', index, KEPT)
return {1, fence}
