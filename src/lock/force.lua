-- force: free the lock whoever holds it, or take it from one holder only; a run that loses it is told by whom.
-- KEYS: see promote
-- ARGV: 3 id ('' for any), 4 by (JSON; '' when the holder's process is known to be dead)
-- Returns: {1, entry of a holder or nil, how many} when freed; {0} when free; {2, id, entry or nil} when others hold it
local only, by = ARGV[3], ARGV[4]

local mark = redis.call('GET', lock)
if not mark then return {0} end
local tokens = {mark}
if GROUP[mark] then tokens = redis.call('ZRANGEBYSCORE', holders, '(' .. digits(now), '+inf') end

local entry, count = false, 0
for _, token in ipairs(tokens) do
  if only == '' or only == id(token) then
    count = count + 1
    entry = redis.call('HGET', meta, token) or entry
    -- Nobody would read it in another client's lock.
    if entry and by ~= '' then
      redis.call('HSET', state, 'forced:' .. id(token), by)
      redis.call('PEXPIRE', state, KEPT)
    end
    redis.call('HDEL', meta, token)
    redis.call('ZREM', holders, token)
  end
end
if count == 0 then
  local other = tokens[1]
  if not other then return {0} end
  return {2, id(other), redis.call('HGET', meta, other)}
end
if count == #tokens then
  redis.call('DEL', lock, meta, holders)
  mark = false
else
  -- Written so that those who watch it look whether they were meant.
  redis.call('SET', lock, mark, 'KEEPTTL')
end
if promote(mark) then lengthen(meta, 2 * CLAIM) end
unlist()
return {1, entry, count}
