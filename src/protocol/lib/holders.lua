-- Several holders at a time, and the removal of those that don't count any more.
-- @include state
-- @include record

local LIMITS = 2 ^ 40 -- what is added to a limit in `slots`, so that limits come after slots
local LOST = 100 -- how many holds are recorded of a group that has lost the lock
local DEAD_MEMBERS = 100 -- how many members whose leases have ended one call removes
local RESTORED = 500 -- the slots of how many members one call restores

-- Takes a member out of its group.
local function remove_member(token)
  redis.call('ZREM', holders, token)
  redis.pcall('ZREM', slots, 'slot ' .. token, 'limit ' .. token)
  redis.pcall('HDEL', meta, token)
end

-- Without the lock no holder counts: removes what is left of holders that died, or whose lock another client
-- deleted. The hold of the token `mine` is recorded by its own script.
local function record_leftovers(mine)
  if redis.call('EXISTS', meta, holders, slots) == 0 then return end
  local some = some_holds(LOST)
  -- Keys of another type are cleared away, too. UNLINK frees the memory of large ones later.
  redis.call('UNLINK', meta, holders, slots)
  for _, hold in ipairs(some) do
    if hold.token ~= mine then record_vanished(hold.token, hold.entry, hold.lease_end) end
  end
end

-- The lock has no holder any more.
local function clear_lock()
  redis.call('UNLINK', lock, meta, holders, slots)
  if frozen > 0 then redis.call('SET', lock, FROZEN, 'PX', int_text(frozen - now_ms)) end
end

-- Whether `slots` has those of all members. If another client has deleted it, each call restores a part from
-- `meta`, and `restored` says where the next one goes on, whether ('+') any are restored, and with which fence: where
-- the restored ones are gone, too, or there was a grant since then (and so another group, perhaps), it begins anew.
-- A member without an entry keeps all others out.
local function has_slots()
  local there = redis.call('EXISTS', slots) == 1
  if not restored and there then return true end
  local cursor, some, fence = string.match(restored or '', '^(%d+)(%+?) (%d+)$')
  if fence ~= (last_fence or '0') or (some == '+' and not there) then cursor = '0' end
  local next, members = unpack(redis.call('ZSCAN', holders, cursor, 'COUNT', RESTORED))
  local unknown = false
  for n = 1, #members, 2 do
    local entry = redis.pcall('HGET', meta, members[n])
    local limit, slot = string.match(type(entry) == 'string' and entry or '', '^%d+ %d+ (%d+) (%d+) ')
    if not limit then
      unknown = true
    elseif tonumber(limit) < SHARED then
      redis.call('ZADD', slots, slot, 'slot ' .. members[n], int_text(LIMITS + limit), 'limit ' .. members[n])
    end
  end
  some = redis.call('PEXPIRE', slots, RETENTION) == 1 and '+' or ''
  if unknown or next ~= '0' then
    restored = (unknown and '0' or next) .. some .. ' ' .. (last_fence or '0')
    set_state('restored', restored)
    return false
  end
  if restored then redis.call('HDEL', state, 'restored') end
  restored = false
  return true
end

-- Members have left the group. Returns the new value of the lock key.
local function after_leaving(value)
  if redis.call('EXISTS', holders) == 0 then
    clear_lock()
    return frozen > 0 and FROZEN
  end
  if value == 'redlock:slots' and has_slots() and redis.call('EXISTS', slots) == 0 then
    value = 'redlock:shared'
    redis.call('SET', lock, value, 'KEEPTTL')
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
    local dead = redis.call('ZRANGEBYSCORE', holders, '-inf', int_text(now_ms), 'LIMIT', 0, DEAD_MEMBERS)
    for _, token in ipairs(dead) do
      local entry, lease_end = redis.call('HGET', meta, token), tonumber(redis.call('ZSCORE', holders, token))
      remove_member(token)
      if token ~= mine then record_vanished(token, entry, lease_end) end
    end
    local is_gone = redis.call('EXISTS', holders) == 0
    -- Another client has deleted them.
    if is_gone then record_leftovers(mine) end
    if is_gone or #dead > 0 then value = after_leaving(value) end
  end
  return value
end
