-- inspect: what the key is, and who holds the lock. Read only; no token leaves the server.
-- KEYS: 1 lock, 2 state, 3 meta
-- ARGV: none
-- Returns: {type of the key, ms left (-1: never, -2: free), last fence or nil, server time (ms), id or nil, meta or nil}
local lock, state, meta = KEYS[1], KEYS[2], KEYS[3]

local kind = redis.call('TYPE', lock).ok
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local answer = {kind, redis.call('PTTL', lock), redis.call('HGET', state, 'fence'), now, false, false}
if kind == 'string' then
  local holder = redis.call('GET', lock)
  answer[5] = string.sub(redis.sha1hex(holder), 1, 12)
  answer[6] = redis.call('HGET', meta, holder)
end
return answer
