-- The records of holds that are over, or lost.
-- @include ends
-- @include hold
-- @include notices

local lapsed = false -- set if a grant wasn't confirmed

-- Returns up to `most` of the holds in `meta`, the oldest first: token, entry, and the end of the lease, even if the
-- lock is gone. The expiry of `meta` is that of the last exclusive lease plus RETENTION.
local function some_holds(most)
  -- A key of another type has no holds.
  local all = redis.pcall('HSCAN', meta, '0', 'COUNT', most)[2] or {}
  local ends = now_ms + redis.call('PTTL', meta) - RETENTION
  local some = {}
  for n = 1, math.min(#all, 2 * most), 2 do
    local token, entry = all[n], all[n + 1]
    some[#some + 1] = {token = token, entry = entry, fence = fence_of(entry), lease_end = tonumber(redis.pcall('ZSCORE', holders, token)) or ends}
  end
  table.sort(some, function(one, other) return one.fence < other.fence or one.fence == other.fence and one.token < other.token end)
  return some
end

-- Refreshes the expiry of state and history, because the lock is in use. The state lives twice as long, because a
-- success at the end of a hold must last as long from then on.
local function touch_memory()
  redis.call('PEXPIRE', state, int_text(2 * RETENTION))
  redis.call('PEXPIRE', history, RETENTION)
end

-- Records a hold that ended without a release, unless its grant was never confirmed or its run is over. `lease_end`
-- is the end of its lease. If it is in the future, the lock was taken away at an unknown moment before now.
local function record_vanished(token, entry, lease_end)
  local hold = read_hold(entry)
  -- A grant was taken away, but its confirmation, which has only the token, may be under way.
  if hold.phase == 'granted' then
    lapsed = true
    post_notice('left', token, hold.number, A_WHILE)
  end
  if is_at_work(entry) then record_end(token, entry, math.min(lease_end, now_ms), lease_end > now_ms and 'lost' or 'expired', '') end
end
