-- Groups of holders, and the removal of holders whose lease is over.
-- @include state
-- @include record

local LIMITS = 2 ^ 40 -- added to a limit in `slots`, so that limits sort after slots
local LOST = 100 -- how many holds of a group that has lost the lock are recorded
local DEAD_MEMBERS = 100 -- how many members with an expired lease one call removes

local all_shared = false -- set when the last member with a slot has left

-- Removes a member from its group.
local function remove_member(token)
  redis.call('ZREM', holders, token)
  if redis.pcall('ZREM', slots, 'slot ' .. token, 'limit ' .. token) == 2 then all_shared = redis.call('EXISTS', slots) == 0 end
  redis.pcall('HDEL', meta, token)
end

-- Removes what is left of holders if the lock's key is gone: they died, or another client deleted it. The caller
-- itself records the hold of the token `mine`.
local function record_leftovers(mine)
  if redis.call('EXISTS', meta, holders, slots) == 0 then return end
  local some = some_holds(LOST)
  -- Keys of another type are removed, too. UNLINK frees the memory of large ones later.
  redis.call('UNLINK', meta, holders, slots)
  for _, hold in ipairs(some) do
    if hold.token ~= mine then record_vanished(hold.token, hold.entry, hold.lease_end) end
  end
end

-- Clears the lock, which has no holder any more.
local function clear_lock()
  redis.call('UNLINK', lock, meta, holders, slots)
  if frozen > 0 then redis.call('SET', lock, FROZEN, 'PX', int_text(frozen - now_ms)) end
end

-- Updates the lock after members have left the group. Returns the new value of the lock's key.
local function after_leaving(value)
  if redis.call('EXISTS', holders) == 0 then
    clear_lock()
    return frozen > 0 and FROZEN
  end
  if all_shared then
    value = 'redlock:shared'
    redis.call('SET', lock, value, 'KEEPTTL')
  end
  return value
end

-- Returns the value of the lock's key, or an error if it isn't a string. Removes dead holders first, so that no later
-- write brings them back. Most scripts call it before they grant or end a hold. The caller itself records the hold of
-- the token `mine`.
local function lock_value(mine)
  local value = redis.pcall('GET', lock)
  if not value then
    record_leftovers(mine)
  elseif type(value) == 'string' and SHARED_VALUES[value] then
    local dead = redis.call('ZRANGEBYSCORE', holders, '-inf', int_text(now_ms), 'LIMIT', 0, DEAD_MEMBERS)
    for _, token in ipairs(dead) do
      local entry, lease_end = redis.call('HGET', meta, token), tonumber(redis.call('ZSCORE', holders, token))
      remove_member(token)
      if token ~= mine then record_vanished(token, entry, lease_end) end
    end
    local is_gone = redis.call('EXISTS', holders) == 0
    -- Another client has deleted the holders.
    if is_gone then record_leftovers(mine) end
    if is_gone or #dead > 0 then value = after_leaving(value) end
  end
  return value
end
