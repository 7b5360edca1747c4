-- free: release our exclusive lock after a run, or hand it on, if nothing else is to be done, as usual; all else is for
-- `release`.
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
-- ARGV[2] how the names of the waiters' channels begin
-- ARGV[3] how many holds the history keeps
-- ARGV[4] token
-- ARGV[6] how the run ended: its status
-- Returns {1} when released; 0 when nothing was changed, and `release` is to be asked
-- @constant DAY, RETENTION of lock
-- @constant WAITER, PUBLISH of messages
-- @constant GRANT_TTL of queue
-- @include text
local lock, state, meta, queue, waiters, history = KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6], KEYS[7]
local token, how = ARGV[4], ARGV[6]

-- Lost, or a group's, or with remains of a group.
if redis.pcall('GET', lock) ~= token or redis.call('EXISTS', KEYS[4], KEYS[9]) > 0 then return 0 end
-- With guards, with a success to be noted for a key, with a number that its confirmation notes, or without an entry.
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
  -- The first waiter wants to share it, polls, is dead, was made to give up, or ignores freezes.
  local waiter = redis.pcall('HGET', waiters, head)
  local until_ms, _, limit, since, listens, who = string.match(type(waiter) == 'string' and waiter or '', WAITER)
  if limit ~= '1' or listens == '0' or until_ms <= now or tonumber(ticket) < (tonumber(superseded) or 0) then return 0 end
  if string.find(who, '"ignores_freeze":true', 1, true) then return 0 end
  -- Removes nothing, but a server that takes no writes ends the script here: no command starts on a grant that was never
  -- written.
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
  local granted = {fence, now, '1 1', int_text(math.max(0, now - since)), 'granted:' .. int_text(tonumber(ticket)), who}
  redis.call('HDEL', meta, token)
  redis.call('HSET', meta, head, table.concat(granted, ' '))
  redis.call('PEXPIRE', meta, GRANT_TTL + RETENTION)
else
  -- A full server takes all writes of a script after one that needs no memory.
  redis.call('UNLINK', lock, meta)
end

redis.call('HSET', state, counter, int_text((tonumber(ended) or 0) + 1))
if how == 'status:0' then redis.call('HSET', state, 'succeeded', now) end
-- Without the TTL, the clock skew and the processes, which are its last fields and matter only as long as the lock is held.
local from = string.find(entry, ',"ttl":', 1, true)
local record = {id(token), now, how, '0', from and string.sub(entry, 1, from - 1) .. '}' or entry}
local length = tonumber(redis.pcall('LPUSH', history, table.concat(record, ' '))) or 0
-- Rarely, as the next holder waits for this.
if length > ARGV[3] + ARGV[3] / 10 then redis.call('LTRIM', history, 0, ARGV[3] - 1) end
if length == 1 then redis.call('PEXPIRE', history, RETENTION) end
-- Unless others wait for it, the name isn't in use any more.
if not head and redis.pcall('ZADD', KEYS[8], now, ARGV[1]) == 1 then redis.call('PEXPIRE', KEYS[8], 2 * RETENTION) end
return {1}
