-- The holds that are over, or lost.
-- @include ends
-- @include hold
-- @include notices

local lapsed = false -- a grant wasn't confirmed

-- Up to `most` of the holds that stand in `meta`, the oldest first: the token, the entry, and until when its lease
-- lasts, or would have. The expiry of `meta` is that of the last exclusive lease, and RETENTION.
local function some_holds(most)
  -- A key of another type has none.
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

-- The lock is in use: renews the expiry of what is remembered. The state lives for twice
-- as long, as a success at the end of a hold counts from then.
local function touch_memory()
  redis.call('PEXPIRE', state, int_text(2 * RETENTION))
  redis.call('PEXPIRE', history, RETENTION)
end

-- Writes the end of a hold that ended without a release into the history, unless it was never confirmed or its run is over.
-- `lease_end` is when its lease ended, or would have: then the lock was taken away at an unknown moment
-- before now.
local function record_vanished(token, entry, lease_end)
  local hold = read_hold(entry)
  -- A grant was taken away: its confirmation, with nothing but the token, may be under way.
  if hold.phase == 'granted' then
    lapsed = true
    post_notice('left', token, hold.number, A_WHILE)
  end
  if is_at_work(entry) then record_end(token, entry, math.min(lease_end, now_ms), lease_end > now_ms and 'lost' or 'expired', '') end
end
