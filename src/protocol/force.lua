-- force: free the lock from every holder, or take it from a single one; a run that loses it learns who did it.
-- Given the id of a waiter, removes that waiter from the queue, and its run gives up; so does a run with an
-- unconfirmed grant.
-- ARGV[4] id ('' for every holder)
-- ARGV[5] by (JSON)
-- ARGV[6] cursor of the search for the id among the holders ('0' at first, '' if none of them has it)
-- ARGV[7] cursor of the search for the id in the queue
-- Returns {1, entry of a holder or nil, how many, how many still hold it} when freed; {0} when free; {2, id, entry or nil} when others hold it; {3, entry of a waiter or nil} when that left the queue; {4, where the search goes on among the holders, and in the queue} when others are to be compared
-- @include lock
-- @include queue
-- @include names
-- @include search
local FORCED = 200 -- how many holders one call forces out

local only, by = ARGV[4], ARGV[5]

local value = lock_value()
if type(value) == 'table' then return value end
local is_group = SHARED_VALUES[value]
-- The holders that lose it, and how many others there are.
local out, others = {}, 0
if is_group and only == '' then
  out = redis.call('ZRANGE', holders, 0, FORCED - 1)
  others = redis.call('ZCARD', holders) - #out
elseif is_group and ARGV[6] ~= '' then
  local found, more = find_token(holders, only, ARGV[6])
  if more then return {4, more, '0'} end
  out = {found}
  others = redis.call('ZCARD', holders) - #out
elseif value and value ~= FROZEN and not is_group and (only == '' or only == id(value)) then
  out = {value}
end

if #out == 0 then
  if only ~= '' then
    local token, more = find_token(queue, only, ARGV[7])
    if more then return {4, '', more} end
    if token then
      local waiting = redis.pcall('HGET', waiters, token)
      remove_waiter(token)
      -- Its run gives up with its next request, which the message makes it send at once.
      post_notice('removed', token, by, DAY)
      send_message(only, waiting, 'removed')
      grant_next(value)
      retire_name()
      return {3, type(waiting) == 'string' and waiting}
    end
  end
  if not value or value == FROZEN then return {0} end
  local holder = is_group and redis.call('ZRANGE', holders, 0, 0)[1] or value
  return {2, id(holder), redis.call('HGET', meta, holder)}
end

local left = redis.call('PTTL', lock)
local entry, entries = false, {}
for n, token in ipairs(out) do
  entries[n] = redis.call('HGET', meta, token)
  entry = entries[n] or entry
end
if others == 0 then
  clear_lock()
  value = frozen > 0 and FROZEN
else
  for _, token in ipairs(out) do remove_member(token) end
  value = after_leaving(value)
  -- Writes the key again, so that the runs that track it check whether they have lost it.
  redis.call('SET', lock, value, 'KEEPTTL')
end
-- If all holders are forced out, no other run gets in before the last of them is gone.
if only ~= '' or others == 0 then grant_next(value) end
for n, token in ipairs(out) do
  local lost = entries[n]
  if lost then
    -- If its grant isn't confirmed, its run comes back as a waiter, or has just started its command.
    local phase = read_hold(lost).phase
    if phase == 'granted' then
      post_notice('removed', token, by, DAY)
    elseif phase ~= 'kept' then
      record_end(token, lost, now_ms, 'forced', by)
    end
    -- Not for another client's lock, because no process would read the notice.
    if string.find(lost, '"instance":"', 1, true) then post_to_holder('forced', token, by, left) end
  end
end
retire_name()
return {1, entry, #out, only == '' and others or 0}
