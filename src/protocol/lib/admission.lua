-- Decides which run gets the lock, and with which fence.
-- @include holders

local COMPARED_FENCES = 1000 -- how many holders' fences are compared if the last fence isn't known

-- Returns the next fence. Fences grow with every grant, even after the state was deleted, because they are the
-- server's time in microseconds (below 2^53 until 2255). If that clock was set back, the last fence, or the holders'
-- entries, keep it growing. The fence is taken only when it is written with the hold.
local function next_fence()
  local fence = time[1] * 1000000 + time[2]
  local last = tonumber(last_fence or 0)
  local all = last_fence and {} or redis.pcall('HSCAN', meta, '0', 'COUNT', COMPARED_FENCES)[2] or {}
  for n = 2, #all, 2 do last = math.max(last, fence_of(all[n])) end
  if fence <= last then fence = last + 1 end
  return int_text(fence)
end

-- Returns true if a run ignores freezes, by its entry. No other value in the JSON can contain this text, because
-- quotes are escaped there.
local function ignores_freezes(who)
  return string.find(who, '"ignores_freeze":true', 1, true) ~= nil
end

-- Returns true if a later run has superseded a waiter, by its ticket and its entry.
local function is_superseded(ticket, who)
  return tonumber(ticket) < (ignores_freezes(who) and superseded_exempt or superseded)
end

-- Returns the slot for one more holder with this limit (0 for a shared one), or nil if it isn't admitted. Admitted
-- are holders + 1 <= min(its limit, each holder's limit). `value` is the lock key's value, from lock_value().
local function free_slot(limit, value, who)
  if frozen > 0 and not ignores_freezes(who) then return nil end
  local first = limit < SHARED and 1 or 0
  if not value or value == FROZEN then return first end
  if not SHARED_VALUES[value] then return nil end
  local count = redis.call('ZCARD', holders)
  if count + 1 > limit then return nil end
  -- No member has a limit or a slot.
  if value == 'redlock:shared' then return first end
  -- The slots in use sort first, then as many limits. If another client has deleted them, nobody is admitted until
  -- all members have left.
  local used = math.floor(redis.call('ZCARD', slots) / 2)
  if used == 0 then return nil end
  local smallest = redis.call('ZRANGE', slots, used, used, 'WITHSCORES')[2]
  if count + 1 > smallest - LIMITS then return nil end
  -- Slots 1 to n are all in use if the n-th smallest is n: a binary search for the first gap.
  local low, high = 0, used
  while low < high do
    local others = math.floor((low + high) / 2)
    local slot = tonumber(redis.call('ZRANGE', slots, others, others, 'WITHSCORES')[2])
    if slot > others + 1 then high = others else low = others + 1 end
  end
  return first * (low + 1)
end

-- Makes a token a holder, after free_slot() has admitted it. `lease` and `waited` are in milliseconds, and
-- `value` is that of the lock key. Returns the key's new value.
local function add_holder(value, token, limit, slot, lease, fence, waited, phase, who)
  -- The first grant of each day refreshes the keys that are kept for weeks. The last fence contains the time of the
  -- last grant.
  local refreshes = not last_fence or math.floor(last_fence / (1000 * DAY)) ~= math.floor(now_ms / DAY)
  set_state('fence', fence)
  last_fence = fence
  if refreshes then touch_memory() end
  if limit == 1 then
    value = token
    redis.call('SET', lock, token, 'PX', lease)
  else
    redis.call('ZADD', holders, int_text(now_ms + lease), token)
    extend_expiry(holders, lease + RETENTION)
    local ours = limit < SHARED and 'redlock:slots' or 'redlock:shared'
    -- All members track this key, so it is written as rarely as possible. The key gets a third more than a member's
    -- lease, and another member writes it only if its own lease would end later.
    if not value or not SHARED_VALUES[value] then
      redis.call('SET', lock, ours, 'PX', int_text(lease + lease / 3))
      value = ours
    else
      if redis.call('PTTL', lock) < lease then redis.call('PEXPIRE', lock, int_text(lease + lease / 3)) end
      if limit < SHARED and value ~= ours then
        redis.call('SET', lock, ours, 'KEEPTTL')
        value = ours
      end
    end
    if limit < SHARED then
      redis.call('ZADD', slots, slot, 'slot ' .. token, int_text(LIMITS + limit), 'limit ' .. token)
      extend_expiry(slots, lease + RETENTION)
    end
  end
  local since = math.max(0, waited)
  local entry = {fence, int_text(now_ms), int_text(limit), int_text(slot), int_text(since), phase, who}
  redis.call('HSET', meta, token, table.concat(entry, ' '))
  if limit == 1 then
    redis.call('PEXPIRE', meta, int_text(lease + RETENTION))
  else
    extend_expiry(meta, lease + RETENTION)
  end
  return value
end
