-- force: free the lock from any holder, or take it from one holder only; a run that loses it learns who did it.
-- With the id of a waiter, that one leaves the queue and gives up; so does one that hasn't confirmed its grant.
-- ARGV[4] id ('' for any)
-- ARGV[5] by (JSON; '' when the holder's process is known to be dead)
-- Returns {1, entry of a holder or nil, how many} when freed; {0} when free; {2, id, entry or nil} when others hold it; {3, entry of a waiter or nil} when that left the queue
-- @include lock
-- @include queue
-- @include names
local only, by = ARGV[4], ARGV[5]

local value = lock_value()
if type(value) == 'table' then return value end
local tokens = {value or nil}
if value == FROZEN then
  tokens = {}
elseif SHARED_VALUES[value] then
  tokens = redis.call('ZRANGE', holders, 0, -1)
end

local entry = false
local out, entries = {}, {}
for _, token in ipairs(tokens) do
  if only == '' or only == id(token) then
    local lost = redis.call('HGET', meta, token)
    out[#out + 1], entries[#out + 1] = token, lost
    entry = lost or entry
  end
end
if #out == 0 then
  for _, token in ipairs(only ~= '' and by ~= '' and redis.pcall('ZRANGE', queue, 0, -1) or {}) do
    if only == id(token) then
      local waiting = redis.pcall('HGET', waiters, token)
      redis.call('ZREM', queue, token)
      redis.pcall('HDEL', waiters, token)
      -- It gives up when it asks again, which the message makes it do at once.
      post_notice('removed', token, by)
      send_message(only, waiting, 'removed')
      grant_next(value)
      retire_name()
      return {3, type(waiting) == 'string' and waiting}
    end
  end
  if #tokens == 0 then return {0} end
  return {2, id(tokens[1]), redis.call('HGET', meta, tokens[1])}
end

if #out == #tokens then
  clear_lock()
  value = frozen > 0 and FROZEN
else
  for _, token in ipairs(out) do remove_member(token) end
  value = after_leaving(value)
  -- Written so that the runs that track the key check whether they were meant.
  redis.call('SET', lock, value, 'KEEPTTL')
end
grant_next(value)
for n, token in ipairs(out) do
  local lost = entries[n]
  if lost and by ~= '' then
    -- A grant that isn't confirmed: its run comes back as a waiter, or has just started its command.
    local _, phase = string.match(lost, PHASE)
    if phase == 'granted' then
      post_notice('removed', token, by)
    else
      record_end(token, lost, now_ms, 'forced', by)
    end
    -- For another client's lock no process would read it.
    if string.find(lost, '"instance":"', 1, true) then post_notice('forced', token, by) end
  else
    record_vanished(token, lost, now_ms)
  end
end
retire_name()
return {1, entry, #out}
