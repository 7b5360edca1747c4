-- force: free the lock whoever holds it, or take it from one holder only; a run that loses it is told by whom.
-- KEYS: see promote
-- ARGV: 4 id ('' for any), 5 by (JSON; '' when the holder's process is known to be dead)
-- Returns: {1, entry of a holder or nil, how many} when freed; {0} when free; {2, id, entry or nil} when others hold it
local only, by = ARGV[4], ARGV[5]

local mark = redis.call('GET', lock)
if not mark or mark == FROZEN then return {0} end
local tokens = {mark}
if GROUP[mark] then tokens = redis.call('ZRANGEBYSCORE', holders, '(' .. digits(now), '+inf') end

local entry, count = false, 0
for _, token in ipairs(tokens) do
  if only == '' or only == id(token) then
    count = count + 1
    local lost = redis.call('HGET', meta, token)
    if lost and by ~= '' then
      log(token, lost, now, 'forced', by)
      -- Nobody would read it in another client's lock.
      if string.find(lost, '"instance":"', 1, true) then leave_word('forced', token, by) end
    else
      log_silent(token, lost, now)
    end
    entry = lost or entry
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
  set_free()
  mark = false
else
  -- Written so that those who watch it look whether they were meant.
  redis.call('SET', lock, mark, 'KEEPTTL')
end
if promote(mark) then lengthen(meta, CLAIM + KEPT) end
unlist()
return {1, entry, count}
