-- free: release this run's exclusive lock, or hand it over, in the usual case; `release` does all the rest.
-- KEYS[1] the lock
-- KEYS[2] state
-- KEYS[3] meta
-- KEYS[4] holders
-- KEYS[5] queue
-- KEYS[6] waiters
-- KEYS[7] history
-- KEYS[8] index
-- KEYS[9] slots
-- ARGV[1] the name of the lock
-- ARGV[2] prefix of the waiters' channels
-- ARGV[3] how many holds the history keeps
-- ARGV[4] token
-- ARGV[6] how: the end of the run, its status
-- Returns {1} when released; 0 when nothing was changed, and the caller must use `release`
-- @constant DAY, RETENTION of lock
-- @constant WAITER, PUBLISH of messages
-- @constant GRANT_TTL of queue
-- @include text
local lock, state, meta, queue, waiters, history, token, how = KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6], KEYS[7], ARGV[4], ARGV[6]

-- The lock is lost, a group's, or has remains of a group.
if redis.pcall('GET', lock) ~= token or redis.call('EXISTS', KEYS[4], KEYS[9]) > 0 then return 0 end
-- The hold has guards, a key of --once to record, a number to record with its confirmation, or no entry.
local entry = redis.pcall('HGET', meta, token)
local phase = string.match(type(entry) == 'string' and entry or '', '^%d+ %d+ 1 1 %d+ (%l+):?%d* {')
if phase ~= 'held' and (phase ~= 'granted' or string.find(entry, '"order":', 1, true)) then return 0 end
if string.find(entry, '"once":"', 1, true) then return 0 end
local counter = how == 'status:0' and 'ended:success' or 'ended:failure'
local last, freeze, superseded, ended = unpack(redis.call('HMGET', state, 'fence', 'frozen', 'superseded', counter))
local time = redis.call('TIME')
if not last or (freeze and tonumber(string.match(freeze, '^%d+') or 0) > time[1] * 1000) then return 0 end
local micros = string.sub('00000' .. time[2], -6)
local now = time[1] .. string.sub(micros, 1, 3)

local head, ticket = unpack(redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES'))
if head then
  -- The first waiter wants to share the lock, polls, is dead, was superseded, or ignores freezes.
  local waiter = redis.pcall('HGET', waiters, head)
  local until_ms, _, limit, since, listens, who = string.match(type(waiter) == 'string' and waiter or '', WAITER)
  if limit ~= '1' or listens == '0' or until_ms <= now or tonumber(ticket) < (tonumber(superseded) or 0) then return 0 end
  if string.find(who, '"ignores_freeze":true', 1, true) then return 0 end
  -- Removes nothing, but ends the script here on a server that takes no writes: no command may start on a grant that
  -- was never written.
  redis.call('ZREM', queue, '')
  local fence = time[1] .. micros
  if tonumber(last) >= tonumber(fence) then fence = int_text(last + 1) end
  local grant = table.concat({'granted', fence, 1, now, GRANT_TTL}, ' ')
  local heard = redis.pcall(PUBLISH[listens], ARGV[2] .. id(head), grant)
  if heard == 0 or type(heard) ~= 'number' then return 0 end
  redis.call('SET', lock, head, 'PX', GRANT_TTL)
  redis.call('ZREM', queue, head)
  redis.call('HDEL', waiters, head)
  redis.call('HSET', state, 'fence', fence)
  redis.call('HDEL', meta, token)
  local waited, phase = int_text(math.max(0, now - since)), 'granted:' .. int_text(tonumber(ticket))
  redis.call('HSET', meta, head, table.concat({fence, now, '1 1', waited, phase, who}, ' '))
  redis.call('PEXPIRE', meta, GRANT_TTL + RETENTION)
else
  -- UNLINK needs no memory, and a full server accepts all writes after such a first one.
  redis.call('UNLINK', lock, meta)
end

redis.call('HSET', state, counter, int_text((tonumber(ended) or 0) + 1))
if how == 'status:0' then redis.call('HSET', state, 'succeeded', now) end
-- Without the TTL, the clock skew and the processes: the last fields, which matter only as long as the lock is held.
local from = string.find(entry, ',"ttl":', 1, true)
local record = {id(token), now, how, '0', from and string.sub(entry, 1, from - 1) .. '}' or entry}
local length = tonumber(redis.pcall('LPUSH', history, table.concat(record, ' '))) or 0
-- Trimmed rarely, because the next holder waits for this script.
if length > ARGV[3] + ARGV[3] / 10 then redis.call('LTRIM', history, 0, ARGV[3] - 1) end
if length == 1 then redis.call('PEXPIRE', history, RETENTION) end
-- The name isn't in use any more, unless others wait for the lock.
if not head and redis.pcall('ZADD', KEYS[8], now, ARGV[1]) == 1 then redis.call('PEXPIRE', KEYS[8], 2 * RETENTION) end
return {1}
