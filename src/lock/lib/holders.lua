-- Several holders at a time, and the removal of those that don't count any more.
-- @include state
-- @include record

local LIMITS = 2 ^ 40 -- what is added to a limit in `slots`, so that limits come after slots

-- Takes a member out of its group.
local function remove_member(token)
  redis.call('ZREM', holders, token)
  redis.pcall('ZREM', slots, 'slot ' .. token, 'limit ' .. token)
  redis.pcall('HDEL', meta, token)
end

-- Without the lock no holder counts: removes what is left of holders that died, or whose lock another client
-- deleted. The expiry of `meta` is that of the last exclusive lease, and RETENTION. The hold of the token
-- `mine` is recorded by its own script.
local function record_leftovers(mine)
  if redis.call('EXISTS', meta, holders, slots) == 0 then return end
  -- Keys of another type are cleared away, too.
  local all = redis.pcall('HGETALL', meta)
  local ends = now_ms + redis.call('PTTL', meta) - RETENTION
  local left = {}
  for n = 1, #all, 2 do
    left[n] = tonumber(redis.pcall('ZSCORE', holders, all[n])) or ends
  end
  redis.call('DEL', meta, holders, slots)
  for n = 1, #all, 2 do
    if all[n] ~= mine then record_vanished(all[n], all[n + 1], left[n]) end
  end
end

-- The lock has no holder any more.
local function clear_lock()
  redis.call('DEL', lock, meta, holders, slots)
  if frozen > 0 then redis.call('SET', lock, FROZEN, 'PX', int_text(frozen - now_ms)) end
end

-- Restores the slots from `meta`, if another client has deleted them. Returns whether each member is known.
local function restore_slots()
  local all = redis.call('HGETALL', meta)
  local known = 0
  for n = 1, #all, 2 do
    local limit, slot = string.match(all[n + 1], '^%d+ %d+ (%d+) (%d+) ')
    if limit and redis.call('ZSCORE', holders, all[n]) then
      known = known + 1
      if tonumber(limit) < SHARED then
        redis.call('ZADD', slots, slot, 'slot ' .. all[n], int_text(LIMITS + limit), 'limit ' .. all[n])
      end
    end
  end
  redis.call('PEXPIRE', slots, RETENTION)
  return known == redis.call('ZCARD', holders)
end

-- Members have left the group. Returns the new value of the lock key.
local function after_leaving(value)
  if redis.call('EXISTS', holders) == 0 then
    clear_lock()
    return frozen > 0 and FROZEN
  end
  if value == 'redlock:slots' and redis.call('EXISTS', slots) == 0 and restore_slots() then
    if redis.call('EXISTS', slots) == 0 then
      value = 'redlock:shared'
      redis.call('SET', lock, value, 'KEEPTTL')
    end
  end
  return value
end

-- The value of the lock key; an error when it isn't a string. Every script that changes anything begins
-- with this: it removes holders that don't count any more, so that nothing brings them back. The hold of
-- the token `mine` is recorded by its own script.
local function lock_value(mine)
  local value = redis.pcall('GET', lock)
  if not value then
    record_leftovers(mine)
  elseif type(value) == 'string' and SHARED_VALUES[value] then
    local dead = redis.call('ZRANGEBYSCORE', holders, '-inf', int_text(now_ms), 'LIMIT', 0, 1000)
    for _, token in ipairs(dead) do
      local entry, lease_end = redis.call('HGET', meta, token), tonumber(redis.call('ZSCORE', holders, token))
      remove_member(token)
      if token ~= mine then record_vanished(token, entry, lease_end) end
    end
    if #dead > 0 or redis.call('EXISTS', holders) == 0 then value = after_leaving(value) end
  end
  return value
end
