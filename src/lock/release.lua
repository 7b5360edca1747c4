-- release: give our lock or our place in the queue back, and let the next in.
-- KEYS: see promote
-- ARGV: 4 token, 5 early (1: its run goes on without it, 0: that was all), 6 how the run ended ('' when there was none), 7 keep (ms that the lock stays ours from when we got it, or 0)
-- Returns: {1} when given back; {3, ms left} when kept; {2} when it had been given back before; {0, who forced us out or nil, entry of a holder or nil} when it wasn't ours
local token, early, how, keep = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])

local mark = redis.pcall('GET', lock)
local entry = redis.call('HGET', meta, token)
local ours = is_held(token, mark)

if entry and how ~= '' then
  local by = false
  if how == 'cancelled' then
    by = word('cancelled', token)
    redis.call('HDEL', state, 'cancelled:' .. id(token))
  end
  log(token, entry, now, ours and how or 'lost', by or '')
  if how == 'status:0' and ours then redis.call('HSET', state, 'succeeded', digits(now)) end
end

-- Kept for a while, although nobody is left who could be found dead.
local since = tonumber(string.match(entry or '', '^%d+ (%d+) ') or 0)
local left = since + keep - now
if ours and keep > 0 and left > 0 then
  local start = string.match(entry, '^(%d+ %d+ %d+ %d+ %d+) ')
  local who = string.gsub(string.match(entry, '%l ({.*)$') or '{}', ',?"instance":"[^"]*"', '')
  redis.call('HSET', meta, token, start .. ' kept ' .. who)
  if mark == token then
    redis.call('PEXPIRE', lock, digits(left))
  else
    redis.call('ZADD', holders, digits(now + left), token)
    lengthen(lock, left)
  end
  list(left)
  -- The first in the queue has been told another time.
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  if head then redis.pcall('PUBLISH', channels .. id(head), 'kept') end
  return {3, left}
end

local granted = false
if mark == token then
  -- Nobody stands in the way of the next one; what that one doesn't overwrite goes after it.
  granted = promote(false)
  if not granted then set_free() end
  -- Its entry has the expiry that ours had.
  redis.call('HDEL', meta, token)
elseif ours then
  redis.call('ZREM', holders, token)
  if redis.call('EXISTS', holders) == 0 then
    set_free()
    mark = false
  end
  granted = promote(mark)
  redis.call('HDEL', meta, token)
  if granted then lengthen(meta, CLAIM + KEPT) end
elseif redis.call('ZREM', queue, token) == 1 then
  redis.call('HDEL', waiters, token)
  -- A key of another type isn't ours to look into.
  if type(mark) ~= 'table' and promote(mark) then lengthen(meta, CLAIM + KEPT) end
else
  local answer = not_held(token, mark)
  redis.call('HDEL', meta, token)
  redis.call('HDEL', state, 'forced:' .. id(token), 'returned:' .. id(token))
  return answer
end
-- Only a process that watches over the lock would read it.
if early == '1' and string.find(entry or '', '"instance":"', 1, true) then
  leave_word('returned', token, '')
end
if not granted and type(mark) ~= 'table' then unlist() end
return {1}
