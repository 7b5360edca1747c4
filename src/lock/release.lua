-- release: give our lock or our place in the queue back, and let the next in.
-- KEYS: see promote
-- ARGV: 3 token, 4 early (1: its run goes on without it, 0: that was all)
-- Returns: {1} when given back; {2} when it had been given back before; {0, who forced us out or nil, entry of a holder or nil} when it wasn't ours
local token, early = ARGV[3], ARGV[4]

local mark = redis.pcall('GET', lock)
local granted = false
if mark == token then
  -- Nobody stands in the way of the next one; what that one doesn't overwrite goes after it.
  granted = promote(false)
  if not granted then redis.call('DEL', lock, meta, holders) end
  -- Its entry has the expiry that ours had.
  redis.call('HDEL', meta, token)
elseif is_held(token, mark) then
  redis.call('ZREM', holders, token)
  if redis.call('EXISTS', holders) == 0 then
    redis.call('DEL', lock)
    mark = false
  end
  granted = promote(mark)
  redis.call('HDEL', meta, token)
elseif redis.call('ZREM', queue, token) == 1 then
  redis.call('HDEL', waiters, token)
  -- A key of another type isn't ours to look into.
  if type(mark) ~= 'table' and promote(mark) then lengthen(meta, 2 * CLAIM) end
else
  local answer = not_held(token, mark)
  redis.call('HDEL', state, 'forced:' .. id(token), 'returned:' .. id(token))
  return answer
end
if early == '1' then
  redis.call('HSET', state, 'returned:' .. id(token), 1)
  redis.call('PEXPIRE', state, KEPT)
end
if not granted and type(mark) ~= 'table' then unlist() end
return {1}
